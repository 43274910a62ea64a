package namenode

import (
	"context"
	"crypto/md5"
	"errors"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// batchedListingPaths is how many paths one call may list, as in HDFS
// (dfs.batched.ls.limit).
const batchedListingPaths = 100

// getBatchedListing lists several paths. A path that can't be listed has its exception in
// place of its entries. The key with which the next call goes on names the path and the
// last entry of it that the client has.
func (nn *NameNode) getBatchedListing(ctx context.Context, req *hdfspb.GetBatchedListingRequestProto) (*hdfspb.GetBatchedListingResponseProto, error) {
	paths := req.GetPaths()
	if len(paths) > batchedListingPaths {
		return nil, exception.New(exception.JavaIllegalArgument, "Too many source paths (%d > %d)", len(paths), batchedListingPaths)
	}
	// HDFS takes the same sum. It binds the key to the paths, and is no secret.
	sum := md5.Sum([]byte(strings.Join(paths, "")))
	at, after, err := continueListing(req.GetStartAfter(), sum[:])
	if err != nil {
		return nil, err
	}
	out := &hdfspb.GetBatchedListingResponseProto{HasMore: proto.Bool(false), StartAfter: []byte{}}
	var last *hdfspb.DirectoryListingProto // nil: an exception
	for entries := 0; at < len(paths); at++ {
		listing := &hdfspb.BatchedDirectoryListingProto{ParentIdx: proto.Uint32(uint32(at))}
		if last, err = nn.listOne(ctx, paths[at], after, req.GetNeedLocation()); err != nil {
			if listing.Exception = remoteException(err); listing.Exception == nil {
				return nil, err
			}
		}
		listing.PartialListing = last.GetPartialListing()
		out.Listings = append(out.Listings, listing)
		after = nil
		if entries += len(listing.PartialListing); entries >= nn.cfg.ListLimit {
			break
		}
	}
	if at >= len(paths) || at == len(paths)-1 && last != nil && last.GetRemainingEntries() == 0 {
		return out, nil
	}
	key := &hdfspb.BatchedListingKeyProto{Checksum: sum[:], PathIndex: proto.Uint32(uint32(at)), StartAfter: []byte{}}
	if entries := last.GetPartialListing(); len(entries) > 0 {
		key.StartAfter = entries[len(entries)-1].GetPath()
	}
	out.HasMore = proto.Bool(true)
	if out.StartAfter, err = proto.Marshal(key); err != nil {
		return nil, err
	}
	return out, nil
}

// continueListing reads the key of a call that goes on.
func continueListing(key, sum []byte) (at int, after []byte, err error) {
	if len(key) == 0 {
		return 0, nil, nil
	}
	var k hdfspb.BatchedListingKeyProto
	if err := proto.Unmarshal(key, &k); err != nil {
		return 0, nil, exception.New(exception.InvalidProtocolBuffer, "the key to go on with: %v", err)
	}
	if !slices.Equal(k.GetChecksum(), sum) {
		return 0, nil, exception.New(exception.JavaIllegalArgument, "the key to go on with is for other paths")
	}
	at = int(min(k.GetPathIndex(), batchedListingPaths))
	if len(k.GetStartAfter()) == 0 {
		at++ // it was a file, which is its own only entry
	}
	return at, k.GetStartAfter(), nil
}

func (nn *NameNode) listOne(ctx context.Context, path string, after []byte, locations bool) (*hdfspb.DirectoryListingProto, error) {
	resp, err := nn.getListing(ctx, &hdfspb.GetListingRequestProto{Src: &path, StartAfter: after, NeedLocation: &locations})
	if err == nil && resp.GetDirList() == nil {
		err = exception.New(exception.FileNotFound, "Path %s does not exist", path)
	}
	return resp.GetDirList(), err
}

// remoteException is what a client is told in place of a listing, or nil if the error
// ends the whole call, as what Java calls an error does.
func remoteException(err error) *hdfspb.RemoteExceptionProto {
	var refused *exception.Error
	if !errors.As(err, &refused) || refused.Class == exception.Assertion {
		return nil
	}
	class := strings.ReplaceAll(string(refused.Class), "$", ".") // its canonical name
	return &hdfspb.RemoteExceptionProto{ClassName: &class, Message: &refused.Message}
}
