package namenode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func TestCheckAccess(t *testing.T) {
	r := newRig(t)
	r.mkdirs("root", "/d")
	check := func(user, path string, mode hdfspb.FsActionProto) error {
		_, err := r.nn.checkAccess(r.as(user), &hdfspb.CheckAccessRequestProto{Path: &path, Mode: &mode})
		return err
	}
	if err := check("alice", "/d", hdfspb.FsActionProto_READ_EXECUTE); err != nil {
		t.Error(err)
	}
	wantClass(t, check("alice", "/d", hdfspb.FsActionProto_WRITE), exception.AccessControl)
	wantClass(t, check("root", "/nothing", hdfspb.FsActionProto_NONE), exception.FileNotFound)
}

func TestGetLocatedFileInfo(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	path := "/f"
	r.write(path, 1, 700, dns...)
	got := must[*hdfspb.GetLocatedFileInfoResponseProto](t)(r.nn.getLocatedFileInfo(r.as("root"), &hdfspb.GetLocatedFileInfoRequestProto{Src: &path})).GetFs()
	if blocks := got.GetLocations().GetBlocks(); got.GetLength() != 700 || len(blocks) != 1 || len(blocks[0].GetLocs()) != 1 {
		t.Errorf("the file is %v", got)
	}
}

// A user who is no superuser may delete a tree of more directories than are asked with one hold of the lock,
// unless one of them is another's; that one is named, and nothing is deleted.
func TestDeleteOfALargeTreeByAUser(t *testing.T) {
	r := newRig(t)
	r.mkdirs("root", "/home/alice")
	for _, path := range []string{"/home", "/home/alice"} {
		must[*hdfspb.SetOwnerResponseProto](t)(r.nn.setOwner(r.as("root"), &hdfspb.SetOwnerRequestProto{Src: &path, Username: proto.String("alice")}))
	}
	const many = 2500
	for i := range many {
		r.mkdirs("alice", fmt.Sprintf("/home/alice/%d/below", i))
	}
	last := "/home/alice/99"
	own := func(user string) {
		must[*hdfspb.SetOwnerResponseProto](t)(r.nn.setOwner(r.as("root"), &hdfspb.SetOwnerRequestProto{Src: &last, Username: &user}))
	}
	remove := func(ctx context.Context) (*hdfspb.DeleteResponseProto, error) {
		return r.nn.delete(ctx, &hdfspb.DeleteRequestProto{Src: proto.String("/home/alice"), Recursive: proto.Bool(true)})
	}
	own("bob")
	_, err := remove(r.as("alice"))
	wantClass(t, err, exception.AccessControl)
	if !strings.Contains(err.Error(), last) {
		t.Errorf("the refusal does not name %s: %v", last, err)
	}
	own("alice")
	gone, cancel := context.WithCancel(r.as("alice"))
	cancel()
	if _, err := remove(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("the call of a client that has gone ended with %v", err)
	}
	if !must[*hdfspb.DeleteResponseProto](t)(remove(r.as("alice"))).GetResult() {
		t.Error("the delete did nothing")
	}
}
