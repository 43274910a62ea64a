package engine

import (
	"bytes"
	"testing"

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
	table := mem.NewTable()
	p := Params{Initiator: true, CRC: true, IRD: 1, ORD: 1, MaxULPDU: 65486}
	initiator := newEnd(t, table, size, p)
	p.Initiator = false
	target := newEnd(t, table, size, p)
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
	b := NewBatch()
	for target.engine.Fill(b) {
		for i := range target.region.Bytes() {
			target.region.Bytes()[i]++
		}
		for _, v := range b.Vectors {
			target.wire = append(target.wire, v...)
		}
		target.engine.Written(b)
	}
	b.Free()
	initiator.read(target, len(target.wire))
	if initiator.failed {
		t.Fatal("the initiator has ended the connection")
	}
	var done [1]rdma.Completion
	if n, err := initiator.sends.Poll(done[:]); n != 1 || err != nil || done[0].Status != rdma.StatusSuccess {
		t.Fatalf("%d completions, %v, %v; one success was due", n, done[0].Status, err)
	}
	if bytes.Equal(initiator.region.Bytes(), target.region.Bytes()) {
		t.Error("the bytes were read after they had been put into the batch")
	}
}
