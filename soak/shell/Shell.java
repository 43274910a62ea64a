import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.PrintStream;
import java.security.PrivilegedExceptionAction;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.ToolRunner;

// Shell runs commands of Hadoop's FsShell, one after the other, in one JVM. It reads a number of
// arguments, the user and the arguments from standard input, and answers with the exit code, what went to
// standard output and what went to standard error: numbers of 4 bytes, big-endian, each string
// behind its length.
//
//   java Shell.java hdfs://HOST:PORT
public class Shell {
  public static void main(String[] args) throws Exception {
    DataInputStream in = new DataInputStream(System.in);
    DataOutputStream answers = new DataOutputStream(System.out);
    Configuration conf = new Configuration();
    conf.set("fs.defaultFS", args[0]);
    while (true) {
      int n;
      try {
        n = in.readInt();
      } catch (EOFException e) {
        return;
      }
      UserGroupInformation user = UserGroupInformation.createRemoteUser(text(in));
      String[] words = new String[n];
      for (int i = 0; i < n; i++) {
        words[i] = text(in);
      }
      ByteArrayOutputStream out = new ByteArrayOutputStream(), err = new ByteArrayOutputStream();
      PrintStream o = System.out, e = System.err;
      System.setOut(new PrintStream(out, true, "UTF-8"));
      System.setErr(new PrintStream(err, true, "UTF-8"));
      int code;
      try {
        code = user.doAs((PrivilegedExceptionAction<Integer>) () -> {
          FsShell shell = new FsShell(new Configuration(conf));
          shell.getConf().setQuietMode(true);
          int status = ToolRunner.run(shell, words);
          shell.close();
          return status;
        });
      } finally {
        System.out.flush();
        System.err.flush();
        System.setOut(o);
        System.setErr(e);
      }
      answers.writeInt(code & 255);
      for (byte[] b : new byte[][] {out.toByteArray(), err.toByteArray()}) {
        answers.writeInt(b.length);
        answers.write(b);
      }
      answers.flush();
    }
  }

  private static String text(DataInputStream in) throws Exception {
    byte[] word = new byte[in.readInt()];
    in.readFully(word);
    return new String(word, "UTF-8");
  }
}
