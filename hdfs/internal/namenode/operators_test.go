package namenode

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Open files come in the order of their ids, a batch at a time, with who writes them from
// where; those below a path only.
func TestListOpenFiles(t *testing.T) {
	r := newRig(t, func(c *Config) { c.openFiles = 2 })
	r.mkdirs("root", "/d")
	for i, path := range []string{"/a", "/d/b", "/d/c", "/dd"} {
		must[*hdfspb.CreateResponseProto](t)(r.nn.create(r.as("root"), createRequest(path, fmt.Sprint("client", i), 1, 1)))
	}
	list := func(after int64, path string, types ...hdfspb.OpenFilesTypeProto) (string, int64) {
		resp := must[*hdfspb.ListOpenFilesResponseProto](t)(r.nn.listOpenFiles(r.as("root"), &hdfspb.ListOpenFilesRequestProto{Id: &after, Path: &path, Types: types}))
		var out []string
		for _, e := range resp.GetEntries() {
			out = append(out, e.GetPath()+" "+e.GetClientName()+" "+e.GetClientMachine())
			after = e.GetId()
		}
		if resp.GetHasMore() {
			out = append(out, "more")
		}
		return strings.Join(out, ", "), after
	}
	const all = hdfspb.OpenFilesTypeProto_ALL_OPEN_FILES
	got, last := list(0, "/", all)
	if want := "/a client0 10.0.0.9, /d/b client1 10.0.0.9, more"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, _ := list(last, "/", all); got != "/d/c client2 10.0.0.9, /dd client3 10.0.0.9" {
		t.Errorf("the second batch is %q", got)
	}
	if got, _ := list(0, "/d/", all, hdfspb.OpenFilesTypeProto_BLOCKING_DECOMMISSION); got != "/d/b client1 10.0.0.9, /d/c client2 10.0.0.9" {
		t.Errorf("below /d are %q", got)
	}
	if got, _ := list(0, "/", hdfspb.OpenFilesTypeProto_BLOCKING_DECOMMISSION); got != "" {
		t.Errorf("none keeps a DataNode, but %q", got)
	}
	refused := func(user string, path string, types ...hdfspb.OpenFilesTypeProto) error {
		_, err := r.nn.listOpenFiles(r.as(user), &hdfspb.ListOpenFilesRequestProto{Id: proto.Int64(0), Path: &path, Types: types})
		return err
	}
	wantClass(t, refused("alice", "/", all), exception.AccessControl)
	wantClass(t, refused("alice", "relative", all), exception.Assertion)
	wantClass(t, refused("root", "/"), exception.JavaIllegalArgument)
}

// A DataNode that leaves the service waits for a file that is being written to it.
func TestListOpenFilesThatKeepADataNode(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(3)
	must[*hdfspb.CreateResponseProto](t)(r.nn.create(r.as("root"), createRequest("/open", "c", 3, 1)))
	b := r.addBlock("/open", "c", nil)
	for _, d := range dns {
		d.store(b.GetB().GetBlockId(), b.GetB().GetGenerationStamp(), 5, clusterpb.ReplicaState_BEING_WRITTEN)
		d.report()
	}
	m := r.nn.blocks
	m.mu.Lock()
	for _, n := range m.nodes {
		n.service = decommissioning
		m.reconsider(n)
	}
	m.mu.Unlock()
	resp := must[*hdfspb.ListOpenFilesResponseProto](t)(r.nn.listOpenFiles(r.as("root"), &hdfspb.ListOpenFilesRequestProto{
		Id: proto.Int64(0), Path: proto.String("/"), Types: []hdfspb.OpenFilesTypeProto{hdfspb.OpenFilesTypeProto_BLOCKING_DECOMMISSION},
	}))
	if len(resp.GetEntries()) != 1 || resp.GetEntries()[0].GetPath() != "/open" {
		t.Errorf("the files are %v", resp)
	}
}

