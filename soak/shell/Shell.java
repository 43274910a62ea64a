import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.PrintStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FsShell;
import org.apache.hadoop.util.ToolRunner;

// Shell runs commands of Hadoop's FsShell, one after the other, in one JVM. It reads a number of
// arguments and the arguments from standard input, and answers with the exit code, what went to
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
      String[] words = new String[n];
      for (int i = 0; i < n; i++) {
        byte[] word = new byte[in.readInt()];
        in.readFully(word);
        words[i] = new String(word, "UTF-8");
      }
      ByteArrayOutputStream out = new ByteArrayOutputStream(), err = new ByteArrayOutputStream();
      PrintStream o = System.out, e = System.err;
      System.setOut(new PrintStream(out, true, "UTF-8"));
      System.setErr(new PrintStream(err, true, "UTF-8"));
      int code;
      try {
        FsShell shell = new FsShell(new Configuration(conf));
        shell.getConf().setQuietMode(true);
        code = ToolRunner.run(shell, words);
        shell.close();
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
}
