package hdfs

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
)

// A gate is a disk on which the files of blocks can be held, and that counts their writes.
type gate struct {
	held      atomic.Pointer[chan struct{}] // data files wait for it; nil: none does
	sums      atomic.Int64                  // writes of checksum files
	failAfter atomic.Int64                  // the write of a data file that fails, of those from now on; 0: none
	failed    atomic.Int64
}

func (g *gate) disk() vfs.FS {
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		name := filepath.Base(op.Path)
		switch {
		case !strings.HasPrefix(name, "blk_") || op.Kind != errorfs.OpFileWriteAt:
		case strings.HasSuffix(name, ".meta"):
			g.sums.Add(1)
		default:
			if free := g.held.Load(); free != nil {
				<-*free
			}
			if g.failAfter.Add(-1) == 0 {
				g.failed.Add(1)
				return syscall.EIO
			}
		}
		return nil
	}))
}

// hold has the files of blocks wait until free is called.
func (g *gate) hold() (free func()) {
	c := make(chan struct{})
	g.held.Store(&c)
	return sync.OnceFunc(func() { g.held.Store(nil); close(c) })
}

// Packets that have come while one before them is written or synced are written and
// acknowledged together: one write has their checksums. When one of them can't be written
// the pipeline goes on without its DataNode, and nothing is lost.
func TestPacketsAreWrittenTogether(t *testing.T) {
	const packet, packets = 4 << 10, 7
	var g gate
	name, nodes, rt := onFakes(t, 2, 8<<20, 64<<20, g.disk())
	d := NewDialer(rt, "fakeband")
	defer d.Close()
	c, err := NewClient(ClientConfig{
		NameNodes: []string{name}, User: superuser(t), Dialer: d, NoLocalReads: true, PacketSize: packet, ReplaceBestEffort: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var sent atomic.Int64
	var first atomic.Bool // the next packet has the DataNode start a goroutine, as one that is to be synced
	inject(c, &faulty{send: func(k *data.Packet, _ int, _ *data.WriteRequest) {
		k.Sync = k.Sync || first.Swap(false)
		sent.Add(1)
	}})
	content := randomBytes(packet * packets)
	arrived := func() (n uint64) {
		for _, dn := range nodes {
			n += dn.Packets().Packets
		}
		return n
	}
	create := func(t *testing.T, path string, replication int) *FileWriter {
		t.Helper()
		w, err := c.Create(t.Context(), path, CreateOptions{Replication: replication})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	// What a Write leaves of its last packet goes with a flush.
	begin := func(t *testing.T, w *FileWriter, b []byte) <-chan error {
		flushed := make(chan error, 1)
		go func() {
			_, err := w.Write(b)
			flushed <- errors.Join(err, w.Flush(t.Context()))
		}()
		return flushed
	}
	written := func(t *testing.T, w *FileWriter, path string) {
		t.Helper()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		expect(t, c, path, content)
	}
	for _, fails := range []int64{0, 5} {
		t.Run(fmt.Sprint("synced/", fails), func(t *testing.T) {
			path, replication := fmt.Sprint("/synced-", fails), 1
			if fails > 0 {
				replication = 2
			}
			before := arrived()
			g.sums.Store(0)
			w := create(t, path, replication)
			free := g.hold()
			defer free()
			first.Store(true)
			flushed := begin(t, w, content)
			eventually(t, "all packets have come", func() error {
				if n := arrived() - before; n < packets {
					return fmt.Errorf("%d of %d", n, packets)
				}
				return nil
			})
			g.failAfter.Store(fails)
			free()
			if err := <-flushed; err != nil {
				t.Fatal(err)
			}
			// The header, the first packet, its being synced, and all others.
			if n := g.sums.Load(); fails == 0 && n != 4 {
				t.Errorf("%d writes to the checksum file for %d packets, not 4", n, packets)
			}
			if n := g.failed.Load(); n != min(fails, 1) {
				t.Errorf("%d writes have failed", n)
			}
			written(t, w, path)
		})
	}
	// How much has come when the first write ends can't be told, so a try may show nothing.
	t.Run("writing", func(t *testing.T) {
		least := int64(packets)
		for try := range 50 {
			path := fmt.Sprint("/writing-", try)
			w := create(t, path, 1)
			if _, err := w.Write(content[:packet]); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			free, all := g.hold(), sent.Load()+packets-1
			defer free()
			g.sums.Store(0)
			flushed := begin(t, w, content[packet:])
			eventually(t, "all packets are sent", func() error {
				if n := sent.Load(); n < all {
					return fmt.Errorf("%d of %d", n, all)
				}
				return nil
			})
			time.Sleep(time.Duration(try) * time.Millisecond)
			free()
			if err := <-flushed; err != nil {
				t.Fatal(err)
			}
			least = min(least, g.sums.Load())
			written(t, w, path)
			if least <= packets/2 {
				return
			}
		}
		t.Errorf("the checksums of %d packets took at least %d writes", packets-1, least)
	})
}
