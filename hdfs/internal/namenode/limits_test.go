package namenode

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Configured limits refuse what is new, with HDFS's classes and texts. A start with lower limits
// keeps what was made under higher ones.
func TestLimits(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxComponentLength, c.MaxDirectoryItems, c.MaxFileBlocks = 10, 2, 1 })
	dns := r.datanodes(1)
	r.turn(dns)
	mkdirs := func(path string) error {
		_, err := r.nn.mkdirs(r.as("root"), &hdfspb.MkdirsRequestProto{Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)})
		return err
	}
	refused := func(err error, class exception.Class, text string) {
		t.Helper()
		if !refusedAs(err, class) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v\n  not %s: %s", err, class, text)
		}
	}
	refused(mkdirs("/d/elevenbytes"), exception.PathComponentTooLong, "limit=10 length=11")
	refused(mkdirs("/elevenbytes"), exception.PathComponentTooLong, "The maximum path component name limit of elevenbytes in directory / is exceeded: limit=10 length=11")
	for _, path := range []string{"/d/tenletters", "/d/b"} {
		if err := mkdirs(path); err != nil {
			t.Fatal(err)
		}
	}
	refused(mkdirs("/d/c"), exception.MaxDirectoryItemsExceeded, "The directory item limit of /d is exceeded: limit=2 items=3")
	if err := mkdirs("/e/x"); err != nil {
		t.Fatal(err)
	}
	_, err := r.nn.rename2(r.as("root"), &hdfspb.Rename2RequestProto{Src: proto.String("/e/x"), Dst: proto.String("/d/x"), OverwriteDest: proto.Bool(false)})
	refused(err, exception.MaxDirectoryItemsExceeded, "limit=2 items=3")

	r.create("/e/f", "client", 1)
	lb := r.addBlock("/e/f", "client", nil)
	lb.GetB().NumBytes = proto.Uint64(1024)
	_, err = r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: proto.String("/e/f"), ClientName: proto.String("client"), Previous: lb.GetB()})
	refused(err, exception.IO, "File has reached the limit on maximum number of blocks (dfs.namenode.fs-limits.max-blocks-per-file): 1 >= 1")
	r.nn.Close()
	r.open(func(c *Config) { c.MaxComponentLength, c.MaxDirectoryItems = 5, 1 })
	if st, err := r.nn.getFileInfo(r.as("root"), &hdfspb.GetFileInfoRequestProto{Src: proto.String("/d/tenletters")}); err != nil || st.GetFs() == nil {
		t.Errorf("%v, %v", st, err)
	}
}

func TestLimitsHaveBounds(t *testing.T) {
	for _, cfg := range []Config{{MaxComponentLength: 256}, {MaxDirectoryItems: 6_400_001}, {MaxFileBlocks: 1<<20 + 1}} {
		cfg.Superuser = "root"
		if err := cfg.setDefaults(); err == nil {
			t.Errorf("%d, %d, %d are taken", cfg.MaxComponentLength, cfg.MaxDirectoryItems, cfg.MaxFileBlocks)
		}
	}
}
