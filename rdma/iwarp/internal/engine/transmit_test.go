package engine

import (
	"bytes"
	"testing"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
)

// TestShortReadResponses answers Reads of 4 KiB: one alone is a single vector, and many
// still go in one batch.
func TestShortReadResponses(t *testing.T) {
	const size, most = 4096, 16
	for _, reads := range []int{1, most} {
		table := mem.NewTable()
		p := Params{Initiator: true, CRC: true, IRD: most, ORD: most, MaxULPDU: 65486}
		initiator := newEnd(t, table, size*most, p)
		p.Initiator = false
		target := newEnd(t, table, size*most, p)
		for i := range target.region.Bytes() {
			target.region.Bytes()[i] = byte(i * 31 >> 4)
		}
		for i := range reads {
			_, kick, err := initiator.engine.PostSend([]rdma.SendRequest{{Op: rdma.OpRead, Flags: rdma.Signaled,
				SGEs:   []rdma.SGE{{Region: initiator.region, Offset: i * size, Length: size}},
				Remote: rdma.Remote{Key: target.region.Key(), Address: target.region.Address() + uint64(i*size)}}})
			if err != nil {
				t.Fatal(err)
			}
			initiator.role = initiator.role || kick
		}
		initiator.write()
		target.read(initiator, len(initiator.wire))
		if !target.engine.Kick() {
			t.Fatal("the target has nothing to send")
		}
		b := NewBatch()
		if !target.engine.Fill(b) || b.Size < reads*size {
			t.Fatalf("a batch of %d bytes answers %d Reads of %d", b.Size, reads, size)
		}
		if reads == 1 && len(b.Vectors) != 1 {
			t.Errorf("%d vectors answer a Read of %d bytes", len(b.Vectors), size)
		}
		for _, v := range b.Vectors {
			target.wire = append(target.wire, v...)
		}
		target.engine.Written(b)
		if target.engine.Fill(b) {
			t.Error("a second batch follows")
		}
		b.Free()
		initiator.read(target, len(target.wire))
		if n := reads * size; initiator.failed || !bytes.Equal(initiator.region.Bytes()[:n], target.region.Bytes()[:n]) {
			t.Errorf("%d Reads: other bytes have arrived (failed: %v)", reads, initiator.failed)
		}
	}
}

// TestReadOfMemoryThatChanges has the target's program write to its memory after the
// CRCs of a Read Response were computed and before its bytes have gone out. The
// initiator gets bytes of one time or the other, and the connection lives on.
func TestReadOfMemoryThatChanges(t *testing.T) {
	t.Run("of several segments", func(t *testing.T) { readOfMemoryThatChanges(t, 200_000) })
	t.Run("short", func(t *testing.T) { readOfMemoryThatChanges(t, 4096) })
}

func readOfMemoryThatChanges(t *testing.T, size int) {
	initiator, target := asked(t, size)
	b := NewBatch()
	for target.engine.Fill(b) {
		for i := range target.region.Bytes() {
			target.region.Bytes()[i]++
		}
		target.take(b)
	}
	b.Free()
	initiator.answered(target)
	if bytes.Equal(initiator.region.Bytes(), target.region.Bytes()) {
		t.Error("the bytes were read after they had been put into the batch")
	}
}

// TestReadOfMemoryThatKeepsStill looks where the vectors of a Read Response point: into the
// region if it keeps still, and else to a copy.
func TestReadOfMemoryThatKeepsStill(t *testing.T) {
	const size = 4 * 65_472 // four segments: a short one would be copied in either case
	for _, still := range []bool{false, true} {
		initiator, target := asked(t, size)
		if still {
			target.region.Steady()
		}
		from, inPlace := target.region.Bytes(), 0
		for i := range from {
			from[i] = byte(i * 31 >> 4)
		}
		b := NewBatch()
		for target.engine.Fill(b) {
			for _, v := range b.Vectors {
				if at := uintptr(unsafe.Pointer(&v[0])) - uintptr(unsafe.Pointer(&from[0])); at < size {
					inPlace += len(v)
				}
			}
			target.take(b)
		}
		b.Free()
		if want := map[bool]int{true: size}[still]; inPlace != want {
			t.Errorf("keeps still: %v; %d of %d bytes are sent from where they lie, want %d", still, inPlace, size, want)
		}
		initiator.answered(target)
		if !bytes.Equal(initiator.region.Bytes(), from) {
			t.Errorf("keeps still: %v; other bytes have come", still)
		}
	}
}

// asked is two ends, the first of which has asked for all of the region of the second.
func asked(t *testing.T, size int) (initiator, target *end) {
	table := mem.NewTable()
	p := Params{Initiator: true, CRC: true, IRD: 1, ORD: 1, MaxULPDU: 65486}
	initiator = newEnd(t, table, size, p)
	p.Initiator = false
	target = newEnd(t, table, size, p)
	read := rdma.SendRequest{Op: rdma.OpRead, Flags: rdma.Signaled,
		SGEs:   []rdma.SGE{{Region: initiator.region, Length: size}},
		Remote: rdma.Remote{Key: target.region.Key(), Address: target.region.Address()}}
	_, kick, err := initiator.engine.PostSend([]rdma.SendRequest{read})
	if err != nil {
		t.Fatal(err)
	}
	initiator.role = initiator.role || kick
	initiator.write()
	target.read(initiator, len(initiator.wire))
	if !target.engine.Kick() {
		t.Fatal("the target has nothing to send")
	}
	return initiator, target
}

// take moves a batch to the wire.
func (n *end) take(b *Batch) {
	for _, v := range b.Vectors {
		n.wire = append(n.wire, v...)
	}
	n.engine.Written(b)
}

// answered takes what the target has sent, which completes one Read.
func (n *end) answered(target *end) {
	n.t.Helper()
	n.read(target, len(target.wire))
	if n.failed {
		n.t.Fatal("the initiator has ended the connection")
	}
	var done [1]rdma.Completion
	if got, err := n.sends.Poll(done[:]); got != 1 || err != nil || done[0].Status != rdma.StatusSuccess {
		n.t.Fatalf("%d completions, %v, %v; one success was due", got, done[0].Status, err)
	}
}
