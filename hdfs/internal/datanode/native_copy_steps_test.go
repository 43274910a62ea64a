package datanode

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A copy goes on as soon as it is told what it waits for, and what is acknowledged has left the
// window. The clock of the bubble stands meanwhile, so a wait that ends by silence shows.
func TestCopyGoesOnWhenItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &nativeCopy{nodes: 2, last: -1, patience: time.Hour, news: make(chan struct{}, 1)}
		step := func(what string, holds func() bool, tell func()) error {
			t.Helper()
			began := time.Now()
			ended := make(chan error, 1)
			go func() { ended <- c.await(t.Context(), holds) }()
			synctest.Wait()
			if len(ended) > 0 {
				t.Errorf("nobody waits for %s", what)
			}
			tell()
			err := <-ended
			if took := time.Since(began); took != 0 {
				t.Errorf("the copy goes on %v after %s: %v", took, what, err)
			}
			return err
		}
		accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
		must(t, err)
		ack := func(seqno int64) func() {
			success := hdfspb.Status_SUCCESS
			return func() {
				c.take(native.AppendAck(nil, &transfer.Ack{Seqno: seqno, Replies: []hdfspb.Status{success, success}}))
			}
		}
		must(t, step("the answer", func() bool { return c.answered }, func() { c.take(accepted) }))
		const size, window = 100, 300
		for seqno := range int64(3) {
			c.sent.Push(sentPacket{seqno, size})
			c.held, c.last = c.held+size, seqno
		}
		room := func(bytes int64) func() bool { return func() bool { return c.held+bytes <= window } }
		must(t, step("room for a packet", room(size), ack(0)))
		if c.held != 2*size || c.sent.Len() != 2 {
			t.Errorf("%d bytes of %d packets are on their way behind one that was acknowledged", c.held, c.sent.Len())
		}
		must(t, step("room for all", room(window), ack(2)))
		if c.held != 0 || c.sent.Len() != 0 {
			t.Errorf("%d bytes of %d packets are on their way behind the last that was acknowledged", c.held, c.sent.Len())
		}
		over := errors.New("over")
		var other *otherWayError
		if err := step("the end", room(window+1), func() { c.End(over) }); !errors.As(err, &other) || other.why != brokeOff || !errors.Is(err, over) {
			t.Error(err)
		}
	})
}

// What ends behind the last acknowledgement does a copy no harm.
func TestCompleteCopyDoesNotFail(t *testing.T) {
	c := &nativeCopy{nodes: 1, answered: true, whole: true, news: make(chan struct{}, 1)}
	c.sent.Push(sentPacket{0, 100})
	c.take(native.AppendAck(nil, &transfer.Ack{Replies: []hdfspb.Status{hdfspb.Status_SUCCESS}}))
	c.End(errors.New("over"))
	must(t, c.await(t.Context(), func() bool { return c.sent.Len() == 0 }))
}

// A copy that fails is aborted, so that the DataNode keeps no window and no replica for it. It
// hears of that before anything else that comes later.
func TestFailedCopyIsAborted(t *testing.T) {
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	must(t, err)
	refused, err := native.AppendAnswer(nil, native.Refused, transfer.ErrorResponse(hdfspb.Status_ERROR_EXISTS, proto.String(""), "it is there"))
	must(t, err)
	failure := native.AppendAck(nil, &transfer.Ack{Replies: []hdfspb.Status{hdfspb.Status_ERROR}})
	// Whether the copies that were accepted had been aborted when the next one came.
	aborted := make(chan bool, 1)
	f := newNativesBefore(t, func(ctx context.Context, ep *verbena.Endpoint) error {
		open, copies := map[uint32]bool{}, 0
		for {
			m, err := ep.Receive(ctx)
			if err != nil {
				return err
			}
			var answers [][]byte
			switch native.KindOf(m.Bytes()) {
			case native.SetUp:
				if copies++; copies == 1 {
					open[m.Tag] = true
					answers = [][]byte{accepted, failure}
				} else {
					aborted <- len(open) == 0
					answers = [][]byte{refused}
				}
			case native.Abort:
				delete(open, m.Tag)
			}
			for _, b := range answers {
				if err := ep.Send(ctx, m.Tag, b); err != nil {
					return err
				}
			}
			m.Release()
		}
	})
	data := random(1, 1<<20)
	writeBlock(t, f.nodes[:1], 1, 1001, data)
	if err := f.copyTo(1, data, f.nodes[1]); err == nil {
		t.Error("a copy that its DataNode does not take has succeeded")
	}
	if err := f.copyTo(1, data, f.nodes[1]); !errors.Is(err, store.ErrExists) {
		t.Error(err)
	}
	if !<-aborted {
		t.Error("the copy that failed is not aborted")
	}
	wantCopies(t, f.nodes[0], 0, 0, "")
}

