import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.crypto.CryptoProtocolVersion;
import org.apache.hadoop.fs.ContentSummary;
import org.apache.hadoop.fs.CreateFlag;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.QuotaUsage;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.fs.XAttr;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsCreateModes;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.NameNodeProxies;
import org.apache.hadoop.hdfs.protocol.BatchedDirectoryListing;
import org.apache.hadoop.hdfs.protocol.Block;
import org.apache.hadoop.hdfs.protocol.BlockStoragePolicy;
import org.apache.hadoop.hdfs.protocol.BlockListAsLongs;
import org.apache.hadoop.hdfs.protocol.ClientProtocol;
import org.apache.hadoop.hdfs.protocol.DatanodeID;
import org.apache.hadoop.hdfs.protocol.DirectoryListing;
import org.apache.hadoop.hdfs.protocol.ExtendedBlock;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;
import org.apache.hadoop.hdfs.protocol.HdfsFileStatus;
import org.apache.hadoop.hdfs.protocol.HdfsLocatedFileStatus;
import org.apache.hadoop.hdfs.protocol.HdfsPartialListing;
import org.apache.hadoop.hdfs.protocol.LastBlockWithStatus;
import org.apache.hadoop.hdfs.protocol.LocatedBlock;
import org.apache.hadoop.hdfs.protocol.LocatedBlocks;
import org.apache.hadoop.hdfs.protocol.OpenFileEntry;
import org.apache.hadoop.hdfs.protocol.OpenFilesIterator;
import org.apache.hadoop.fs.BatchedRemoteIterator.BatchedEntries;
import org.apache.hadoop.hdfs.security.token.block.ExportedBlockKeys;
import org.apache.hadoop.hdfs.server.blockmanagement.BlockManager;
import org.apache.hadoop.hdfs.server.protocol.BlockRecoveryCommand;
import org.apache.hadoop.hdfs.server.protocol.BlockReportContext;
import org.apache.hadoop.hdfs.server.protocol.DatanodeCommand;
import org.apache.hadoop.hdfs.server.protocol.DatanodeRegistration;
import org.apache.hadoop.hdfs.server.protocol.DatanodeStorage;
import org.apache.hadoop.hdfs.server.protocol.NamenodeProtocols;
import org.apache.hadoop.hdfs.server.protocol.NamespaceInfo;
import org.apache.hadoop.hdfs.server.protocol.ReceivedDeletedBlockInfo;
import org.apache.hadoop.hdfs.server.protocol.SlowDiskReports;
import org.apache.hadoop.hdfs.server.protocol.SlowPeerReports;
import org.apache.hadoop.hdfs.server.protocol.StorageBlockReport;
import org.apache.hadoop.hdfs.server.protocol.StorageReceivedDeletedBlocks;
import org.apache.hadoop.hdfs.server.protocol.StorageReport;
import org.apache.hadoop.hdfs.server.datanode.DataStorage;
import org.apache.hadoop.io.EnumSetWritable;
import org.apache.hadoop.ipc.RemoteException;
import org.apache.hadoop.security.Groups;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.util.VersionInfo;

/**
 * Oracle asks Apache HDFS's NameNode. It reads operations, one a line, fields
 * separated by tabs, and writes an answer to each. One DataNode that keeps no
 * bytes tells the NameNode what the operations say that it received.
 */
public final class Oracle {
  private static final int MIN_BLOCK_SIZE = 512;

  private static final Set<String> TEXTS = new HashSet<>(Arrays.asList(
      "setAcl", "modifyAclEntries", "removeAclEntries", "removeDefaultAcl", "removeAcl", "getAclStatus",
      "setXAttr", "getXAttrs", "listXAttrs", "removeXAttr",
      "getStoragePolicies", "getStoragePolicy", "setStoragePolicy", "unsetStoragePolicy", "satisfyStoragePolicy", "setQuota", "getQuotaUsage"));

  /** A file that some operation opened, as its writer knows it. */
  private static final class Slot {
    long id;
    long size; // of its blocks
    ExtendedBlock last;
    boolean awaited; // no DataNode has told of the last block yet

