import java.io.BufferedReader;
import java.io.File;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.Trash;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.MiniDFSNNTopology;
import org.apache.hadoop.hdfs.server.datanode.DataNode;

/**
 * Runs Apache HDFS for `soak client`, in a directory, with block tokens or without, and with so
 * many NameNodes, of which the first is active: prints the NameNodes' ports, then obeys a command a
 * line.
 */
public final class Cluster {
  public static void main(String[] args) throws Exception {
    PrintStream out = System.out;
    System.setOut(System.err);
    Configuration conf = new HdfsConfiguration();
    conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, new File(args[0]).getAbsolutePath());
    conf.set("dfs.block.access.token.enable", args[1]);
    conf.set("dfs.datanode.fsdataset.volume.choosing.policy", "org.apache.hadoop.hdfs.server.datanode.fsdataset.RoundRobinVolumeChoosingPolicy");
    conf.set("fs.trash.interval", "60");
    conf.set("dfs.ha.tail-edits.period", "1");
    int nameNodes = Integer.parseInt(args[2]);
    MiniDFSNNTopology topology =
        nameNodes > 1 ? MiniDFSNNTopology.simpleHATopology(nameNodes) : MiniDFSNNTopology.simpleSingleNN(0, 0);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).nnTopology(topology).numDataNodes(4).build();
    cluster.waitActive();
    StringJoiner ports = new StringJoiner(" ");
    for (int i = 0; i < nameNodes; i++) {
      ports.add(Integer.toString(cluster.getNameNodePort(i)));
    }
    if (nameNodes > 1) {
      cluster.transitionToActive(active);
    }
    out.println(ports);
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
  private static int active; // the NameNode that is

  private static String obey(MiniDFSCluster cluster, Configuration conf, String[] words) throws Exception {
    FileSystem files = cluster.getFileSystem(active);
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
        try (FileSystem fs = FileSystem.newInstance(new URI("hdfs://127.0.0.1:" + cluster.getNameNodePort(active)), own)) {
          FileChecksum sum = fs.getFileChecksum(new Path(words[1]));
          return sum.getAlgorithmName() + " " + hex(Arrays.copyOf(sum.getBytes(), sum.getLength())) /* as the shell shows it */;
        }
      }
      case "read": { // the SHA-256 of a file
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        byte[] buffer = new byte[1 << 16];
        try (InputStream file = files.open(new Path(words[1]))) {
          for (int n = file.read(buffer); n >= 0; n = file.read(buffer)) {
            digest.update(buffer, 0, n);
          }
        }
        return hex(digest.digest());
      }
      case "hand": // the work of the active NameNode to another one
        cluster.transitionToStandby(active);
        active = Integer.parseInt(words[1]);
        cluster.transitionToActive(active);
        return "handed over";
      case "end": // the active NameNode, and have another one take over
        cluster.shutdownNameNode(active);
        active = Integer.parseInt(words[1]);
        cluster.transitionToActive(active);
        return "taken over";
      case "revive": // a NameNode that was ended, as a standby
        cluster.restartNameNode(Integer.parseInt(words[1]));
        return "revived";
      case "acl": { // of a file, as getfacl has it
        AclStatus status = files.getAclStatus(new Path(words[1]));
        StringJoiner text = new StringJoiner(",");
        for (AclEntry e : status.getEntries()) {
          text.add(e.toString());
        }
        return String.format("%o %s", status.getPermission().toShort(), text);
      }
      case "modifyacl":
        files.modifyAclEntries(new Path(words[1]), AclEntry.parseAclSpec(words[2], true));
        return "modified";
      case "xattrs": { // of a file, by name, values in hexadecimal
        StringJoiner text = new StringJoiner(",");
        for (Map.Entry<String, byte[]> x : new TreeMap<>(files.getXAttrs(new Path(words[1]))).entrySet()) {
          text.add(x.getKey() + "=" + hex(x.getValue()));
        }
        return text.toString();
      }
      case "setxattr":
        files.setXAttr(new Path(words[1]), words[2], words[3].getBytes(StandardCharsets.UTF_8));
        return "set";
      case "trash": // a file
        return new Trash(files, conf).moveToTrash(new Path(words[1])) ? "trashed" : "!it is not in the trash";
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