// A DataNode that is told of an abort has room for the next copy when it hears of it, although
// there is memory for one window alone and it serves one operation at a time. Nothing of the
// first copy is left.
func TestAbortedCopyGivesItsWindowBack(t *testing.T) {
	const window = 1 << 20
	f := newNatives(t, 1, func(_ int, c *Config) { c.NativeMemory, c.MaxTransfers = window, 1 })
	data := random(1, 100_000)
	table := newRuntime(t, nil, "source")
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	ep, err := table.Runtime.Dial(ctx, f.nodes[0].addr, native.Service, table.Dial)
	must(t, err)
	defer ep.Close()
	setUp := func(tag uint32) {
		t.Helper()
		message, err := native.AppendSetUp(nil, window, copyOf(uint64(tag), data))
		must(t, err)
		must(t, ep.Send(ctx, tag, message))
		for {
			m, err := ep.Receive(ctx)
			must(t, err)
			v, resp, err := native.ParseAnswer(m.Bytes())
			answer := m.Tag == tag && native.KindOf(m.Bytes()) == native.Answer
			m.Release()
			if !answer {
				continue // of the copy before
			}
			if err != nil || v != native.Accepted {
				t.Errorf("copy %d: %v: %s, %v", tag, v, resp.GetMessage(), err)
			}
			return
		}
	}
	packets := nativePackets(data, 40_960)
	for tag := uint32(1); tag <= 3; tag++ {
		setUp(tag)
		must(t, ep.Send(ctx, tag, packets[0]))
		must(t, ep.Send(ctx, tag, native.AppendAbort(nil)))
	}
	setUp(4)
	before := f.nodes[0]
	f.restart(0) // waits until it has dropped them
	for id := uint64(1); id <= 3; id++ {
		if _, err := before.store.Get(id); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("copy %d, which was aborted: %v", id, err)
		}
	}
}

// A copy asks again for a window that others may give back, and not for one that there can never be.
func TestWindowOfACopyIsReservedWhole(t *testing.T) {
	dn := &DataNode{cfg: Config{NativeMemory: 100}}
	if err := dn.reserveCopy(101); err == nil || errors.Is(err, errCopyBusy) {
		t.Errorf("more than there is: %v", err)
	}
	must(t, dn.reserveCopy(60))
	if err := dn.reserveCopy(41); !errors.Is(err, errCopyBusy) {
		t.Errorf("more than is left: %v", err)
	}
	must(t, dn.reserveCopy(40))
	dn.native.release(60)
	must(t, dn.reserveCopy(60))
}

