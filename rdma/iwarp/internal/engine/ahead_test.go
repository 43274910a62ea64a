package engine

import (
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
)

// TestLongWritesAreNotCopied sends long Writes, with a short Send behind some of them that
// tells of them. After the first ones nearly all of the payload is read to its place. When
// only short messages come, as much as possible is read at a time again.
func TestLongWritesAreNotCopied(t *testing.T) {
	const long, rounds, between = 32 << 10, 16, 4
	table := mem.NewTable()
	params := Params{CRC: true, MaxULPDU: long + 14, SpeakFirst: true}
	from, to := newEnd(t, table, long, params), newEnd(t, table, 2*long, params)
	post := func(q rdma.SendRequest) {
		t.Helper()
		_, kick, err := from.engine.PostSend([]rdma.SendRequest{q})
		if err != nil {
			t.Fatal(err)
		}
		from.role = from.role || kick
	}
	var copied int
	exchange := func() {
		from.write()
		for len(from.wire) > 0 && !to.failed {
			direct := to.engine.Direct()
			n := copy(direct, from.wire)
			if direct != nil {
				to.engine.Placed(n)
			}
			from.wire = from.wire[n:]
			n = to.engine.Ahead(min(len(from.wire), 128<<10))
			copied += n
			if err := to.engine.Feed(from.wire[:n]); err != nil {
				t.Fatal(err)
			}
			from.wire = from.wire[n:]
		}
		for _, n := range []*end{from, to} {
			var c [16]rdma.Completion
			if _, err := n.sends.Poll(c[:]); err != nil {
				t.Fatal(err)
			}
			if _, err := n.recvs.Poll(c[:]); err != nil {
				t.Fatal(err)
			}
		}
	}
	tell := func() {
		t.Helper()
		if _, err := to.receives.Post([]rdma.RecvRequest{{SGEs: []rdma.SGE{{Region: to.region, Offset: long, Length: 1 << 10}}}}); err != nil {
			t.Fatal(err)
		}
		post(rdma.SendRequest{Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: from.region, Length: 100}}})
	}
	for round := range rounds {
		for range between {
			post(rdma.SendRequest{Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: from.region, Length: long}},
				Remote: rdma.Remote{Address: to.region.Address(), Key: to.region.Key()}})
		}
		tell()
		if round == 1 {
			copied = 0
		}
		exchange()
	}
	if most := (rounds - 1) * (between + 1) * aheadBytes; copied > most || to.failed {
		t.Errorf("%d bytes of %d are copied, want %d at most", copied, (rounds-1)*between*long, most)
	}
	for range aheadSmall + 1 {
		tell()
		exchange()
	}
	if n := to.engine.Ahead(128 << 10); n != 128<<10 {
		t.Errorf("after short messages alone %d bytes are read ahead", n)
	}
}
