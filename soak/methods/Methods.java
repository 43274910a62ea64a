// Calls the methods of HDFS's protocols by which operators and applications ask for what is
// neither reading nor writing, in turn as the superuser and as somebody else, and prints one line
// for each: the result, or the exception's class and text. The first argument is the URI of a
// file system, or the directory for one of Apache's own (MiniDFSCluster). What differs from run to run
// (ids, times, ports) is left out.
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URI;
import java.security.PrivilegedExceptionAction;
import java.util.*;
import java.util.concurrent.Callable;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.crypto.CryptoProtocolVersion;
import org.apache.hadoop.fs.*;
import org.apache.hadoop.fs.BatchedRemoteIterator.BatchedEntries;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.*;
import org.apache.hadoop.hdfs.client.*;
import org.apache.hadoop.hdfs.protocol.*;
import org.apache.hadoop.hdfs.protocol.HdfsConstants.*;
import org.apache.hadoop.hdfs.security.token.delegation.DelegationTokenIdentifier;
import org.apache.hadoop.io.*;
import org.apache.hadoop.io.erasurecode.ECSchema;
import org.apache.hadoop.ipc.RPC;
import org.apache.hadoop.ipc.*;
import org.apache.hadoop.security.*;
import org.apache.hadoop.security.token.Token;
import org.apache.hadoop.security.protocolPB.*;
import org.apache.hadoop.security.authorize.RefreshAuthorizationPolicyProtocol;
import org.apache.hadoop.tools.GetUserMappingsProtocol;
import org.apache.hadoop.hdfs.server.namenode.NameNode;

public class Methods {
  static Configuration conf;
  static URI uri;

  static String text(Throwable t) {
    String name = t.getClass().getName(), said = String.valueOf(t.getMessage());
    if (t instanceof RemoteException) {
      name = ((RemoteException) t).getClassName();
    }
    int stack = said.indexOf("\n\tat ");
    if (stack >= 0) said = said.substring(0, stack);
    return "!" + name + ": " + said.stripTrailing().replace("\n", "\\n");
  }

  static String mask(String s) {
    return s.replaceAll("DFSClient_[A-Za-z0-9_-]+", "CLIENT").replaceAll("127\\.0\\.0\\.1:\\d+", "ADDRESS").replaceAll("localhost/ADDRESS", "ADDRESS");
  }

  static void say(String what, Callable<Object> call) {
    String answer;
    try {
      answer = String.valueOf(call.call());
    } catch (Throwable t) {
      answer = text(t);
    }
    System.out.println(what + "\t" + mask(answer));
  }

  interface Ask { Object of(ClientProtocol p) throws Exception; }

  static ClientProtocol root, alice;

  static ClientProtocol as(String user) throws Exception {
    return UserGroupInformation.createRemoteUser(user).doAs((PrivilegedExceptionAction<ClientProtocol>) () ->
        NameNodeProxiesClient.createNonHAProxyWithClientProtocol(DFSUtilClient.getNNAddress(uri), conf, UserGroupInformation.getCurrentUser(), false, null));
  }

  // both asks as somebody else first, so that what he may not do has no effect.
  static void both(String what, Ask ask) {
    say(what + " alice", () -> ask.of(alice));
    say(what + " root", () -> ask.of(root));
  }

  static String classOf(Callable<Object> call) {
    try {
      return String.valueOf(call.call());
    } catch (Throwable t) {
      return text(t).replaceAll(":.*", "");
    }
  }

  static Object ok(Object ignored) { return "ok"; }