// A DataNode that makes many copies at once has no more on its way than NativeMemory allows: who
// finds no room for a window sends nothing, asks again later, and all copies are made.
func TestSourceOfCopiesKeepsToItsMemory(t *testing.T) {
	const copies, memory = 10, 2*copyWindow + copyWindow/2
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	must(t, err)
	full, release := make(chan struct{}), make(chan struct{})
	var begun, most atomic.Int64
	// It acknowledges nothing before a window is full, and nothing at all before two are and it
	// is released.
	f := newNativesOn(t, fake.NewNetwork(), 2, func(i int, c *Config) {
		if i == 0 {
			c.NativeMemory = memory
		} else {
			c.Hostname = "slow"
		}
	}, func(n *node) func(context.Context, *verbena.Endpoint) error {
		if n.cfg.Hostname != "slow" {
			return nil
		}
		return func(ctx context.Context, ep *verbena.Endpoint) error {
			type window struct{ next, bytes int64 }
			windows, all, released := map[uint32]*window{}, int64(0), false
			var due []uint32
			for {
				m, err := ep.Receive(ctx)
				if err != nil {
					return err
				}
				tag, kind, size, last := m.Tag, native.KindOf(m.Bytes()), int64(len(m.Bytes())), m.Bytes()[1]&1 != 0
				m.Release()
				switch kind {
				case native.SetUp:
					begun.Add(1)
					windows[tag] = &window{}
					if err := ep.Send(ctx, tag, accepted); err != nil {
						return err
					}
				case native.Packet:
					w := windows[tag]
					w.next, w.bytes, all = w.next+1, w.bytes+size, all+size
					most.Store(max(most.Load(), all))
					if last || w.bytes+size > copyWindow {
						due = append(due, tag)
					}
				}
				if !released && len(due) < 2 {
					continue
				}
				if !released {
					close(full)
					<-release
					released = true
				}
				for _, tag := range due {
					w := windows[tag]
					ack := native.AppendAck(nil, &transfer.Ack{Seqno: w.next - 1, Replies: []hdfspb.Status{hdfspb.Status_SUCCESS}})
					if err := ep.Send(ctx, tag, ack); err != nil {
						return err
					}
					all -= w.bytes
					w.bytes = 0
				}
				due = due[:0]
			}
		}
	})
	source, data := f.nodes[0], random(1, 3<<20)
	for id := range uint64(copies) {
		writeBlock(t, f.nodes[:1], id, 1001, data)
	}
	done := make(chan error, copies)
	begin := func(from, to uint64) {
		for id := from; id < to; id++ {
			go func() { done <- f.copyTo(id, data, f.nodes[1]) }()
		}
	}
	begin(0, 2)
	<-full
	rd, err := source.openReader(extended(copies-1, 1001, uint64(len(data))), 0, false)
	must(t, err)
	err = source.sendOnce(t.Context(), rd, f.nodes[1].addr, copyOf(copies-1, data))
	must(t, rd.Close())
	if !errors.Is(err, errCopyBusy) || begun.Load() != 2 {
		t.Errorf("a copy without room for its window: %v; %d have begun", err, begun.Load())
	}
	if reserved := source.Packets().Reserved; reserved != 2*copyWindow {
		t.Errorf("%d bytes are reserved for two copies", reserved)
	}
	begin(2, copies)
	close(release)
	for range copies {
		must(t, <-done)
	}
	if n := most.Load(); n > memory || n < copyWindow {
		t.Errorf("%d bytes were on their way, %d may be", n, memory)
	}
	if s := source.Copies(); s.Native.Blocks+s.Legacy.Blocks != copies || s.Native.Blocks < 2 {
		t.Errorf("%d copies by the native path and %d by the other", s.Native.Blocks, s.Legacy.Blocks)
	}
	wantIdle(t, source)
}

// A DataNode between two others compares the checksums of a copy itself: it does not rely on
// the last one, which may confirm what does not match.
func TestCopyIsComparedOnItsWay(t *testing.T) {
	f := newNativesBefore(t, confirmAll)
	data := random(1, 100_000)
	packets := nativePackets(data, 40_960)
	packets[1][len(packets[1])-1] ^= 1
	table := newRuntime(t, nil, "source")
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	ep, err := table.Runtime.Dial(ctx, f.nodes[0].addr, native.Service, table.Dial)
	must(t, err)
	defer ep.Close()
	setUp, err := native.AppendSetUp(nil, 1<<20, copyOf(1, data, f.nodes[1]))
	must(t, err)
	for _, m := range append([][]byte{setUp}, packets...) {
		must(t, ep.Send(ctx, 7, m))
	}
	wantNo(t, ctx, ep)
}

// confirmAll accepts all copies, and confirms all of their packets.
func confirmAll(ctx context.Context, ep *verbena.Endpoint) error {
	next := map[uint32]int64{}
	for {
		m, err := ep.Receive(ctx)
		if err != nil {
			return err
		}
		tag, kind := m.Tag, native.KindOf(m.Bytes())
		m.Release()
		var answer []byte
		switch kind {
		case native.SetUp:
			next[tag] = 0
			answer, err = native.AppendAnswer(nil, native.Accepted, nil)
		case native.Packet:
			answer = native.AppendAck(nil, &transfer.Ack{Seqno: next[tag], Replies: []hdfspb.Status{hdfspb.Status_SUCCESS}})
			next[tag]++
		}
		if err == nil && answer != nil {
			err = ep.Send(ctx, tag, answer)
		}
		if err != nil {
			return err
		}
	}
}

// copyOf is the copy of a final block to targets.
func copyOf(id uint64, data []byte, to ...*node) *hdfspb.OpWriteBlockProto {
	length := uint64(len(data))
	return &hdfspb.OpWriteBlockProto{
		Header:  &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, 1001, length)}, ClientName: proto.String("")},
		Targets: targets(to), Stage: hdfspb.OpWriteBlockProto_TRANSFER_FINALIZED.Enum(), PipelineSize: proto.Uint32(uint32(1 + len(to))),
		MinBytesRcvd: proto.Uint64(0), MaxBytesRcvd: &length, LatestGenerationStamp: proto.Uint64(1001), RequestedChecksum: transfer.CRC32C().Proto(),
	}
}