    /** No block is longer than its file allows, if that is known, or than any file must allow. */
    long fit(String length) {
      return Math.min(size == 0 ? MIN_BLOCK_SIZE : size, Long.parseLong(length));
    }

    /** What its writer says that the last block has become. */
    ExtendedBlock said(String how) {
      return how.equals("last") ? last : null;
    }
  }

  private final Configuration conf;
  private final InetSocketAddress address;
  private final NamenodeProtocols server;
  private final BlockManager blocks;
  private final Map<String, ClientProtocol> users = new HashMap<>();
  private final Map<String, Slot> slots = new HashMap<>();
  private final Map<Long, Long> replicas = new HashMap<>(); // block id to length
  private final String pool;
  private final DatanodeStorage storage = new DatanodeStorage("DS-1");
  private DatanodeRegistration datanode;

  public static void main(String[] args) throws Exception {
    PrintStream out = new PrintStream(new java.io.FileOutputStream(java.io.FileDescriptor.out), false, "UTF-8");
    System.setOut(System.err);
    Configuration conf = new Configuration();
    conf.set("hdfs.minidfs.basedir", args[0]);
    conf.set("hadoop.user.group.static.mapping.overrides", "root=;alice=staff;bob=staff,users;carol=users");
    conf.setInt("dfs.namenode.fs-limits.min-block-size", MIN_BLOCK_SIZE);
    conf.setInt("dfs.ls.limit", 4);
    conf.setLong("dfs.namenode.accesstime.precision", 1L << 50);
    conf.setInt("dfs.namenode.heartbeat.recheck-interval", 1 << 29);
    conf.setBoolean("dfs.namenode.edits.noeditlogchannelflush", true);
    UserGroupInformation.setConfiguration(conf);
    Groups.getUserToGroupsMappingServiceWithLoadedConfiguration(conf);
    MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(0).build();
    cluster.waitClusterUp();
    Oracle oracle = new Oracle(conf, cluster);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.print(oracle.answer(line.split("\t", -1)));
      out.print('\n');
    }
    out.flush();
    System.exit(0);
  }

  private Oracle(Configuration conf, MiniDFSCluster cluster) throws IOException {
    this.conf = conf;
    address = cluster.getNameNode().getNameNodeAddress();
    server = cluster.getNameNodeRpc();
    blocks = cluster.getNamesystem().getBlockManager();
    NamespaceInfo info = server.versionRequest();
    pool = info.getBlockPoolID();
    datanode = new DatanodeRegistration(
        new DatanodeID("127.0.0.1", "localhost", "dn-1", 9001, 9002, 9003, 9004),
        new DataStorage(info), new ExportedBlockKeys(), VersionInfo.getVersion());
    datanode = server.registerDatanode(datanode);
    datanode.setNamespaceInfo(info);
    server.blockReport(datanode, pool,
        new StorageBlockReport[] {new StorageBlockReport(storage, BlockListAsLongs.EMPTY)},
        new BlockReportContext(1, 0, System.nanoTime(), 0L));
    beat();
  }

  private ClientProtocol as(String user) throws Exception {
    ClientProtocol proxy = users.get(user);
    if (proxy == null) {
      UserGroupInformation ugi = UserGroupInformation.createRemoteUser(user);
      proxy = ugi.doAs((PrivilegedExceptionAction<ClientProtocol>) () ->
          NameNodeProxies.createNonHAProxy(conf, address, ClientProtocol.class, ugi, false).getProxy());
      users.put(user, proxy);
    }
    return proxy;
  }

  private Slot slot(String name) {
    return slots.computeIfAbsent(name, n -> new Slot());
  }

  private String answer(String[] f) throws Exception {
    try {
      return run(as(f[0]), f);
    } catch (RemoteException e) {
      return "!" + e.getClassName() + text(f[1], e);
    } catch (Exception e) {
      return "!!" + e; // not from the server: the operation is of no use
    }
  }

  /** What clients show of a refusal, where it is compared. */
  private static String text(String operation, RemoteException e) {
    if (!TEXTS.contains(operation) && !e.getClassName().contains("Quota")) {
      return "";
    }
    String message = String.valueOf(e.getMessage());
    int end = message.indexOf('\n');
    // The two servers number files in their own ways.
    return ": " + (end < 0 ? message : message.substring(0, end)).replaceAll("(/\\.inodes/)\\d+", "$1#");
  }

  /** A path may name an inode: @3 is the id of the file in slot 3. */
  private String path(String p) {
    int at = p.indexOf('@');
    if (at < 0) {
      return p;
    }
    int end = at + 1;
    while (end < p.length() && Character.isDigit(p.charAt(end))) {
      end++;
    }
    return p.substring(0, at) + slot(p.substring(at + 1, end)).id + p.substring(end);
  }

  private String run(ClientProtocol nn, String[] f) throws Exception {
    switch (f[1]) {
    case "reset": {
      for (HdfsFileStatus s : all(nn, "/")) {
        nn.delete("/" + s.getLocalName(), true);
      }
      nn.setPermission("/", new FsPermission((short) 0755));
      nn.setOwner("/", "root", "supergroup");
      nn.removeAcl("/");
      nn.unsetStoragePolicy("/");
      for (XAttr a : nn.listXAttrs("/.reserved/raw")) {
        nn.removeXAttr("/.reserved/raw", a);
      }
      nn.setQuota("/", HdfsConstants.QUOTA_RESET, HdfsConstants.QUOTA_RESET, null);
      for (StorageType t : StorageType.getTypesSupportingQuota()) {
        nn.setQuota("/", HdfsConstants.QUOTA_DONT_SET, HdfsConstants.QUOTA_RESET, t);
      }
      nn.setTimes("/", 1, 1);
      slots.clear();
      return "ok";
    }
    case "mkdirs":
      return "" + nn.mkdirs(path(f[2]), perm(f[3]), f[4].equals("true"));
    case "create": {
      EnumSet<CreateFlag> flags = EnumSet.noneOf(CreateFlag.class);
      if (f[5].contains("c")) {
        flags.add(CreateFlag.CREATE);
      }
      if (f[5].contains("o")) {
        flags.add(CreateFlag.OVERWRITE);
      }
      HdfsFileStatus s = nn.create(path(f[3]), perm(f[4]), f[9], new EnumSetWritable<>(flags, CreateFlag.class), f[6].equals("true"),
          Short.parseShort(f[7]), Long.parseLong(f[8]), CryptoProtocolVersion.supported(), null, null);
      slots.put(f[2], new Slot());
      slot(f[2]).id = s.getFileId();
      slot(f[2]).size = s.getBlockSize();
      return status(s);
    }
    case "append": {
      EnumSet<CreateFlag> flags = EnumSet.of(CreateFlag.APPEND);
      if (f[4].equals("new")) {
        flags.add(CreateFlag.NEW_BLOCK);
      }
      LastBlockWithStatus r = nn.append(path(f[3]), f[5], new EnumSetWritable<>(flags));
      Slot slot = new Slot();
      slots.put(f[2], slot);
      slot.id = r.getFileStatus().getFileId();
      slot.size = r.getFileStatus().getBlockSize();
      slot.last = r.getLastBlock() == null ? null : r.getLastBlock().getBlock();
      return status(r.getFileStatus()) + " " + located(r.getLastBlock());
    }
    case "addBlock": {
      Slot slot = slot(f[2]);
      LocatedBlock b = nn.addBlock(path(f[3]), f[4], slot.said(f[6]), null, f[5].equals("id") ? slot.id : 0, null, null);
      slot.last = b.getBlock();
      slot.awaited = true;
      return located(b);
    }
    case "received": {
      Slot slot = slot(f[2]);
      if (!slot.awaited) {
        return "none";
      }
      slot.awaited = false;
      Long told = replicas.get(slot.last.getBlockId()); // two writers may have been given one block
      slot.last.setNumBytes(told != null ? told : slot.fit(f[3]));
      received(slot.last.getLocalBlock());
      return "ok";
    }
    case "grow": {
      Slot slot = slot(f[2]);
      if (slot.last == null) {
        return "none";
      }
      LocatedBlock next = nn.updateBlockForPipeline(slot.last, f[3]);
      ExtendedBlock b = new ExtendedBlock(next.getBlock());
      b.setNumBytes(slot.fit(f[4]));
      nn.updatePipeline(f[3], slot.last, b, new DatanodeID[] {datanode}, new String[] {storage.getStorageID()});
      slot.last = b;
      received(b.getLocalBlock());
      return "ok";
    }
    case "abandon": {
      Slot slot = slot(f[2]);
      if (slot.last == null) {
        return "none";
      }
      nn.abandonBlock(slot.last, f[5].equals("id") ? slot.id : 0, path(f[3]), f[4]);
      slot.last = null;
      slot.awaited = false;
      return "ok";
    }
    case "fsync":
      nn.fsync(path(f[3]), f[5].equals("id") ? slot(f[2]).id : 0, f[4], Long.parseLong(f[6]));
      return "ok";
    case "complete": {
      Slot slot = slot(f[2]);
      return "" + nn.complete(path(f[3]), f[4], slot.said(f[6]), f[5].equals("id") ? slot.id : 0);
    }
    case "rename":
      return "" + nn.rename(path(f[2]), path(f[3]));
    case "rename2":
      nn.rename2(path(f[2]), path(f[3]), f[4].equals("true") ? Options.Rename.OVERWRITE : Options.Rename.NONE);
      return "ok";
    case "delete":
      return "" + nn.delete(path(f[2]), f[3].equals("true"));
    case "setPermission":
      nn.setPermission(path(f[2]), perm(f[3]));
      return "ok";
    case "setOwner":
      nn.setOwner(path(f[2]), f[3].equals("-") ? null : f[3], f[4].equals("-") ? null : f[4]);
      return "ok";
    case "setReplication":
      return "" + nn.setReplication(path(f[2]), Short.parseShort(f[3]));
    case "setTimes":
      nn.setTimes(path(f[2]), Long.parseLong(f[3]), Long.parseLong(f[4]));
      return "ok";
    case "truncate":
      return "" + nn.truncate(path(f[2]), Long.parseLong(f[3]), f[4]);
    case "getFileInfo":
      return status(nn.getFileInfo(path(f[2])));
    case "getFileLinkInfo":
      return status(nn.getFileLinkInfo(path(f[2])));
    case "getLocatedFileInfo":
      return status(nn.getLocatedFileInfo(path(f[2]), false));
    case "learn": {
      HdfsFileStatus s = nn.getFileInfo(path(f[3]));
      if (s != null) {
        slots.put(f[2], new Slot());
        slot(f[2]).id = s.getFileId();
        slot(f[2]).size = s.getBlockSize();
      }
      return status(s);
    }
    case "getListing":
      return listing(nn.getListing(path(f[2]), f[3].getBytes(StandardCharsets.UTF_8), f[4].equals("true")));
    case "getBatchedListing": {
      List<String> paths = new ArrayList<>();
      for (String p : Arrays.copyOfRange(f, 4, f.length)) {
        paths.add(path(p));
      }
      BatchedDirectoryListing b = nn.getBatchedListing(paths.toArray(new String[0]), f[2].getBytes(StandardCharsets.UTF_8), f[3].equals("true"));
      StringBuilder out = new StringBuilder();
      for (HdfsPartialListing l : b.getListings()) {
        out.append('[').append(l.getParentIdx());
        if (l.getException() != null) {
          out.append(" !").append(l.getException().getClassName());
        } else {
          for (HdfsFileStatus s : l.getPartialListing()) {
            out.append(' ').append(s.getLocalName()).append('=').append(status(s));
          }
        }
        out.append(']');
      }
      return out.append(b.hasMore() ? " more" : " end").toString();
    }
    case "getContentSummary": {
      ContentSummary s = nn.getContentSummary(path(f[2]));
      return s.getLength() + " " + s.getFileCount() + " " + s.getDirectoryCount() + " " + s.getSpaceConsumed() + " " + s.getQuota() + " " + s.getSpaceQuota() + types(s);
    }
    case "concat": {
      String[] sources = new String[f.length - 3];
      for (int i = 3; i < f.length; i++) {
        sources[i - 3] = path(f[i]);
      }
      nn.concat(path(f[2]), sources);
      return "ok";
    }
    case "getBlockLocations":
      return located(nn.getBlockLocations(path(f[2]), Long.parseLong(f[3]), Long.parseLong(f[4])));
    case "isFileClosed":
      return "" + nn.isFileClosed(path(f[2]));
    case "getPreferredBlockSize":
      return "" + nn.getPreferredBlockSize(path(f[2]));
    case "recoverLease":
      return "" + nn.recoverLease(path(f[2]), f[3]);
    case "checkAccess":
      nn.checkAccess(path(f[2]), FsAction.getFsAction(f[3]));
      return "ok";
    case "getEnclosingRoot":
      return "" + nn.getEnclosingRoot(path(f[2])).toUri().getPath();
    case "listOpenFiles": {
      BatchedEntries<OpenFileEntry> b = nn.listOpenFiles(0, EnumSet.of(OpenFilesIterator.OpenFilesType.ALL_OPEN_FILES), path(f[2]));
      List<String> lines = new ArrayList<>();
      for (int i = 0; i < b.size(); i++) {
        lines.add(b.get(i).getFilePath() + ":" + b.get(i).getClientName());
      }
      return lines + (b.hasMore() ? " more" : "");
    }
    case "setAcl":
      nn.setAcl(path(f[2]), AclEntry.parseAclSpec(f[3], true));
      return "ok";
    case "modifyAclEntries":
      nn.modifyAclEntries(path(f[2]), AclEntry.parseAclSpec(f[3], true));
      return "ok";
    case "removeAclEntries":
      nn.removeAclEntries(path(f[2]), AclEntry.parseAclSpec(f[3], true));
      return "ok";
    case "removeDefaultAcl":
      nn.removeDefaultAcl(path(f[2]));
      return "ok";
    case "removeAcl":
      nn.removeAcl(path(f[2]));
      return "ok";
    case "getAclStatus": {
      AclStatus s = nn.getAclStatus(path(f[2]));
      StringBuilder out = new StringBuilder(s.getOwner() + "," + s.getGroup() + "," + s.isStickyBit() + ",");
      out.append(s.getPermission() == null ? "null" : Integer.toOctalString(s.getPermission().toShort()));
      for (AclEntry e : s.getEntries()) {
        out.append(' ').append(e.toStringStable());
      }
      return out.toString();
    }
    case "getStoragePolicies": {
      StringBuilder out = new StringBuilder();
      for (BlockStoragePolicy p : nn.getStoragePolicies()) {
        out.append(p).append(' ');
      }
      return out.toString();
    }
    case "getStoragePolicy":
      return "" + nn.getStoragePolicy(path(f[2]));
    case "setStoragePolicy":
      nn.setStoragePolicy(path(f[2]), f[3]);
      return "ok";
    case "unsetStoragePolicy":
      nn.unsetStoragePolicy(path(f[2]));
      return "ok";
    case "satisfyStoragePolicy":
      nn.satisfyStoragePolicy(path(f[2]));
      return "ok";
    case "setQuota":
      nn.setQuota(path(f[2]), Long.parseLong(f[3]), Long.parseLong(f[4]), f[5].equals("-") ? null : StorageType.valueOf(f[5]));
      return "ok";
    case "getQuotaUsage": {
      QuotaUsage u = nn.getQuotaUsage(path(f[2]));
      return u.getFileAndDirectoryCount() + " " + u.getSpaceConsumed() + " " + u.getQuota() + " " + u.getSpaceQuota() + types(u);
    }
    case "setXAttr": {
      EnumSet<XAttrSetFlag> flags = EnumSet.noneOf(XAttrSetFlag.class);
      if (f[5].contains("c")) {
        flags.add(XAttrSetFlag.CREATE);
      }
      if (f[5].contains("r")) {
        flags.add(XAttrSetFlag.REPLACE);
      }
      nn.setXAttr(path(f[2]), xattr(f[3], f[4]), flags);
      return "ok";
    }
    case "getXAttrs": {
      List<XAttr> names = new ArrayList<>();
      for (String name : Arrays.copyOfRange(f, 3, f.length)) {
        names.add(xattr(name, "-"));
      }
      return xattrs(nn.getXAttrs(path(f[2]), names));
    }
    case "listXAttrs":
      return xattrs(nn.listXAttrs(path(f[2])));
    case "removeXAttr":
      nn.removeXAttr(path(f[2]), xattr(f[3], "-"));
      return "ok";
    case "msync":
      nn.msync();
      return "ok";
    case "beat":
      beat();
      return "ok";
    case "tree": {
      StringBuilder out = new StringBuilder("/=" + status(nn.getFileInfo("/")));
      tree(nn, "/", out);
      return out.toString();
    }
    default:
      throw new IllegalArgumentException(f[1]);
    }
  }

  /** What is told of the kinds of storage, if anything is. */
  private static String types(QuotaUsage u) {
    if (!u.isTypeQuotaSet() && !u.isTypeConsumedAvailable()) {
      return "";
    }
    StringBuilder out = new StringBuilder();
    for (StorageType t : StorageType.getTypesSupportingQuota()) {
      out.append(' ').append(t).append('=').append(u.getTypeConsumed(t)).append('/').append(u.getTypeQuota(t));
    }
    return out.toString();
  }

  /** A value is a letter and how often it comes; "-" is none. */
  private static XAttr xattr(String name, String value) {
    int dot = name.indexOf('.');
    XAttr.Builder b = new XAttr.Builder().setNameSpace(XAttr.NameSpace.valueOf(name.substring(0, dot).toUpperCase())).setName(name.substring(dot + 1));
    if (!value.equals("-")) {
      byte[] bytes = new byte[Integer.parseInt(value.substring(1))];
      Arrays.fill(bytes, (byte) value.charAt(0));
      b.setValue(bytes);
    }
    return b.build();
  }

  private static String xattrs(List<XAttr> list) {
    StringBuilder out = new StringBuilder();
    for (XAttr a : list) {
      byte[] v = a.getValue();
      out.append(out.length() == 0 ? "" : " ").append(a.getNameSpace().toString().toLowerCase()).append('.').append(a.getName());
      out.append('=').append(v == null ? "-" : v.length == 0 ? "empty" : (char) v[0] + "" + v.length);
    }
    return out.toString();
  }

  private static FsPermission perm(String octal) {
    int colon = octal.indexOf(':');
    if (colon >= 0) { // what it was before the client's umask follows
      return FsCreateModes.create(perm(octal.substring(0, colon)), perm(octal.substring(colon + 1)));
    }
    return new FsPermission(Short.parseShort(octal, 8));
  }

  private static String time(long t) {
    return t < 1000000000000L ? "" + t : "now";
  }

  private static String status(HdfsFileStatus s) {
    if (s == null) {
      return "null";
    }
    StringBuilder out = new StringBuilder();
    out.append(s.isDirectory() ? 'd' : 'f').append(Integer.toOctalString(s.getPermission().toShort()));
    out.append(',').append(s.getOwner()).append(',').append(s.getGroup()).append(',').append(s.getLen());
    out.append(',').append(s.getReplication()).append(',').append(s.getBlockSize()).append(',').append(s.getChildrenNum());
    out.append(',').append(time(s.getModificationTime())).append(',').append(time(s.getAccessTime()));
    if (s.getStoragePolicy() != 0) {
      out.append(",policy").append(s.getStoragePolicy());
    }
    if (s.getPermission().getAclBit()) {
      out.append('+');
    }
    if (s instanceof HdfsLocatedFileStatus && ((HdfsLocatedFileStatus) s).getLocatedBlocks() != null) {
      out.append(',').append(located(((HdfsLocatedFileStatus) s).getLocatedBlocks()));
    }
    return out.toString();
  }

  private static String listing(DirectoryListing l) {
    if (l == null) {
      return "null";
    }
    StringBuilder out = new StringBuilder();
    for (HdfsFileStatus s : l.getPartialListing()) {
      out.append(s.getLocalName()).append('=').append(status(s)).append(' ');
    }
    return out.append(l.getRemainingEntries()).toString();
  }

  private static String located(LocatedBlock b) {
    if (b == null) {
      return "null";
    }
    return b.getStartOffset() + "+" + b.getBlockSize() + "x" + b.getLocations().length + (b.isCorrupt() ? "corrupt" : "");
  }

  private static String located(LocatedBlocks l) {
    StringBuilder out = new StringBuilder("{" + l.getFileLength());
    for (LocatedBlock b : l.getLocatedBlocks()) {
      out.append(' ').append(located(b));
    }
    out.append(" last ").append(located(l.getLastLocatedBlock()));
    return out.append(l.isUnderConstruction() ? " open" : "").append(l.isLastBlockComplete() ? "" : " incomplete").append('}').toString();
  }

  private static List<HdfsFileStatus> all(ClientProtocol nn, String dir) throws IOException {
    List<HdfsFileStatus> out = new ArrayList<>();
    byte[] after = HdfsFileStatus.EMPTY_NAME;
    for (;;) {
      DirectoryListing l = nn.getListing(dir, after, false);
      if (l == null) {
        return out;
      }
      out.addAll(Arrays.asList(l.getPartialListing()));
      if (!l.hasMore()) {
        return out;
      }
      after = l.getLastName();
    }
  }

  private static void tree(ClientProtocol nn, String dir, StringBuilder out) throws IOException {
    for (HdfsFileStatus s : all(nn, dir)) {
      String path = (dir.equals("/") ? "" : dir) + "/" + s.getLocalName();
      out.append(' ').append(path).append('=').append(status(s));
      if (s.isDirectory()) {
        tree(nn, path, out);
      }
    }
  }

  private void received(Block b) throws IOException {
    replicas.put(b.getBlockId(), b.getNumBytes());
    server.blockReceivedAndDeleted(datanode, pool, new StorageReceivedDeletedBlocks[] {
        new StorageReceivedDeletedBlocks(storage, new ReceivedDeletedBlockInfo[] {
            new ReceivedDeletedBlockInfo(b, ReceivedDeletedBlockInfo.BlockStatus.RECEIVED_BLOCK, null)})});
    blocks.flushBlockOps(); // reports are taken in by a thread of the NameNode's own
  }

  /**
   * beat sends a heartbeat and does the recoveries that it is answered with. A
   * recovery may be refused: then the file stays open.
   */
  private void beat() throws IOException {
    long used = 1L << 20, capacity = 1L << 45;
    DatanodeCommand[] commands = server.sendHeartbeat(datanode,
        new StorageReport[] {new StorageReport(storage, false, capacity, used, capacity - used, used, 0L)},
        0L, 0L, 0, 0, 0, null, true, SlowPeerReports.EMPTY_REPORT, SlowDiskReports.EMPTY_REPORT).getCommands();
    for (DatanodeCommand c : commands) {
      if (!(c instanceof BlockRecoveryCommand)) {
        continue;
      }
      for (BlockRecoveryCommand.RecoveringBlock r : ((BlockRecoveryCommand) c).getRecoveringBlocks()) {
        try {
          recover(r);
        } catch (IOException e) {
          System.err.println("recovery refused: " + e.getMessage());
        }
      }
    }
  }

  private void recover(BlockRecoveryCommand.RecoveringBlock r) throws IOException {
    // A copy: without a wire between us, the command holds the NameNode's own block.
    Block b = new Block(r.getBlock().getLocalBlock());
    long generation = r.getNewGenerationStamp();
    Long length = replicas.get(b.getBlockId());
    if (length == null) {
      server.commitBlockSynchronization(new ExtendedBlock(pool, b), generation, 0, true, true, new DatanodeID[0], new String[0]);
      return;
    }
    if (r.getNewBlock() != null) {
      length = r.getNewBlock().getNumBytes();
    }
    // As a DataNode does, tell of the new replica before the recovery ends.
    received(new Block(b.getBlockId(), length, generation));
    server.commitBlockSynchronization(new ExtendedBlock(pool, b), generation, length, true, false,
        new DatanodeID[] {datanode}, new String[] {storage.getStorageID()});
  }
}