// Files whose blocks nobody has are listed, and metaSave tells about them.
func TestCorruptFilesAndMetaSave(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	r.mkdirs("root", "/d")
	r.write("/d/lost", 1, 100, dns...)
	r.write("/other", 1, 100, dns...)
	list := func(path string, cookie *string) *hdfspb.CorruptFileBlocksProto {
		return must[*hdfspb.ListCorruptFileBlocksResponseProto](t)(r.nn.listCorruptFileBlocks(r.as("root"), &hdfspb.ListCorruptFileBlocksRequestProto{Path: &path, Cookie: cookie})).GetCorrupt()
	}
	if got := list("/", proto.String("abc")); len(got.GetFiles()) != 0 || got.GetCookie() != "abc" {
		t.Errorf("with nothing lost: %v", got)
	}
	dns[0].dead = true
	r.clock.advance(time.Minute)
	r.turn(dns)
	if got := list("/", nil); strings.Join(got.GetFiles(), " ") != "/d/lost /other" || got.GetCookie() != "2" {
		t.Errorf("all that is lost: %v", got)
	}
	if got := list("/d", nil); strings.Join(got.GetFiles(), " ") != "/d/lost" {
		t.Errorf("what is lost of /d: %v", got)
	}
	if got := list("/", proto.String("1")); strings.Join(got.GetFiles(), " ") != "/other" {
		t.Errorf("what is lost after the first: %v", got)
	}
	_, err := r.nn.listCorruptFileBlocks(r.as("alice"), &hdfspb.ListCorruptFileBlocksRequestProto{Path: proto.String("/")})
	wantClass(t, err, exception.AccessControl)

	save := func(user, name string) error {
		_, err := r.nn.metaSave(r.as(user), &hdfspb.MetaSaveRequestProto{Filename: &name})
		return err
	}
	wantClass(t, save("alice", "meta.txt"), exception.AccessControl)
	wantClass(t, save("root", "../meta.txt"), exception.IO)
	if err := save("root", "meta.txt"); err != nil {
		t.Fatal(err)
	}
	f, err := r.fs.Open("/nn/logs/meta.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text := string(must[[]byte](t)(io.ReadAll(f)))
	for _, want := range []string{"4 files and directories, 2 blocks = 6 total filesystem objects\n", "Live Datanodes: 0\nDead Datanodes: 1\n", "Metasave: Blocks currently missing: 2\n/d/lost: blk_", " MISSING (replicas: live: 0 ", "Metasave: Number of datanodes: 1\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("metaSave lacks %q:\n%s", want, text)
		}
	}
}

// Several directories in one answer: what can't be listed has its exception, and the next
// call goes on in the middle of a directory.
func TestGetBatchedListing(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ListLimit = 2 })
	dns := r.datanodes(1)
	for _, d := range []string{"/a/1", "/a/2", "/a/3", "/b"} {
		r.mkdirs("root", d)
	}
	r.write("/f", 1, 10, dns...)
	paths := []string{"/b", "/f", "/nothing", "/a"}
	var got []string
	var after []byte
	for range 10 {
		resp := must[*hdfspb.GetBatchedListingResponseProto](t)(r.nn.getBatchedListing(r.as("alice"), &hdfspb.GetBatchedListingRequestProto{Paths: paths, StartAfter: after, NeedLocation: proto.Bool(true)}))
		for _, l := range resp.GetListings() {
			line := fmt.Sprint(l.GetParentIdx(), ":", l.GetException().GetClassName())
			for _, e := range l.GetPartialListing() {
				line += fmt.Sprintf(" %q/%d", e.GetPath(), len(e.GetLocations().GetBlocks()))
			}
			got = append(got, line)
		}
		if !resp.GetHasMore() {
			break
		}
		after = resp.GetStartAfter()
	}
	if want := `0:|1: ""/1|2:java.io.FileNotFoundException|3: "1"/0 "2"/0|3: "3"/0`; strings.Join(got, "|") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "|"), want)
	}
	for _, key := range [][]byte{{1, 2, 3}, after} {
		_, err := r.nn.getBatchedListing(r.as("alice"), &hdfspb.GetBatchedListingRequestProto{Paths: []string{"/a"}, StartAfter: key, NeedLocation: proto.Bool(false)})
		var refused *exception.Error
		if !errors.As(err, &refused) {
			t.Errorf("the key %x: %v", key, err)
		}
	}
	_, err := r.nn.getBatchedListing(r.as("alice"), &hdfspb.GetBatchedListingRequestProto{Paths: make([]string, 101), NeedLocation: proto.Bool(false)})
	wantClass(t, err, exception.JavaIllegalArgument)
}