  static String open(BatchedEntries<OpenFileEntry> b) {
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < b.size(); i++) out.append(b.get(i).getFilePath()).append(' ').append(b.get(i).getClientName()).append(' ').append(b.get(i).getClientMachine()).append("; ");
    return out + (b.hasMore() ? "more" : "all");
  }

  static int blocks(HdfsFileStatus s) {
    LocatedBlocks b = s instanceof HdfsLocatedFileStatus ? ((HdfsLocatedFileStatus) s).getLocatedBlocks() : null;
    return b == null ? -1 : b.getLocatedBlocks().size();
  }

  static String batched(BatchedDirectoryListing l) throws IOException {
    StringBuilder out = new StringBuilder();
    for (HdfsPartialListing p : l.getListings()) {
      out.append(p.getParentIdx()).append(": ");
      if (p.getException() != null) out.append(text(p.getException()));
      else for (HdfsFileStatus s : p.getPartialListing()) {
        out.append(s.getLocalName().isEmpty() ? "(itself)" : s.getLocalName()).append(' ').append(s.getLen()).append(' ').append(blocks(s)).append(", ");
      }
      out.append("; ");
    }
    return out + (l.hasMore() ? "more" : "all");
  }

  static String policy(ErasureCodingPolicy p) {
    return p == null ? "none" : p.getName() + " " + p.getId() + " " + p.getCellSize();
  }

  static void policies() {
    both("getErasureCodingPolicies", p -> {
      StringBuilder out = new StringBuilder();
      for (ErasureCodingPolicyInfo i : p.getErasureCodingPolicies()) out.append(policy(i.getPolicy())).append(' ').append(i.getState()).append("; ");
      return out;
    });
    for (String path : new String[] {"/m/d", "/m/f", "/m/absent", "/m/f/below", "relative"}) both("getErasureCodingPolicy " + path, p -> policy(p.getErasureCodingPolicy(path)));
    for (String path : new String[] {"/m/d", "/m/f", "/m/absent"}) {
      both("setErasureCodingPolicy " + path + " XOR-2-1-1024k", p -> { p.setErasureCodingPolicy(path, "XOR-2-1-1024k"); return "ok"; });
      both("unsetErasureCodingPolicy " + path, p -> { p.unsetErasureCodingPolicy(path); return "ok"; });
    }
    both("setErasureCodingPolicy no such", p -> { p.setErasureCodingPolicy("/m/d", "nothing"); return "ok"; });
    both("disableErasureCodingPolicy", p -> { p.disableErasureCodingPolicy("XOR-2-1-1024k"); return "ok"; });
    both("disableErasureCodingPolicy no such", p -> { p.disableErasureCodingPolicy("nothing"); return "ok"; });
    both("enableErasureCodingPolicy no such", p -> { p.enableErasureCodingPolicy("nothing"); return "ok"; });
    both("removeErasureCodingPolicy no such", p -> { p.removeErasureCodingPolicy("nothing"); return "ok"; });
    both("removeErasureCodingPolicy built in", p -> { p.removeErasureCodingPolicy("XOR-2-1-1024k"); return "ok"; });
    both("addErasureCodingPolicies none", p -> Arrays.toString(p.addErasureCodingPolicies(new ErasureCodingPolicy[0])));
    both("getECTopologyResultForPolicies", p -> { ECTopologyVerifierResult r = p.getECTopologyResultForPolicies("XOR-2-1-1024k"); return r.isSupported() + " " + r.getResultMessage(); });
    both("getECTopologyResultForPolicies no such", p -> { ECTopologyVerifierResult r = p.getECTopologyResultForPolicies("nothing"); return r.isSupported() + " " + r.getResultMessage(); });
    both("getECTopologyResultForPolicies none", p -> { ECTopologyVerifierResult r = p.getECTopologyResultForPolicies(); return r.isSupported() + " " + r.getResultMessage(); });
    both("create with an erasure coding policy", p -> ok(p.create("/m/d/ec", FsPermission.getFileDefault(), "c", new EnumSetWritable<>(EnumSet.of(CreateFlag.CREATE)), true, (short) 3, 1 << 20, CryptoProtocolVersion.supported(), "XOR-2-1-1024k", null)));
  }

  static void zones() {
    both("listEncryptionZones", p -> p.listEncryptionZones(0).size() + " " + p.listEncryptionZones(0).hasMore());
    for (String path : new String[] {"/m/d", "/m/f", "/m/absent", "/m/f/below", "/"}) {
      both("getEZForPath " + path, p -> p.getEZForPath(path));
      both("createEncryptionZone " + path, p -> { p.createEncryptionZone(path, "key"); return "ok"; });
      both("reencryptEncryptionZone " + path, p -> { p.reencryptEncryptionZone(path, HdfsConstants.ReencryptAction.START); return "ok"; });
    }
    both("listReencryptionStatus", p -> p.listReencryptionStatus(0).size() + " " + p.listReencryptionStatus(0).hasMore());
  }

  static void snapshots() {
    both("getSnapshottableDirListing", p -> Arrays.toString(p.getSnapshottableDirListing()));
    for (String path : new String[] {"/m/d", "/m/f", "/m/absent", "/m/f/below", "/"}) {
      both("getSnapshotListing " + path, p -> Arrays.toString(p.getSnapshotListing(path)));
      both("createSnapshot " + path, p -> p.createSnapshot(path, "s"));
      both("createSnapshot unnamed " + path, p -> p.createSnapshot(path, null));
      both("renameSnapshot " + path, p -> { p.renameSnapshot(path, "s", "t"); return "ok"; });
      both("deleteSnapshot " + path, p -> { p.deleteSnapshot(path, "s"); return "ok"; });
      both("disallowSnapshot " + path, p -> { p.disallowSnapshot(path); return "ok"; });
      both("getSnapshotDiffReport " + path, p -> p.getSnapshotDiffReport(path, "s", "t"));
      both("getSnapshotDiffReportListing " + path, p -> p.getSnapshotDiffReportListing(path, "s", "t", new byte[0], -1));
    }
    for (String path : new String[] {"/m/f", "/m/absent"}) both("allowSnapshot " + path, p -> { p.allowSnapshot(path); return "ok"; });
    say("createSnapshot bad name", () -> root.createSnapshot("/m/d", "a/b"));
    say("renameSnapshot no name", () -> { root.renameSnapshot("/m/d", "s", ""); return "ok"; });
    say("deleteSnapshot no name", () -> { root.deleteSnapshot("/m/d", ""); return "ok"; });
  }

  static void caches() {
    both("listCachePools", p -> p.listCachePools("").size() + " " + p.listCachePools("").hasMore());
    both("listCacheDirectives", p -> p.listCacheDirectives(0, new CacheDirectiveInfo.Builder().build()).size());
    both("listCacheDirectives id", p -> p.listCacheDirectives(0, new CacheDirectiveInfo.Builder().setId(7L).build()).size());
    both("listCacheDirectives pool", p -> p.listCacheDirectives(0, new CacheDirectiveInfo.Builder().setPool("nothing").build()).size());
    both("listCacheDirectives path", p -> p.listCacheDirectives(0, new CacheDirectiveInfo.Builder().setPath(new Path("/m/d")).build()).size());
    both("addCacheDirective no such pool", p -> p.addCacheDirective(new CacheDirectiveInfo.Builder().setPool("nothing").setPath(new Path("/m/f")).build(), EnumSet.noneOf(CacheFlag.class)));
    both("addCacheDirective no pool", p -> p.addCacheDirective(new CacheDirectiveInfo.Builder().setPath(new Path("/m/f")).build(), EnumSet.noneOf(CacheFlag.class)));
    both("modifyCacheDirective", p -> { p.modifyCacheDirective(new CacheDirectiveInfo.Builder().setId(7L).build(), EnumSet.noneOf(CacheFlag.class)); return "ok"; });
    both("modifyCacheDirective no id", p -> { p.modifyCacheDirective(new CacheDirectiveInfo.Builder().build(), EnumSet.noneOf(CacheFlag.class)); return "ok"; });
    both("removeCacheDirective", p -> { p.removeCacheDirective(7); return "ok"; });
    both("removeCacheDirective -1", p -> { p.removeCacheDirective(-1); return "ok"; });
    both("modifyCachePool", p -> { p.modifyCachePool(new CachePoolInfo("nothing")); return "ok"; });
    both("modifyCachePool no name", p -> { p.modifyCachePool(new CachePoolInfo("")); return "ok"; });
    both("removeCachePool", p -> { p.removeCachePool("nothing"); return "ok"; });
    both("removeCachePool no name", p -> { p.removeCachePool(""); return "ok"; });
    both("addCachePool no name", p -> { p.addCachePool(new CachePoolInfo("")); return "ok"; });
  }

  static void others() throws Exception {
    both("rollingUpgrade QUERY", p -> p.rollingUpgrade(RollingUpgradeAction.QUERY));
    both("rollingUpgrade FINALIZE", p -> p.rollingUpgrade(RollingUpgradeAction.FINALIZE));
    both("finalizeUpgrade", p -> { p.finalizeUpgrade(); return "ok"; });
    both("upgradeStatus", p -> p.upgradeStatus());
    both("restoreFailedStorage check", p -> p.restoreFailedStorage("check"));
    both("restoreFailedStorage false", p -> p.restoreFailedStorage("false"));
    both("rollEdits", p -> p.rollEdits() > 0);
    say("setBalancerBandwidth alice", () -> { alice.setBalancerBandwidth(1); return "ok"; });
    both("getCurrentEditLogTxid", p -> p.getCurrentEditLogTxid() > 0);
    both("getHAServiceState", p -> p.getHAServiceState());
    both("getDelegationToken", p -> p.getDelegationToken(new Text("root")));
    both("renewDelegationToken", p -> p.renewDelegationToken(new Token<DelegationTokenIdentifier>(new byte[] {1}, new byte[] {2}, new Text("HDFS_DELEGATION_TOKEN"), new Text("s"))));
    both("cancelDelegationToken", p -> { p.cancelDelegationToken(new Token<DelegationTokenIdentifier>(new byte[] {1}, new byte[] {2}, new Text("HDFS_DELEGATION_TOKEN"), new Text("s"))); return "ok"; });
    for (String path : new String[] {"/m/d", "/m/f", "/m/absent", "/m/f/below"}) both("getLinkTarget " + path, p -> p.getLinkTarget(path));
    both("getServerDefaults", p -> { FsServerDefaults d = p.getServerDefaults(); return d.getBlockSize() + " " + d.getBytesPerChecksum() + " " + d.getWritePacketSize() + " " + d.getReplication() + " " + d.getFileBufferSize() + " " + d.getEncryptDataTransfer() + " " + d.getTrashInterval() + " " + d.getChecksumType() + " '" + d.getKeyProviderUri() + "' " + d.getDefaultStoragePolicyId() + " " + d.getSnapshotTrashRootEnabled(); });
    both("getDataEncryptionKey", p -> p.getDataEncryptionKey());
    both("createSymlink", p -> { p.createSymlink("/m/f", "/m/d/link", FsPermission.getDirDefault(), false); return "ok"; });
    both("metaSave", p -> { p.metaSave("methods-metasave.txt"); return "ok"; });
    both("saveNamespace", p -> p.saveNamespace(0, 0));
    both("refreshNodes", p -> { p.refreshNodes(); return "ok"; });
    both("satisfyStoragePolicy /m/nothing", p -> { p.satisfyStoragePolicy("/m/nothing"); return "ok"; });
    both("satisfyStoragePolicy /m/f", p -> { p.satisfyStoragePolicy("/m/f"); return "ok"; });
    both("getSlowDatanodeReport", p -> p.getSlowDatanodeReport().length);
  }

  static void lists() throws Exception {
    EnumSet<OpenFilesIterator.OpenFilesType> all = EnumSet.of(OpenFilesIterator.OpenFilesType.ALL_OPEN_FILES), leaving = EnumSet.of(OpenFilesIterator.OpenFilesType.BLOCKING_DECOMMISSION);
    for (String path : new String[] {"/", "/m/d", "/m/ope", "/m/open", "/m//open/", "", "relative"}) {
      both("listOpenFiles " + path, p -> open(p.listOpenFiles(0, all, path)));
      both("listOpenFiles blocking decommission " + path, p -> open(p.listOpenFiles(0, leaving, path)));
    }
    both("listOpenFiles both", p -> open(p.listOpenFiles(0, EnumSet.allOf(OpenFilesIterator.OpenFilesType.class), "/")));
    both("listOpenFiles no type", p -> open(p.listOpenFiles(0, EnumSet.noneOf(OpenFilesIterator.OpenFilesType.class), "/")));
    both("listOpenFiles after all", p -> open(p.listOpenFiles(Long.MAX_VALUE, all, "/")));
    for (String path : new String[] {"/", "/m/nothing", "relative"}) for (String cookie : new String[] {null, "0", "17", "-3", "abc"}) both("listCorruptFileBlocks " + path + " " + cookie, p -> { CorruptFileBlocks c = p.listCorruptFileBlocks(path, cookie); return Arrays.toString(c.getFiles()) + " " + c.getCookie(); });
    String[][] sets = {{"/m"}, {"/m/d", "/m/f", "/m/absent", "/m/f/below", "/m/many"}, {"relative"}, {"/m/secret", "/m"}};
    for (String[] set : sets) for (boolean locations : new boolean[] {false, true}) both("getBatchedListing " + Arrays.toString(set) + " " + locations, p -> {
      byte[] after = new byte[0];
      StringBuilder out = new StringBuilder();
      for (int i = 0; i < 20; i++) {
        BatchedDirectoryListing l = p.getBatchedListing(set, after, locations);
        out.append(batched(l)).append(" | ");
        if (!l.hasMore()) break;
        after = l.getStartAfter();
      }
      return out;
    });
    // What is said of a bad key is Java's own affair.
    both("getBatchedListing strange key", p -> classOf(() -> p.getBatchedListing(new String[] {"/m"}, new byte[] {1, 2, 3}, false)));
    both("getBatchedListing another's key", p -> classOf(() -> p.getBatchedListing(new String[] {"/m"}, p.getBatchedListing(new String[] {"/m/many", "/m"}, new byte[0], false).getStartAfter(), false)));
    String[] many = new String[101];
    Arrays.fill(many, "/m/d");
    both("getBatchedListing 101", p -> batched(p.getBatchedListing(many, new byte[0], false)));
    for (String path : new String[] {"/", "/.reserved", "/.reserved/raw", "/.reserved/raw/m", "/.reserved/raw/m/f", "/.reserved/.inodes", "/.reserved/other", "/m/.snapshot", "/m/d/.snapshot", "/m/nothing/.snapshot", "/m/d/.snapshot/s", "/.snapshot"}) {
      both("getFileInfo " + path, p -> { HdfsFileStatus s = p.getFileInfo(path); return s == null ? "none" : s.isDirectory() + " " + s.getLen() + " " + s.getPermission() + " " + s.getOwner(); });
      both("getListing " + path, p -> { DirectoryListing l = p.getListing(path, new byte[0], false); if (l == null) return "none"; StringBuilder o = new StringBuilder(); for (HdfsFileStatus s : l.getPartialListing()) o.append(s.getLocalName()).append(' '); return o; });
      both("getContentSummary " + path, p -> { ContentSummary s = p.getContentSummary(path); return s.getLength() + " " + s.getFileCount() + " " + s.getDirectoryCount(); });
      both("delete " + path, p -> path.endsWith("/f") ? "" : p.delete(path, false));
      both("mkdirs " + path, p -> p.mkdirs(path, FsPermission.getDirDefault(), true));
      both("setPermission " + path, p -> { p.setPermission(path, new FsPermission((short) 0755)); return "ok"; });
      both("rename from " + path, p -> p.rename(path, "/m/moved/renamed"));
      both("rename to " + path, p -> p.rename("/m/moved", path));
    }
  }

  static void admins() throws Exception {
    for (String user : new String[] {"alice", "root"}) {
      UserGroupInformation.createRemoteUser(user).doAs((PrivilegedExceptionAction<Void>) () -> {
        InetSocketAddress nn = DFSUtilClient.getNNAddress(uri);
        GetUserMappingsProtocol maps = NameNodeProxies.createNonHAProxy(conf, nn, GetUserMappingsProtocol.class, UserGroupInformation.getCurrentUser(), false).getProxy();
        say("getGroupsForUser root " + user, () -> Arrays.toString(maps.getGroupsForUser("root")));
        say("getGroupsForUser nobody knows " + user, () -> Arrays.toString(maps.getGroupsForUser("nobody-knows-this-user")));
        say("getGroupsForUser empty " + user, () -> Arrays.toString(maps.getGroupsForUser("")));
        RefreshUserMappingsProtocol users = NameNodeProxies.createNonHAProxy(conf, nn, RefreshUserMappingsProtocol.class, UserGroupInformation.getCurrentUser(), false).getProxy();
        say("refreshUserToGroupsMappings " + user, () -> { users.refreshUserToGroupsMappings(); return "ok"; });
        say("refreshSuperUserGroupsConfiguration " + user, () -> { users.refreshSuperUserGroupsConfiguration(); return "ok"; });
        RefreshAuthorizationPolicyProtocol acl = NameNodeProxies.createNonHAProxy(conf, nn, RefreshAuthorizationPolicyProtocol.class, UserGroupInformation.getCurrentUser(), false).getProxy();
        say("refreshServiceAcl " + user, () -> { acl.refreshServiceAcl(); return "ok"; });
        RefreshCallQueueProtocol queue = NameNodeProxies.createNonHAProxy(conf, nn, RefreshCallQueueProtocol.class, UserGroupInformation.getCurrentUser(), false).getProxy();
        say("refreshCallQueue " + user, () -> { queue.refreshCallQueue(); return "ok"; });
        RPC.setProtocolEngine(conf, org.apache.hadoop.ipc.protocolPB.GenericRefreshProtocolPB.class, ProtobufRpcEngine2.class);
        org.apache.hadoop.ipc.protocolPB.GenericRefreshProtocolPB pb = RPC.getProxy(org.apache.hadoop.ipc.protocolPB.GenericRefreshProtocolPB.class, RPC.getProtocolVersion(org.apache.hadoop.ipc.protocolPB.GenericRefreshProtocolPB.class), nn, UserGroupInformation.getCurrentUser(), conf, org.apache.hadoop.net.NetUtils.getDefaultSocketFactory(conf), 0);
        GenericRefreshProtocol refresh = new org.apache.hadoop.ipc.protocolPB.GenericRefreshProtocolClientSideTranslatorPB(pb);
        say("refresh nothing " + user, () -> { StringBuilder o = new StringBuilder(); for (RefreshResponse r : refresh.refresh("nothing", new String[] {"a"})) o.append(r.getReturnCode()).append(' ').append(r.getMessage()).append(' ').append(r.getSenderName()).append(';'); return o; });
        return null;
      });
    }
  }

  static void datanodes() throws Exception {
    DatanodeInfo dn = root.getDatanodeReport(DatanodeReportType.LIVE)[0];
    for (String user : new String[] {"alice", "root"}) {
      ClientDatanodeProtocol p = UserGroupInformation.createRemoteUser(user).doAs((PrivilegedExceptionAction<ClientDatanodeProtocol>) () -> DFSUtilClient.createClientDatanodeProtocolProxy(dn, conf, 10000, false));
      say("DataNode getDatanodeInfo " + user, () -> { DatanodeLocalInfo i = p.getDatanodeInfo(); return i.getUptime() >= 0 && !i.getSoftwareVersion().isEmpty(); });
      say("DataNode triggerBlockReport " + user, () -> { p.triggerBlockReport(new BlockReportOptions.Factory().setIncremental(false).build()); return "ok"; });
      say("DataNode triggerBlockReport incremental " + user, () -> { p.triggerBlockReport(new BlockReportOptions.Factory().setIncremental(true).build()); return "ok"; });
      if (user.equals("alice")) say("DataNode refreshNamenodes " + user, () -> { p.refreshNamenodes(); return "ok"; });
      say("DataNode getBlockLocalPathInfo " + user, () -> p.getBlockLocalPathInfo(new ExtendedBlock("BP-1", 5, 1, 1), new Token<>()));
      say("DataNode listReconfigurableProperties " + user, () -> { p.listReconfigurableProperties(); return "ok"; });
      say("DataNode deleteBlockPool no such " + user, () -> { p.deleteBlockPool("BP-1", false); return "ok"; });
      say("DataNode getReconfigurationStatus " + user, () -> p.getReconfigurationStatus().hasTask());
      say("DataNode queryDiskBalancerPlan " + user, () -> { DiskBalancerWorkStatusText(p); return "ok"; });
      say("DataNode getDiskBalancerSetting " + user, () -> p.getDiskBalancerSetting("DiskBalancerBandwidth"));
      say("DataNode submitDiskBalancerPlan " + user, () -> { p.submitDiskBalancerPlan("0", 1, "f", "{}", false); return "ok"; });
      say("DataNode cancelDiskBalancePlan " + user, () -> { p.cancelDiskBalancePlan("0"); return "ok"; });
      say("DataNode getVolumeReport " + user, () -> { List<DatanodeVolumeInfo> v = p.getVolumeReport(); return v.size() > 0 && v.get(0).getStorageType() == StorageType.DISK; });
      say("DataNode evictWriters " + user, () -> { p.evictWriters(); return "ok"; });
      if (user.equals("alice")) say("DataNode shutdownDatanode " + user, () -> { p.shutdownDatanode(false); return "ok"; });
    }
  }

  static void DiskBalancerWorkStatusText(ClientDatanodeProtocol p) throws IOException { p.queryDiskBalancerPlan(); }

  public static void main(String[] args) throws Exception {
    conf = new HdfsConfiguration();
    MiniDFSCluster mini = null;
    if (args[0].startsWith("hdfs:")) {
      uri = URI.create(args[0]);
    } else {
      conf.set("hadoop.proxyuser.nobody.hosts", "*");
      conf.setBoolean("hadoop.security.authorization", args.length > 1 && args[1].equals("authorization"));
      conf.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, args[0]);
      System.setProperty("hadoop.log.dir", args[0]);
      System.setProperty("test.build.data", args[0]);
      conf.setInt(DFSConfigKeys.DFS_LIST_LIMIT, 4);
      conf.set("dfs.namenode.ec.system.default.policy", ""); // no policy is enabled
      conf.setBoolean("dfs.disk.balancer.enabled", false);
      mini = new MiniDFSCluster.Builder(conf).numDataNodes(3).build();
      mini.waitActive();
      java.lang.reflect.Field symlinks = FileSystem.class.getDeclaredField("symlinksEnabled"); // which MiniDFSCluster has turned on
      symlinks.setAccessible(true);
      symlinks.setBoolean(null, false);
      uri = mini.getURI();
    }
    conf.set("fs.defaultFS", uri.toString());
    root = as("root");
    alice = as("alice");
    FileSystem fs = UserGroupInformation.createRemoteUser("root").doAs((PrivilegedExceptionAction<FileSystem>) () -> FileSystem.newInstance(uri, conf));
    fs.mkdirs(new Path("/m/d"));
    fs.mkdirs(new Path("/m/moved"));
    fs.mkdirs(new Path("/m/secret"), new FsPermission((short) 0700));
    fs.setPermission(new Path("/m/secret"), new FsPermission((short) 0700));
    for (int i = 0; i < 7; i++) fs.mkdirs(new Path("/m/many/" + i));
    try (FSDataOutputStream out = fs.create(new Path("/m/f"))) { out.write(new byte[700]); }
    FSDataOutputStream out = fs.create(new Path("/m/open"));
    out.write(new byte[100]);
    out.hflush();
    lists();
    policies();
    zones();
    snapshots();
    caches();
    others();
    admins();
    out.close();
    fs.close();
    datanodes();
    System.out.flush();
    Runtime.getRuntime().halt(0); // the cluster was for this alone
  }
}
