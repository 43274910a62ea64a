// Runs Hadoop RPC servers until its standard input ends, and prints their addresses: one of
// simple clients, one that takes tokens, too, and one of tokens alone. A token of the
// identifier "of USER" is USER's, and its password is "secret".
//
//	javac -cp "JARS/*" Negotiation.java && java -cp "JARS/*:." Negotiation
//
// with the jars of Hadoop 3.4.1. The test that names this file says how it uses them.
import java.io.*;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.ipc.*;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.security.token.*;

public class Negotiation {
  public interface Nothing extends VersionedProtocol {
    long versionID = 1L;
  }

  public static class Served implements Nothing {
    public long getProtocolVersion(String protocol, long version) { return versionID; }
    public ProtocolSignature getProtocolSignature(String protocol, long version, int hash) {
      return new ProtocolSignature(versionID, null);
    }
  }

  public static class Identifier extends TokenIdentifier {
    String user = "";
    public void readFields(DataInput in) throws IOException {
      StringBuilder b = new StringBuilder();
      try {
        while (true) b.append((char) in.readByte());
      } catch (EOFException end) {
      }
      user = b.toString();
    }
    public void write(DataOutput out) throws IOException { out.writeBytes(user); }
    public Text getKind() { return new Text("test"); }
    public UserGroupInformation getUser() { return UserGroupInformation.createRemoteUser(user.replace("of ", "")); }
  }

  public static class Secrets extends SecretManager<Identifier> {
    protected byte[] createPassword(Identifier id) { return "secret".getBytes(StandardCharsets.UTF_8); }
    public byte[] retrievePassword(Identifier id) throws InvalidToken {
      if (!id.user.startsWith("of ")) throw new InvalidToken("unknown");
      return createPassword(id);
    }
    public Identifier createIdentifier() { return new Identifier(); }
  }

  public static void main(String[] args) throws Exception {
    for (String kind : new String[] {"simple", "both", "tokens"}) {
      Configuration conf = new Configuration();
      conf.set("hadoop.security.authentication", kind.equals("tokens") ? "token" : "simple");
      RPC.Builder b = new RPC.Builder(conf).setProtocol(Nothing.class).setInstance(new Served()).setBindAddress("127.0.0.1").setPort(0).setNumHandlers(1);
      if (!kind.equals("simple")) b.setSecretManager(new Secrets());
      RPC.Server s = b.build();
      s.start();
      System.out.println(kind + "=127.0.0.1:" + s.getListenerAddress().getPort());
    }
    System.out.flush();
    while (System.in.read() >= 0);
    System.exit(0);
  }
}
