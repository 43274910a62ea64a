import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Random;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.client.HdfsDataInputStream;
import org.apache.hadoop.hdfs.server.datanode.metrics.DataNodeMetrics;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;
import org.apache.hadoop.net.unix.DomainSocket;

/** For `soak shortcircuit`: Apache HDFS with a domain socket, or Apache's client as a reader. */
public final class Local {
  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err);
    if (args[0].equals("serve")) {
      serve(out, args[1], args[2]);
    } else {
      read(out, args[1], args[2], args[3], Integer.parseInt(args[4]));
    }
    System.exit(0);
  }

  private static Configuration configured(String socket) {
    Configuration conf = new HdfsConfiguration();
    if (!socket.equals("-")) {
      conf.setBoolean("dfs.client.read.shortcircuit", true);
      conf.set("dfs.domain.socket.path", socket);
    }
    return conf;
  }

  /** Prints the NameNode's port; then, for each line, how many blocks the DataNode has sent. */
  private static void serve(PrintStream out, String dir, String socket) throws Exception {
    DomainSocket.disableBindPathValidation(); // /tmp is writable by all
    Configuration conf = configured(socket);
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(dir).getAbsolutePath());
    conf.setBoolean("dfs.block.access.token.enable", true);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
    cluster.waitActive();
    out.println(cluster.getNameNodePort());
    out.flush();
    Field blocksRead = DataNodeMetrics.class.getDeclaredField("blocksRead"); // JMX tells it late
    blocksRead.setAccessible(true);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    while (in.readLine() != null) {
      out.println(((MutableCounterLong) blocksRead.get(cluster.getDataNodes().get(0).getMetrics())).value());
      out.flush();
    }
  }

  /** Prints the file's SHA-256, the bytes read short-circuit, and what reading took. */
  private static void read(PrintStream out, String uri, String socket, String name, int reads) throws Exception {
    com.sun.management.OperatingSystemMXBean system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    try (FileSystem fs = FileSystem.get(new URI(uri), configured(socket))) {
      byte[] buffer = new byte[1 << 20];
      MessageDigest digest = MessageDigest.getInstance("SHA-256");
      long local = 0;
      long wall = 0;
      long cpu = 0;
      for (int round = 0; round < 3; round++) {
        long began = System.nanoTime();
        long used = system.getProcessCpuTime();
        try (HdfsDataInputStream file = (HdfsDataInputStream) fs.open(new Path(name))) {
          for (int n = file.read(buffer); n >= 0; n = file.read(buffer)) {
            if (round == 0) {
              digest.update(buffer, 0, n);
            }
          }
          local += file.getReadStatistics().getTotalShortCircuitBytesRead();
        }
        wall = System.nanoTime() - began;
        cpu = system.getProcessCpuTime() - used;
      }
      long[] took = new long[reads / 2];
      long length = fs.getFileStatus(new Path(name)).getLen();
      try (HdfsDataInputStream file = (HdfsDataInputStream) fs.open(new Path(name))) {
        Random random = new Random(1);
        byte[] page = new byte[4096];
        for (int i = 0; i < reads; i++) { // the first half warms up
          long at = (long) (random.nextDouble() * (length - page.length));
          long began = System.nanoTime();
          file.readFully(at, page);
          if (i >= reads - took.length) {
            took[i - (reads - took.length)] = System.nanoTime() - began;
          }
        }
        local += file.getReadStatistics().getTotalShortCircuitBytesRead();
      }
      Arrays.sort(took);
      StringBuilder hex = new StringBuilder();
      for (byte b : digest.digest()) {
        hex.append(String.format("%02x", b));
      }
      out.println(hex + " " + local + " " + took[took.length / 2] + " " + wall + " " + cpu);
      out.flush();
    }
  }
}
