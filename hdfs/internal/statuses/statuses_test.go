package statuses

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func status(name string, id uint64) *hdfspb.HdfsFileStatusProto {
	s := new(Status)
	s.Set(&Values{
		Type: hdfspb.HdfsFileStatusProto_IS_FILE, Path: []byte(name), Length: 1 << 40, Mode: 0o1644, Owner: "ada", Group: "staff",
		Modified: 1_700_000_000_123, Accessed: 1_700_000_000_124, Replication: 3, BlockSize: 128 << 20, ID: id, Children: -1,
	})
	return &s.Proto
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{AllowPartial: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// listing has n entries with names of different lengths.
func listing(n int) *hdfspb.GetListingResponseProto {
	list := &hdfspb.DirectoryListingProto{RemainingEntries: proto.Uint32(7)}
	for i := range n {
		s := status(fmt.Sprintf("part-%d", i*i), uint64(i))
		if i%3 == 0 {
			s.Owner = proto.String("grace")
		}
		list.PartialListing = append(list.PartialListing, s)
	}
	return &hdfspb.GetListingResponseProto{DirList: list}
}

// rare has what takes protobuf's decoder.
func rare() *hdfspb.HdfsFileStatusProto {
	s := status("", 5)
	s.FileType, s.Symlink = hdfspb.HdfsFileStatusProto_IS_SYMLINK.Enum(), []byte("/there")
	s.Locations = &hdfspb.LocatedBlocksProto{FileLength: proto.Uint64(1), UnderConstruction: proto.Bool(false), IsLastBlockComplete: proto.Bool(true)}
	return s
}

func seeds(t testing.TB) [][]byte {
	one := encode(t, status("", 4))
	policy := new(Status)
	policy.Set(&Values{Type: hdfspb.HdfsFileStatusProto_IS_DIR, Path: []byte{}})
	policy.SetPolicy(7)
	policy.SetFlags(hdfspb.HdfsFileStatusProto_HAS_ACL)
	fields := [][]byte{
		{}, one, encode(t, rare()), encode(t, &policy.Proto),
		append(bytes.Clone(one), one...), // all twice
		protowire.AppendVarint(protowire.AppendTag(bytes.Clone(one), 19, protowire.VarintType), 1),         // of a later Hadoop
		protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 9),                       // no such type
		protowire.AppendBytes(protowire.AppendTag(bytes.Clone(one), 4, protowire.BytesType), []byte{8, 1}), // the mode again
	}
	var out [][]byte
	for _, f := range fields {
		out = append(out, protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), f))
	}
	for _, n := range []int{0, 1, Together, 3*Together + 1} {
		out = append(out, encode(t, listing(n)))
	}
	mixed := listing(20)
	mixed.DirList.PartialListing[11] = rare()
	b := encode(t, mixed)
	return append(out, b, b[:len(b)-1], append(bytes.Clone(b), b...))
}

// sameAs compares a reply that has decoded itself with protobuf's decoder.
func sameAs(t *testing.T, b []byte, got interface {
	proto.Message
	UnmarshalRPC([]byte) error
}, decoded, want proto.Message) {
	t.Helper()
	in := bytes.Clone(b)
	failed, wanted := got.UnmarshalRPC(in), proto.Unmarshal(b, want)
	if (failed == nil) != (wanted == nil) {
		t.Fatalf("%x: %v, protobuf says %v", b, failed, wanted)
	}
	clear(in) // the memory was lent
	if failed == nil && !proto.Equal(decoded, want) {
		t.Fatalf("%x:\n%v, protobuf says\n%v", b, decoded, want)
	}
}

func compare(t *testing.T, b []byte) {
	var info FileInfo
	sameAs(t, b, &info, &info.GetFileInfoResponseProto, &hdfspb.GetFileInfoResponseProto{})
	var list Listing
	sameAs(t, b, &list, &list.GetListingResponseProto, &hdfspb.GetListingResponseProto{})
}

// What is decoded is what protobuf's decoder makes of it.
func TestDecode(t *testing.T) {
	for _, b := range seeds(t) {
		compare(t, b)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range seeds(f) {
		f.Add(b)
	}
	f.Fuzz(compare)
}

// A status takes an allocation for each of its names, those of a listing a few for all.
func TestAllocations(t *testing.T) {
	one := encode(t, &hdfspb.GetFileInfoResponseProto{Fs: status("", 3)})
	var info FileInfo
	if n := testing.AllocsPerRun(100, func() {
		if err := info.UnmarshalRPC(one); err != nil {
			t.Fatal(err)
		}
	}); n > 2 {
		t.Errorf("%v allocations for a status", n)
	}
	list := listing(16 * Together)
	for _, s := range list.DirList.PartialListing {
		s.Owner = proto.String("ada")
	}
	many := encode(t, list)
	var l Listing
	if n := testing.AllocsPerRun(100, func() {
		if err := l.UnmarshalRPC(many); err != nil {
			t.Fatal(err)
		}
	}); n > 16*2+8 {
		t.Errorf("%v allocations for a listing of %d", n, 16*Together)
	}
}

// What encodes itself has the bytes that protobuf's encoder makes, be it simple or not.
func TestEncode(t *testing.T) {
	for name, change := range map[string]func(*FileInfo){
		"nothing there": func(r *FileInfo) { r.Fs = nil },
		"a file":        func(*FileInfo) {},
		"all zero":      func(r *FileInfo) { r.Status.Set(&Values{Path: []byte{}}) },
		"a policy":      func(r *FileInfo) { r.Status.SetPolicy(7) },
		"flags":         func(r *FileInfo) { r.Status.SetFlags(hdfspb.HdfsFileStatusProto_HAS_ACL) },
		"a symlink":     func(r *FileInfo) { r.Fs.Symlink = []byte("/there") },
		"locations":     func(r *FileInfo) { r.Fs.Locations = rare().Locations },
		"of another":    func(r *FileInfo) { r.Fs = status("x", 5) },
		"decoded": func(r *FileInfo) {
			if err := r.UnmarshalRPC(encode(t, &hdfspb.GetFileInfoResponseProto{Fs: rare()})); err != nil {
				t.Fatal(err)
			}
		},
	} {
		var r FileInfo
		r.Status.Set(&Values{
			Type: hdfspb.HdfsFileStatusProto_IS_FILE, Path: []byte("name"), Length: 1 << 40, Mode: 0o1644, Owner: "ada", Group: strings.Repeat("staff", 40),
			Modified: 1_700_000_000_123, Accessed: 1_700_000_000_124, Replication: 3, BlockSize: 128 << 20, ID: 1 << 50, Children: -1,
		})
		r.Fs = &r.Status.Proto
		change(&r)
		want, size := encode(t, &r.GetFileInfoResponseProto), r.SizeRPC()
		got, err := r.AppendRPC([]byte("before"))
		if err != nil || !bytes.Equal(got, append([]byte("before"), want...)) || size != len(want) {
			t.Errorf("%s: %v, size %d, and\n%x, protobuf says\n%x", name, err, size, got, want)
		}
	}
}
