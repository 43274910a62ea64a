package datanode

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/shm"
)

// newShared is newRuntime over shared memory. Close waits as long as linger.
func newShared(t testing.TB, linger time.Duration) *native.TableConfig {
	t.Helper()
	rt, err := verbena.New(verbena.Config{Providers: []rdma.Provider{shm.New(shm.Config{})}, Linger: linger})
	must(t, err)
	t.Cleanup(func() { rt.Close() })
	g, err := rt.NewGroup(verbena.GroupConfig{Name: "hdfs", Relay: true})
	must(t, err)
	return &native.TableConfig{Runtime: rt, Dial: verbena.DialConfig{Group: g, Transport: "shm", Tuning: verbena.TuningTable{"shm": {Chunks: 16}}}}
}

// A sharedWriter writes block 1 over shared memory, in packets of one chunk of packetData bytes.
type sharedWriter struct {
	*nativeClient
	packets [][]byte
}

const packetData = 200 << 10

// newSharedWriter sets a pipeline up whose disks d holds, of the DataNode number holds. What it
// writes first makes DataNodes know its memory.
func newSharedWriter(t *testing.T, nodes, holds int, d *dam, linger time.Duration) (*fixture, *sharedWriter) {
	t.Helper()
	f := fixtureOf(t, nodes, func(i int, c *Config) {
		c.Native = newShared(t, 0)
		if i == holds {
			c.FS = d.disk()
		}
	}, nil)
	table := newShared(t, linger)
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	ep, err := table.Runtime.Dial(ctx, f.nodes[0].addr, native.Service, table.Dial)
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	t.Cleanup(d.free) // a DataNode that is being held does not close
	w := &sharedWriter{&nativeClient{t, ctx, ep}, nativePackets(random(1, 8*packetData), packetData)}
	if v, resp := w.setUpWith(7, 4<<20, writeOf(1, f.nodes[1:]...)); v != native.Accepted {
		t.Fatal(resp)
	}
	for seqno := range int64(4) {
		b := w.put(seqno)
		w.acknowledged(seqno)
		must(t, ep.Settled(ctx, b)) // the next one lies where this one did, in a region that is known
		b.Release()
	}
	return f, w
}

// put sends a packet from a buffer, which it returns with a reference.
func (w *sharedWriter) put(seqno int64) *verbena.Buffer {
	w.t.Helper()
	p := w.packets[seqno]
	b, err := w.ep.Buffer(w.ctx, len(p))
	must(w.t, err)
	copy(b.Bytes(), p)
	b.Retain()
	must(w.t, w.ep.SendBuffer(w.ctx, 7, nil, b))
	return b
}

func (w *sharedWriter) acknowledged(seqno int64) {
	w.t.Helper()
	var a transfer.Ack
	if must(w.t, native.ParseAck(w.next(7), &a)); !a.OK() || a.Seqno != seqno {
		w.t.Fatalf("acknowledgement %+v of packet %d", a, seqno)
	}
}

// has tells for a moment, or as long as it takes if it should not, whether DataNodes use a buffer.
func (w *sharedWriter) used(b *verbena.Buffer) bool {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, 50*time.Millisecond)
	defer cancel()
	err := w.ep.Settled(ctx, b)
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		w.t.Fatal(err)
	}
	return err != nil
}

// finish writes what is left, and looks for all of it at the DataNodes.
func (w *sharedWriter) finish(f *fixture, from int64) {
	w.t.Helper()
	for seqno := from; seqno < int64(len(w.packets)); seqno++ {
		w.put(seqno).Release()
		w.acknowledged(seqno)
	}
	for _, n := range f.nodes {
		if got := visibleLength(w.t, n, 1, 1001); got != 8*packetData {
			w.t.Errorf("%s has %d bytes, %d were written", n.addr, got, 8*packetData)
		}
	}
}

// The last DataNode writes packets from where they lie in the client's memory, and acknowledges
// and releases them when it has.
func TestPacketsAreWrittenInPlace(t *testing.T) {
	d := newDam()
	f, w := newSharedWriter(t, 1, 0, d, 0)
	d.shut.Store(true)
	b := w.put(4)
	d.wait(t)
	if !w.used(b) {
		t.Error("the packet was copied before it was written")
	}
	d.free()
	w.acknowledged(4)
	must(t, w.ep.Settled(w.ctx, b))
	b.Release()
	w.finish(f, 5)
}

// A DataNode in the middle takes packets into memory of its own and sends those on: what the client
// does with its memory then concerns no replica.
func TestPacketsAreSentOnFromOwnMemory(t *testing.T) {
	for holds := range 2 {
		d := newDam()
		f, w := newSharedWriter(t, 2, holds, d, 0)
		d.shut.Store(true)
		b := w.put(4)
		d.wait(t)
		must(t, w.ep.Settled(w.ctx, b))
		clear(b.Bytes())
		b.Release()
		d.free()
		w.acknowledged(4)
		w.finish(f, 5)
	}
}

// A client that goes while its packet is being written may have used the memory for something
// else: nothing of the packet becomes visible, and another pipeline cuts it off.
func TestPacketsOfAClientThatGoesAreNotCounted(t *testing.T) {
	d := newDam()
	f, w := newSharedWriter(t, 1, 0, d, time.Millisecond)
	d.shut.Store(true)
	b := w.put(4)
	d.wait(t)
	if err := w.ep.Close(); !errors.Is(err, verbena.ErrNotDelivered) {
		t.Errorf("Close while the packet is used: %v", err)
	}
	b.Release()
	acknowledged := f.nodes[0].Packets().Acknowledgements
	d.free()
	f.nodes[0].waitIdle(t, 1)
	if got := visibleLength(t, f.nodes[0], 1, 1001); got != 4*packetData {
		t.Errorf("%d bytes are visible, %d were acknowledged", got, 4*packetData)
	}
	if n := f.nodes[0].Packets().Acknowledgements; n != acknowledged {
		t.Errorf("a packet was acknowledged to nobody")
	}
	replica, err := f.nodes[0].store.Get(1)
	must(t, err)
	info, err := replica.InitRecovery(1001, 1002)
	must(t, err)
	if info.Length != 4*packetData {
		t.Errorf("a recovery finds %d bytes, %d were acknowledged", info.Length, 4*packetData)
	}
}
