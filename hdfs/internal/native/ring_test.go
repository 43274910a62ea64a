package native

import (
	"bytes"
	"testing"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// The slots of a ring lie beside each other within its memory, and come in turn.
func TestSlots(t *testing.T) {
	end := 0
	for n := range uint64(RingSlots) {
		data, sums := Slot(n)
		if data != end || sums != data+SlotData {
			t.Errorf("slot %d lies at %d and %d", n, data, sums)
		}
		end = sums + SlotSums
		if again, _ := Slot(n + 5*RingSlots); again != data {
			t.Errorf("slot %d lies at %d, and later at %d", n, data, again)
		}
	}
	if end != RingBytes {
		t.Errorf("the slots end at %d of %d", end, RingBytes)
	}
}

func TestRingFits(t *testing.T) {
	for bpc, fits := range map[uint32]bool{1: false, 128: false, 256: true, 512: true, 1000: true, SlotData: true, SlotData + 1: false, transfer.MaxBytesPerChecksum: false} {
		sum, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C, bpc)
		if err != nil {
			t.Fatal(err)
		}
		if RingFits(sum) != fits {
			t.Errorf("chunks of %d bytes: want %t", bpc, fits)
		}
	}
}

func FuzzParseRingRequest(f *testing.F) {
	f.Add(AppendRingRequest(nil, &RingRequest{Offset: 5, Length: 1 << 30, Unverified: true}, []byte{8, 1}))
	f.Add(AppendRingRequest(nil, &RingRequest{Length: 1}, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, header, err := ParseRingRequest(b)
		if err != nil {
			return
		}
		if q.Offset < 0 || q.Length < 1 || q.Offset+q.Length < 1 {
			t.Errorf("%+v", q)
		}
		if !bytes.Equal(AppendRingRequest(nil, &q, header), b) {
			t.Errorf("%x came back as %+v", b, q)
		}
	})
}

func FuzzParseRing(f *testing.F) {
	f.Add(AppendRing(nil, &Ring{Sum: transfer.CRC32C(), Token: token(f, RingBytes)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRing(b)
		if err != nil {
			return
		}
		if !RingFits(r.Sum) || r.Token.Len() != RingBytes || !bytes.Equal(AppendRing(nil, &r), b) {
			t.Errorf("%x came back as %+v", b, r)
		}
	})
}

func FuzzParseFilled(f *testing.F) {
	f.Add(AppendFilled(nil, &Filled{Offset: 1 << 20, Data: SlotData, Sums: SlotData / 512 * 4}))
	f.Add(AppendFilled(nil, &Filled{Data: 1, Sums: 4}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseFilled(b, transfer.CRC32C())
		if err != nil {
			return
		}
		if s.Offset < 0 || s.Data < 1 || s.Data > SlotData || s.Sums < 4 || s.Sums > SlotSums || !bytes.Equal(AppendFilled(nil, &s), b) {
			t.Errorf("%x came back as %+v", b, s)
		}
	})
}
