// Prints outcomes.txt: javac -cp "JARS/*" Names.java && java -cp "JARS/*:." Names, with the jars of Hadoop 3.4.1.
// Columns: mechanism, rules, name, what becomes of it, the short name or the error.
import org.apache.hadoop.security.authentication.util.KerberosName;
import java.io.*;
public class Names {
  static String q(String s){ return s.replace("\\","\\\\").replace("\t","\\t").replace("\n","\\n"); }
  public static void main(String[] a) throws Exception {
    String[][] rules = {
      {"simple","RULE:[1:$1] RULE:[2:$1]"},
      {"default","DEFAULT"},
      {"realms","RULE:[1:$1@$0](.*@OTHER\\.ORG)s/@.*// RULE:[2:$1@$0](nn@EXAMPLE\\.ORG)s/.*/hdfs/ DEFAULT"},
      {"global","RULE:[1:$1](.*)s/a/x/g/L DEFAULT"},
      {"once","RULE:[1:$1](.*)s/a/x/ DEFAULT"},
      {"lower","RULE:[2:$1_$2]/L\nRULE:[1:$1;$0](.*;EXAMPLE.ORG)s/;.*///L"},
      {"groups","RULE:[2:$2/$1](^(.*)/(.*)$)s/^([^x]*)\\/(.*)$/$2.$1/"},
      {"groups2","RULE:[2:$2+$1]s/^(.*)[+](.*)$/$2.$1/"},
      {"whole","RULE:[1:$1](ad) RULE:[1:z$1$]"},
      {"keeps","RULE:[1:$1@$0]"},
      {"outside","RULE:[1:$2] DEFAULT"},
      {"bare","RULE:[1:x$]"},
      {"badrule","RULE:[1:$1] nonsense"},
      {"nonumber","RULE:[:$1]"},
      {"badgroup","RULE:[1:$1](.*)s/(a)/$2/"},
      {"escape","RULE:[1:$1](.*)s/a/\\$b/"},
      {"empty",""},
    };
    String[] names = {"ada","ada@EXAMPLE.ORG","ada@OTHER.ORG","nn/host1@EXAMPLE.ORG","Ada/host1","banana@EXAMPLE.ORG","AdA@EXAMPLE.ORG","a/b/c@X","a@b@c","/x","a b@EXAMPLE.ORG","ada@","with space","nn/host1@OTHER.ORG",""};
    System.setProperty("java.security.krb5.realm","EXAMPLE.ORG"); System.setProperty("java.security.krb5.kdc","localhost");
    for (String mech : new String[]{"hadoop","mit"}) for (String[] r : rules) {
      KerberosName.resetDefaultRealm();
      try { KerberosName.setRuleMechanism(mech); KerberosName.setRules(r[1]); } catch (Throwable t) { System.out.println(mech+"\t"+q(r[1])+"\t\tREFUSED\t"+q(String.valueOf(t.getMessage()))); continue; }
      for (String n : names) {
        String out, what; try { out = new KerberosName(n).getShortName(); what="IS"; } catch (Throwable t) { out = t.getClass().getName()+": "+t.getMessage(); what="FAILS"; }
        System.out.println(mech+"\t"+q(r[1])+"\t"+n+"\t"+what+"\t"+q(String.valueOf(out)));
      }
    }
  }
}
