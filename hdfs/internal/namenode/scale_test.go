package namenode

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// TestScale makes many small files on disk and says what they cost. It runs
// only when VERBENA_SCALE names their number.
func TestScale(t *testing.T) {
	var files int
	if _, err := fmt.Sscan(os.Getenv("VERBENA_SCALE"), &files); err != nil {
		t.Skip("set VERBENA_SCALE to a number of files")
	}
	dir := t.TempDir()
	open := func() *NameNode {
		start := time.Now()
		nn, err := Open(t.Context(), Config{Dir: dir, Superuser: "root", Groups: func(string) []string { return nil }})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("opened in %v", time.Since(start))
		return nn
	}
	nn := open()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	start := time.Now()
	var wg sync.WaitGroup
	const workers = 64
	for w := range workers {
		wg.Go(func() {
			ctx := rpc.WithCall(context.Background(), &rpc.Call{User: "root"})
			client := fmt.Sprint("c", w)
			for i := w; i < files; i += workers {
				path := fmt.Sprintf("/many/%09d", i)
				if _, err := nn.create(ctx, createRequest(path, client, 1, flagCreate)); err == nil {
					t.Error("block size below the least was taken")
				}
				req := createRequest(path, client, 1, flagCreate)
				req.BlockSize = proto.Uint64(1 << 20)
				if _, err := nn.create(ctx, req); err != nil {
					t.Error(err)
					return
				}
				if _, err := nn.complete(ctx, &hdfspb.CompleteRequestProto{Src: &path, ClientName: &client}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	t.Logf("%d files in %v, %.0f operations/s, %d bytes of heap each", files, took, float64(2*files)/took.Seconds(), (heap()-before)/uint64(files))
	start = time.Now()
	n, after := 0, []byte{}
	ctx := rpc.WithCall(context.Background(), &rpc.Call{User: "root"})
	for {
		resp, err := nn.getListing(ctx, &hdfspb.GetListingRequestProto{Src: proto.String("/many"), StartAfter: after, NeedLocation: proto.Bool(false)})
		if err != nil {
			t.Fatal(err)
		}
		page := resp.GetDirList().GetPartialListing()
		n += len(page)
		if resp.GetDirList().GetRemainingEntries() == 0 {
			break
		}
		after = page[len(page)-1].GetPath()
	}
	if n != files {
		t.Fatalf("listed %d of %d", n, files)
	}
	t.Logf("listed in %v", time.Since(start))
	if err := nn.Close(); err != nil {
		t.Fatal(err)
	}
	nn = open()
	start = time.Now()
	if err := nn.journal.Snapshot(); err != nil {
		t.Fatal(err)
	}
	t.Logf("snapshot in %v", time.Since(start))
	nn.Close()
	open().Close()
}
