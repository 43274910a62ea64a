package hdfs

import (
	"errors"
	"os/user"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
	"github.com/verbena-data/verbena/internal/testneed"
)

// What an AccessConfig says holds for who calls the NameNode: its superuser and supergroup, who may act for
// others, and the names of principals.
func TestAccessConfigHolds(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	group, err := user.LookupGroupId(me.Gid)
	if err != nil {
		testneed.Missing(t, "the group of this user has no name: "+err.Error(), "give it one in /etc/group")
	}
	rt, err := verbena.New(verbena.Config{}) // TCP alone
	if err != nil {
		t.Fatal(err)
	}
	nn, err := StartNameNode(t.Context(), NameNodeConfig{Runtime: rt, Dir: t.TempDir(), Listen: "127.0.0.1:0", Access: AccessConfig{
		Superuser: "ada", Supergroup: group.Name, PrincipalRules: "RULE:[2:$1@$0](nn@EXAMPLE\\.ORG)s/.*/ada/ DEFAULT",
		ProxyUsers: map[string]ProxyUser{"hive": {Hosts: []string{"127.0.0.1"}, Users: []string{"ada"}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	client := rpc.NewClient(rpc.ClientConfig{})
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), nn.Close(), rt.Close()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		user, realUser string
		want           exception.Class // of the refusal, empty for none
	}{
		{user: "ada"},
		{user: me.Username}, // of the supergroup
		{user: "nobody-knows-this-user", want: exception.AccessControl},
		{user: "nn/host1@EXAMPLE.ORG"},
		{user: "dn/host1@EXAMPLE.ORG", want: exception.JavaIllegalArgument},
		{user: "ada", realUser: "hive"},
		{user: me.Username, realUser: "hive", want: exception.Authorization},
		{user: "ada", realUser: "eve", want: exception.Authorization},
	} {
		target := rpc.Target{Address: nn.Addr(), Protocol: namenode.ClientProtocol, User: c.user, RealUser: c.realUser}
		err := client.Proxy(target).Call(t.Context(), "setQuota", &hdfspb.SetQuotaRequestProto{
			Path: proto.String("/"), NamespaceQuota: proto.Uint64(1000), StoragespaceQuota: proto.Uint64(1 << 40),
		}, &hdfspb.SetQuotaResponseProto{})
		var refused *exception.Error
		if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &refused) || refused.Class != c.want) {
			t.Errorf("%s by %q: %v, want %q", c.user, c.realUser, err, c.want)
		}
	}
}