// What is not there answers as an HDFS in which it is switched off or not set up.
func TestFeaturesThatAreNotThere(t *testing.T) {
	r := newRig(t)
	r.mkdirs("root", "/d")
	nn, root, alice := r.nn, r.as("root"), r.as("alice")
	d, name := proto.String("/d"), proto.String("RS-6-3-1024k")
	for what, c := range map[string]struct {
		call func() error
		want string
	}{
		"policy of a directory that has none": {func() error {
			_, err := nn.unsetErasureCodingPolicy(root, &hdfspb.UnsetErasureCodingPolicyRequestProto{Src: d})
			return err
		}, "org.apache.hadoop.hdfs.protocol.NoECPolicySetException: No erasure coding policy explicitly set on /d"},
		"policy that is disabled": {func() error {
			_, err := nn.setErasureCodingPolicy(root, &hdfspb.SetErasureCodingPolicyRequestProto{Src: d})
			return err
		}, "org.apache.hadoop.HadoopIllegalArgumentException: Policy 'RS-6-3-1024k' does not match any enabled erasure coding policies: []. An erasure coding policy can be enabled by enableErasureCodingPolicy API."},
		"policy enabled by somebody": {func() error {
			_, err := nn.enableErasureCodingPolicy(alice, &hdfspb.EnableErasureCodingPolicyRequestProto{EcPolicyName: name})
			return err
		}, "org.apache.hadoop.security.AccessControlException: Access denied for user alice. Superuser privilege is required for operation enableErasureCodingPolicy"},
		"policy of what is not there": {func() error {
			_, err := nn.getErasureCodingPolicy(alice, &hdfspb.GetErasureCodingPolicyRequestProto{Src: proto.String("/no")})
			return err
		}, "java.io.FileNotFoundException: Path not found: /no"},
		"zone without a key provider": {func() error {
			_, err := nn.createEncryptionZone(root, &hdfspb.CreateEncryptionZoneRequestProto{Src: d})
			return err
		}, "java.io.IOException: Can't create an encryption zone for /d since no key provider is available."},
		"snapshot of somebody else's directory": {func() error {
			_, err := nn.createSnapshot(alice, &hdfspb.CreateSnapshotRequestProto{SnapshotRoot: d})
			return err
		}, "org.apache.hadoop.security.AccessControlException: Permission denied. user=alice is not the owner of inode=/d"},
		"snapshot": {func() error {
			_, err := nn.createSnapshot(root, &hdfspb.CreateSnapshotRequestProto{SnapshotRoot: d})
			return err
		}, "org.apache.hadoop.hdfs.protocol.SnapshotException: Directory is not a snapshottable directory: /d"},
		"pool that is not there": {func() error {
			_, err := addCacheDirective(alice, &hdfspb.AddCacheDirectiveRequestProto{Info: &hdfspb.CacheDirectiveInfoProto{Pool: proto.String("p")}})
			return err
		}, "org.apache.hadoop.fs.InvalidRequestException: Unknown pool p"},
		"state of high availability": {func() error { _, err := getHAServiceState(alice, nil); return err },
			"org.apache.hadoop.ha.ServiceFailedException: HA for namenode is not enabled"},
		"service-level authorization": {func() error { _, err := refreshServiceACL(alice, nil); return err },
			"org.apache.hadoop.security.authorize.AuthorizationException: Service Level Authorization not enabled!"},
	} {
		if err := c.call(); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v\nwant %s", what, err, c.want)
		}
	}
	if resp, err := getDelegationToken(alice, nil); err != nil || resp.GetToken() != nil {
		t.Errorf("a delegation token: %v, %v", resp, err)
	}
	defaults := must[*hdfspb.GetServerDefaultsResponseProto](t)(nn.getServerDefaults(alice, nil)).GetServerDefaults()
	if defaults.KeyProviderUri == nil || defaults.GetPolicyId() != 7 {
		t.Errorf("the server's defaults are %v", defaults)
	}
}

// Who may act for others is read again when an operator asks.
func TestRefreshProxyUsers(t *testing.T) {
	users := map[string]ProxyUser{}
	r := newRig(t, func(c *Config) { c.ReadProxyUsers = func() (map[string]ProxyUser, error) { return users, nil } })
	wantClass(t, r.nn.Impersonate("hive", "alice", nil), exception.Authorization)
	users = map[string]ProxyUser{"hive": {Hosts: []string{"*"}, Users: []string{"alice"}}}
	must[*hdfspb.RefreshSuperUserGroupsConfigurationResponseProto](t)(r.nn.refreshSuperUserGroupsConfiguration(r.as("root"), nil))
	if err := r.nn.Impersonate("hive", "alice", nil); err != nil {
		t.Error(err)
	}
	if groups := must[*hdfspb.GetGroupsForUserResponseProto](t)(r.nn.getGroupsForUser(r.as("root"), &hdfspb.GetGroupsForUserRequestProto{User: proto.String("bob")})).GetGroups(); strings.Join(groups, " ") != "staff users" {
		t.Errorf("bob's groups are %q", groups)
	}
}

// The operating system is asked again for users' groups when an operator asks.
func TestRefreshGroups(t *testing.T) {
	r := newRig(t)
	forgotten := 0
	r.nn.cfg.forgetGroups = func() { forgotten++ }
	must[*hdfspb.RefreshUserToGroupsMappingsResponseProto](t)(r.nn.refreshUserToGroupsMappings(r.as("root"), nil))
	if forgotten != 1 {
		t.Errorf("groups were forgotten %d times", forgotten)
	}
}
