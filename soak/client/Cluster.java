import java.io.BufferedReader;
import java.io.File;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.server.datanode.DataNode;

/** Runs Apache HDFS for `soak client`: prints the NameNode's port, then obeys a command a line. */
public final class Cluster {
  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err);
    Configuration conf = new HdfsConfiguration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(args[0]).getAbsolutePath());
    conf.set("dfs.block.access.token.enable", args[1]);
    conf.set("dfs.datanode.fsdataset.volume.choosing.policy", "org.apache.hadoop.hdfs.server.datanode.fsdataset.RoundRobinVolumeChoosingPolicy");
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(4).build();
    cluster.waitActive();
    out.println(cluster.getNameNodePort());
    out.flush();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String answer;
      try {
        answer = obey(cluster, conf, line.split(" "));
      } catch (Exception e) {
        answer = "!" + e;
      }
      out.println(answer.replace('\n', ' '));
      out.flush();
    }
    System.exit(0);
  }

  private static MiniDFSCluster.DataNodeProperties stopped;

  private static String obey(MiniDFSCluster cluster, Configuration conf, String[] words) throws Exception {
    switch (words[0]) {
      case "stop": // the DataNode of an address
        for (int i = 0; i < cluster.getDataNodes().size(); i++) {
          DataNode dn = cluster.getDataNodes().get(i);
          if (words[1].endsWith(":" + dn.getXferPort())) {
            stopped = cluster.stopDataNode(i);
            return "stopped";
          }
        }
        return "!no such DataNode";
      case "start": // it again
        if (stopped != null) {
          cluster.restartDataNode(stopped, true);
          cluster.waitActive();
          stopped = null;
        }
        return "started";
      case "checksum": { // of a file, in a mode
        Configuration own = new Configuration(conf);
        own.set("dfs.checksum.combine.mode", words[2]);
        try (FileSystem fs = FileSystem.newInstance(new URI("hdfs://127.0.0.1:" + cluster.getNameNodePort()), own)) {
          FileChecksum sum = fs.getFileChecksum(new Path(words[1]));
          return sum.getAlgorithmName() + " " + hex(Arrays.copyOf(sum.getBytes(), sum.getLength())) /* as the shell shows it */;
        }
      }
      case "read": { // the SHA-256 of a file
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        byte[] buffer = new byte[1 << 16];
        try (InputStream file = cluster.getFileSystem().open(new Path(words[1]))) {
          for (int n = file.read(buffer); n >= 0; n = file.read(buffer)) {
            digest.update(buffer, 0, n);
          }
        }
        return hex(digest.digest());
      }
      case "write": { // so many zeros into a file
        try (OutputStream file = cluster.getFileSystem().create(new Path(words[1]))) {
          byte[] zeros = new byte[Integer.parseInt(words[2])];
          file.write(zeros);
        }
        return "written";
      }
      default:
        return "!no such command";
    }
  }

  private static String hex(byte[] bytes) {
    StringBuilder text = new StringBuilder();
    for (byte b : bytes) {
      text.append(String.format("%02x", b));
    }
    return text.toString();
  }
}
