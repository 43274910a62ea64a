package namenode

import (
	"testing"

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
