package namenode

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// The configuration refuses changes of storage policies altogether, or to all but superusers.
func TestStoragePoliciesRefused(t *testing.T) {
	set := func(r *rig, user string) error {
		_, err := r.nn.setStoragePolicy(r.as(user), &hdfspb.SetStoragePolicyRequestProto{Src: proto.String("/d"), PolicyName: proto.String("HOT")})
		return err
	}
	unset := func(r *rig, user string) error {
		_, err := r.nn.unsetStoragePolicy(r.as(user), &hdfspb.UnsetStoragePolicyRequestProto{Src: proto.String("/d")})
		return err
	}
	r := newRig(t, func(c *Config) { c.NoStoragePolicies = true })
	r.mkdirs("root", "/d")
	satisfy := func(r *rig, user string) error {
		_, err := r.nn.satisfyStoragePolicy(r.as(user), &hdfspb.SatisfyStoragePolicyRequestProto{Src: proto.String("/d")})
		return err
	}
	for what, change := range map[string]func(*rig, string) error{"set": set, "unset": unset, "satisfy": satisfy} {
		err := change(r, "root")
		if text := "Failed to " + what + " storage policy since dfs.storage.policy.enabled is set to false."; !refusedAs(err, exception.IO) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r = newRig(t, func(c *Config) { c.StoragePoliciesBySuperuser = true })
	r.mkdirs("root", "/d")
	wantClass(t, set(r, "alice"), exception.AccessControl)
	wantClass(t, unset(r, "alice"), exception.AccessControl)
	if err := set(r, "root"); err != nil {
		t.Error(err)
	}
}
