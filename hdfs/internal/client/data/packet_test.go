package data

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A shelf lends memory of the heap.
type shelf struct {
	packet int
	lent   int // now
	empty  bool
}

type plank struct {
	s *shelf
	b []byte
}

func (p *plank) Bytes() []byte { return p.b }
func (p *plank) Release()      { p.s.lent-- }

func (s *shelf) Packet() int { return s.packet }
func (s *shelf) Lend(size int) Memory {
	if s.empty {
		return nil
	}
	s.lent++
	return &plank{s, make([]byte, size)}
}

// However a packet is filled, its checksums are those of its data, right before it.
func TestPacketsAreSummedUpAsTheyFill(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	content := make([]byte, 40_000)
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	null, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_NULL, 512)
	if err != nil {
		t.Fatal(err)
	}
	for _, sum := range []transfer.Checksum{transfer.CRC32C(), null} {
		p := NewPool(20_000, sum)
		lender := &shelf{packet: 33_000}
		p.Suit(1 << 20)
		for range 300 {
			var from Lender
			if random.IntN(2) == 0 {
				from = lender
			}
			limit := random.IntN(p.Limit(from) + 1)
			k := p.Get(7, 512, limit, from)
			if len(k.Room()) != limit || k.Cost() < headroom+limit {
				t.Fatalf("room for %d of %d bytes, %d in all", len(k.Room()), limit, k.Cost())
			}
			for len(k.Room()) > 0 && random.IntN(40) > 0 {
				n := copy(k.Room()[:1+random.IntN(len(k.Room()))], content[k.DataLen:])
				k.Grow(n)
			}
			k.Seal()
			want := make([]byte, 4*sum.Chunks(int64(k.DataLen)))
			if sum.Size() > 0 {
				sum.Sum(want, content[:k.DataLen])
			} else {
				want = nil
			}
			if !bytes.Equal(k.Sums(), want) || !bytes.Equal(k.Data(), content[:k.DataLen]) {
				t.Fatalf("a packet of %d bytes of %d has other checksums or data", k.DataLen, limit)
			}
			from32, to := k.Place(32)
			if to-from32 != 32+len(want)+int(k.DataLen) || from32 < 0 {
				t.Fatalf("it lies at %d to %d", from32, to)
			}
			p.Put(k)
		}
		if lender.lent != 0 {
			t.Errorf("%d packets were not given back", lender.lent)
		}
	}
}

// Packets of a lender are as long as it wants them, where the pool may suit it, and never
// longer than their share of the window.
func TestPacketsSuitTheirLender(t *testing.T) {
	p := NewPool(64<<10, transfer.CRC32C())
	lender := &shelf{packet: 512<<10 + 64}
	if n := p.Limit(lender); n != 64<<10 {
		t.Errorf("a fixed size became %d", n)
	}
	p.Suit(2 << 20)
	if n := p.Limit(lender); n != 1016*512 || p.Most(lender) > lender.packet {
		t.Errorf("%d bytes of data, %d in all, of %d", n, p.Most(lender), lender.packet)
	}
	if n := p.Limit(nil); n != 64<<10 {
		t.Errorf("without a lender: %d", n)
	}
	p.Suit(100_000)
	if n := p.Most(lender); n > 100_000 || n < 99_000 {
		t.Errorf("%d bytes in all, the share is 100,000", n)
	}
	lender.empty = true
	if k := p.Get(1, 0, p.Limit(lender), lender); k.Memory() != nil || len(k.Room()) != 64<<10 {
		t.Errorf("a lender that has nothing: %d bytes", len(k.Room()))
	}
}

// A packet has the data transfer protocol's frame in its memory, but for one that a pipeline may
// be reading there: nothing of that changes.
func TestFramesOfPackets(t *testing.T) {
	p := NewPool(20_000, transfer.CRC32C())
	for _, n := range []int{0, 1, 700, 20_000 / 512 * 512} {
		k := p.Get(3, 1024, n, nil)
		for i := range k.Room() {
			k.Room()[i] = byte(i)
		}
		k.Grow(len(k.Room()))
		k.Seal()
		k.Last = n == 0
		want := transfer.AppendPacketPrefix(nil, &k.PacketHeader, len(k.Sums()))
		want = append(append(want, k.Sums()...), k.Data()...)
		k.Sent = true
		before := bytes.Clone(k.Bytes())
		head, body := k.Frame()
		if !bytes.Equal(append(bytes.Clone(head), body...), want) {
			t.Errorf("%d bytes that were sent have another frame", n)
		}
		if !bytes.Equal(k.Bytes(), before) {
			t.Errorf("a frame changed %d bytes that somebody may be reading", n)
		}
		k.Sent = false
		if head, body = k.Frame(); len(head) > 0 || !bytes.Equal(body, want) {
			t.Errorf("%d bytes have another frame", n)
		}
		p.Put(k)
	}
}
