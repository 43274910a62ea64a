package namenode

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func quotaRequest(path string, names int64) *hdfspb.SetQuotaRequestProto {
	space := int64(math.MaxInt64) // as it is
	return &hdfspb.SetQuotaRequestProto{Path: &path, NamespaceQuota: proto.Uint64(uint64(names)), StoragespaceQuota: proto.Uint64(uint64(space))}
}

// With dfs.permissions.allow.owner.set.quota who owns a directory sets quotas in it, and nobody
// else but superusers; the log says so, so that a start without the property reads the same.
func TestQuotasByOwner(t *testing.T) {
	r := newRig(t, func(c *Config) { c.QuotasByOwner = true })
	r.mkdirs("root", "/home")
	must[*hdfspb.SetOwnerResponseProto](t)(r.nn.setOwner(r.as("root"), &hdfspb.SetOwnerRequestProto{Src: proto.String("/home"), Username: proto.String("alice"), Groupname: proto.String("staff")}))
	r.mkdirs("root", "/home/d")
	set := func(user, path string, names int64) error {
		_, err := r.nn.setQuota(r.as(user), quotaRequest(path, names))
		return err
	}
	if err := set("alice", "/home/d", 7); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ user, path string }{{"bob", "/home/d"}, {"alice", "/home"}, {"alice", "/"}} {
		err := set(c.user, c.path, 8)
		wantClass(t, err, exception.AccessControl)
		if !strings.Contains(err.Error(), "Superuser or owner of parent folder privilege is required") {
			t.Errorf("%s on %s: %v", c.user, c.path, err)
		}
	}
	if err := set("root", "/home", 9); err != nil {
		t.Fatal(err)
	}
	r.nn.Close()
	r.open()
	wantClass(t, set("alice", "/home/d", 8), exception.AccessControl)
	for path, want := range map[string]uint64{"/home/d": 7, "/home": 9} {
		u := must[*hdfspb.GetQuotaUsageResponseProto](t)(r.nn.getQuotaUsage(r.as("root"), &hdfspb.GetQuotaUsageRequestProto{Path: &path})).GetUsage()
		if u.GetQuota() != want {
			t.Errorf("%s may have %d names, want %d", path, u.GetQuota(), want)
		}
	}
}

func TestNoTypeQuotas(t *testing.T) {
	r := newRig(t, func(c *Config) { c.NoTypeQuotas = true })
	r.mkdirs("root", "/d")
	req := quotaRequest("/d", math.MaxInt64)
	req.StoragespaceQuota, req.StorageType = proto.Uint64(1000), hdfspb.StorageTypeProto_SSD.Enum()
	_, err := r.nn.setQuota(r.as("root"), req)
	wantClass(t, err, exception.UnsupportedAction)
	if !strings.Contains(err.Error(), "dfs.quota.by.storage.type.enabled is set to false") {
		t.Error(err)
	}
	if _, err := r.nn.setQuota(r.as("root"), quotaRequest("/d", 5)); err != nil {
		t.Error(err)
	}
}
