package native

import (
	"bytes"
	"errors"
	"testing"

	"github.com/verbena-data/verbena"
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

func FuzzParsePushRequest(f *testing.F) {
	ring := rightsOf(f, verbena.MayWrite, RingBytes)
	f.Add(AppendPushRequest(nil, &RingRequest{Offset: 5, Length: 1 << 30, Unverified: true}, ring, []byte{8, 1}))
	f.Add(AppendPushRequest(nil, &RingRequest{Length: 1}, ring, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		q, ring, header, err := ParsePushRequest(b)
		if err != nil {
			return
		}
		if q.Offset < 0 || q.Length < 1 || q.Offset+q.Length < 1 || ring.Len() != RingBytes || ring.Rights()&verbena.MayWrite == 0 {
			t.Errorf("%+v, %v", q, ring)
		}
		if !bytes.Equal(AppendPushRequest(nil, &q, ring, header), b) {
			t.Errorf("%x came back as %+v", b, q)
		}
	})
}

// A push goes into a whole ring that may be written to, and nowhere else.
func TestPushRequestsAreChecked(t *testing.T) {
	writable := func(n int) verbena.Token { return rightsOf(t, verbena.MayWrite, n) }
	good := AppendPushRequest(nil, &RingRequest{Length: 1}, writable(RingBytes), []byte{8})
	if _, _, header, err := ParsePushRequest(good); err != nil || !bytes.Equal(header, []byte{8}) {
		t.Fatalf("header %v: %v", header, err)
	}
	for what, b := range map[string][]byte{
		"a smaller ring": AppendPushRequest(nil, &RingRequest{Length: 1}, writable(RingBytes-8), nil),
		"a larger ring":  AppendPushRequest(nil, &RingRequest{Length: 1}, writable(RingBytes+8), nil),
		"for reading":    AppendPushRequest(nil, &RingRequest{Length: 1}, token(t, RingBytes), nil),
		"no range":       AppendPushRequest(nil, &RingRequest{}, writable(RingBytes), nil),
		"cut off":        good[:ringRequestLen+verbena.TokenSize-1],
		"too long":       append(good, make([]byte, MaxRequest)...),
	} {
		if _, _, _, err := ParsePushRequest(b); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzParsePush(f *testing.F) {
	f.Add(AppendPush(nil, transfer.CRC32C()))
	f.Fuzz(func(t *testing.T, b []byte) {
		sum, err := ParsePush(b)
		if err != nil {
			return
		}
		if !RingFits(sum) || !bytes.Equal(AppendPush(nil, sum), b) {
			t.Errorf("%x came back as %+v", b, sum)
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
