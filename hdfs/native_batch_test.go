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

const (
	batchedPacket  = 4 << 10
	batchedPackets = 7
)

// batched are two DataNodes on gates, and a client that writes to them in small packets.
type batched struct {
	*gate
	client  *Client
	nodes   []*DataNode
	content []byte       // of each file
	sent    atomic.Int64 // packets
	first   atomic.Bool  // the next packet has the DataNode start a goroutine, as one that is to be synced
}

func newBatched(t *testing.T) *batched {
	b := &batched{gate: &gate{}, content: randomBytes(batchedPacket * batchedPackets)}
	name, nodes, rt := onFakes(t, 2, 8<<20, 64<<20, b.disk())
	d := NewDialer(rt, "fakeband")
	c, err := NewClient(ClientConfig{
		NameNodes: []string{name}, User: superuser(t), Dialer: d, NoLocalReads: true, PacketSize: batchedPacket, ReplaceBestEffort: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = d.Close()
	})
	inject(c, &faulty{send: func(k *data.Packet, _ int, _ *data.WriteRequest) {
		k.Sync = k.Sync || b.first.Swap(false)
		b.sent.Add(1)
	}})
	b.client, b.nodes = c, nodes
	return b
}

// arrived is how many packets the DataNodes have taken.
func (b *batched) arrived() (n uint64) {
	for _, dn := range b.nodes {
		n += dn.Packets().Packets
	}
	return n
}

func (b *batched) create(t *testing.T, path string, replication int) *FileWriter {
	t.Helper()
	w, err := b.client.Create(t.Context(), path, CreateOptions{Replication: replication})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// begin writes and flushes: what a Write leaves of its last packet goes with a flush.
func (b *batched) begin(t *testing.T, w *FileWriter, content []byte) <-chan error {
	flushed := make(chan error, 1)
	go func() {
		_, err := w.Write(content)
		flushed <- errors.Join(err, w.Flush(t.Context()))
	}()
	return flushed
}

// written closes a file, and reads it.
func (b *batched) written(t *testing.T, w *FileWriter, path string) {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, b.client, path, b.content)
}

// Packets that have come while one before them is synced are written and acknowledged
// together: one write has their checksums. When one of them can't be written the pipeline
// goes on without its DataNode, and nothing is lost.
func TestPacketsAreWrittenTogether(t *testing.T) {
	b := newBatched(t)
	for _, fails := range []int64{0, 5} {
		t.Run(fmt.Sprint(fails), func(t *testing.T) {
			path, replication := fmt.Sprint("/synced-", fails), 1
			if fails > 0 {
				replication = 2
			}
			before := b.arrived()
			b.sums.Store(0)
			w := b.create(t, path, replication)
			free := b.hold()
			defer free()
			b.first.Store(true)
			flushed := b.begin(t, w, b.content)
			eventually(t, "all packets have come", func() error {
				if n := b.arrived() - before; n < batchedPackets {
					return fmt.Errorf("%d of %d", n, batchedPackets)
				}
				return nil
			})
			b.failAfter.Store(fails)
			free()
			if err := <-flushed; err != nil {
				t.Fatal(err)
			}
			// The header, the first packet, its being synced, and all others.
			if n := b.sums.Load(); fails == 0 && n != 4 {
				t.Errorf("%d writes to the checksum file for %d packets, not 4", n, batchedPackets)
			}
			if n := b.failed.Load(); n != min(fails, 1) {
				t.Errorf("%d writes have failed", n)
			}
			b.written(t, w, path)
		})
	}
}

// Packets that come while one before them is written go together, too. How much has come when
// that write ends can't be told, so a try may show nothing, and the next one waits longer.
func TestPacketsThatComeDuringAWrite(t *testing.T) {
	b := newBatched(t)
	least := int64(batchedPackets)
	for try := range 50 {
		path := fmt.Sprint("/writing-", try)
		w := b.create(t, path, 1)
		if _, err := w.Write(b.content[:batchedPacket]); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		free, all := b.hold(), b.sent.Load()+batchedPackets-1
		defer free()
		b.sums.Store(0)
		flushed := b.begin(t, w, b.content[batchedPacket:])
		eventually(t, "all packets are sent", func() error {
			if n := b.sent.Load(); n < all {
				return fmt.Errorf("%d of %d", n, all)
			}
			return nil
		})
		time.Sleep(time.Duration(try) * time.Millisecond)
		free()
		if err := <-flushed; err != nil {
			t.Fatal(err)
		}
		least = min(least, b.sums.Load())
		b.written(t, w, path)
		if least <= batchedPackets/2 {
			return
		}
	}
	t.Errorf("the checksums of %d packets took at least %d writes", batchedPackets-1, least)
}
