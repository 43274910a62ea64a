package statuses

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// A FileInfo is the answer to getFileInfo. It must not be copied.
type FileInfo struct {
	hdfspb.GetFileInfoResponseProto
	Status Status // what Fs refers to, if there is a file

	size int // of Fs, by SizeRPC
}

// Reset makes it empty.
func (r *FileInfo) Reset() { *r = FileInfo{} }

// UnmarshalRPC decodes b, to which nothing refers afterwards.
func (r *FileInfo) UnmarshalRPC(b []byte) error {
	r.Reset()
	body, rest := only(b, 1)
	if body == nil || len(rest) > 0 {
		return proto.Unmarshal(b, &r.GetFileInfoResponseProto)
	}
	r.Fs = &r.Status.Proto
	return new(decoder).decode(body, &r.Status)
}

// only returns the bytes of the field at the beginning of b and what follows it, or nil if
// another one is there.
func only(b []byte, field protowire.Number) (body, rest []byte) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 || number != field || kind != protowire.BytesType {
		return nil, nil
	}
	body, m := protowire.ConsumeBytes(b[n:])
	if m < 0 {
		return nil, nil
	}
	return body[:len(body):len(body)], b[n+m:]
}

// A Listing is the answer to getListing. It must not be copied.
type Listing struct{ hdfspb.GetListingResponseProto }

// Together is how many statuses of a listing share memory: who keeps one of them keeps
// that many.
const Together = 16

// mostEntries is for how many entries of a listing there is room before they are decoded:
// a NameNode tells 1,000 at once.
const mostEntries = 1024

// UnmarshalRPC decodes b, to which nothing refers afterwards.
func (r *Listing) UnmarshalRPC(b []byte) error {
	r.Reset()
	list, rest := only(b, 1)
	if list == nil || len(rest) > 0 {
		return proto.Unmarshal(b, &r.GetListingResponseProto)
	}
	entries, rest := count(list)
	out := &hdfspb.DirectoryListingProto{}
	if err := proto.Unmarshal(rest, out); err != nil || len(out.PartialListing) > 0 {
		return proto.Unmarshal(b, &r.GetListingResponseProto)
	}
	out.PartialListing = make([]*hdfspb.HdfsFileStatusProto, 0, min(entries, mostEntries))
	var (
		d    decoder
		some []Status
	)
	for range entries {
		var entry []byte
		entry, list = only(list, 1)
		if len(some) == 0 {
			n := min(Together, entries-len(out.PartialListing))
			some = make([]Status, n)
			d.paths = make([]byte, pathBytes(entry, list, n))
		}
		if err := d.decode(entry, &some[0]); err != nil {
			return err
		}
		out.PartialListing = append(out.PartialListing, &some[0].Proto)
		some = some[1:]
	}
	r.DirList = out
	return nil
}

// count is how many entries are at the beginning of a listing, and what follows them.
func count(list []byte) (n int, rest []byte) {
	for {
		entry, rest := only(list, 1)
		if entry == nil {
			return n, list
		}
		n, list = n+1, rest
	}
}

// pathBytes is how many bytes the paths of an entry and of the n-1 that follow in list have
// together.
func pathBytes(entry, list []byte, n int) (total int) {
	for i := 1; ; i++ {
		for b := entry; len(b) > 0; {
			number, kind, size := protowire.ConsumeTag(b)
			if size < 0 {
				break
			}
			value := protowire.ConsumeFieldValue(number, kind, b[size:])
			if value < 0 {
				break
			}
			if number == 2 && kind == protowire.BytesType {
				path, _ := protowire.ConsumeBytes(b[size:])
				total += len(path)
				break
			}
			b = b[size+value:]
		}
		if i == n {
			return total
		}
		entry, list = only(list, 1)
	}
}
