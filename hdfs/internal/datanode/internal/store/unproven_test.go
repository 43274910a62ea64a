package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Bytes that nobody has compared with their checksums, and that are not acknowledged, are
// gone when another pipeline goes on with the replica, also within a chunk.
func TestUnprovenBytesAreCutOff(t *testing.T) {
	s := open(t, vfs.NewMem(), "a")
	defer s.Close()
	sum := transfer.CRC32C()
	data := random(rand.New(rand.NewPCG(1, 2)), 3000)
	w, err := s.Create(1, 10, sum, false, nil, Want{})
	must(t, err)
	put := func(off, end int, acked bool, spoil int) {
		t.Helper()
		b := bytes.Clone(data[off:end])
		sums := packet(sum, b)
		if spoil >= 0 {
			b[spoil] ^= 1
		}
		tail, err := w.WriteUnproven(int64(off), b, sums, sum)
		must(t, err)
		if acked {
			w.Acked(int64(end), tail)
		}
	}
	put(0, 700, true, -1)
	if got := contents(t, s, 1); !bytes.Equal(got, data[:700]) {
		t.Fatal("other bytes are visible")
	}
	put(512, 2048, false, 600) // wrong on its way here
	must(t, w.Close(false))
	w, err = s.Reopen(1, ReopenOptions{Mode: RecoverWriting, Generation: 10, NewGeneration: 11, Min: 700, Max: 3000})
	must(t, err)
	if i := w.Info(); i.Length != 700 || i.Visible != 700 {
		t.Fatalf("%+v", i)
	}
	write(t, w, 512, data[512:])
	must(t, w.Finalize(false))
	must(t, w.Close(false))
	if got := contents(t, s, 1); !bytes.Equal(got, data) {
		t.Error("wrong bytes")
	}
	r, err := s.Get(1)
	must(t, err)
	rd, err := r.Open()
	must(t, err)
	defer rd.Close()
	got, check := make([]byte, 3000), make([]byte, 4*sum.Chunks(3000))
	must(t, rd.Read(got, check, 0))
	if !bytes.Equal(got, data) || sum.Verify(check, got) != nil {
		t.Error("Read gives other bytes")
	}
	must(t, s.Delete(1, 11))
	if err := rd.Read(got, check, 0); !errors.Is(err, ErrChanged) {
		t.Errorf("of a replica that is gone: %v", err)
	}
}

// A recovery is told of no byte that nobody has compared: the wrong ones would end the file.
func TestUnprovenBytesAndRecovery(t *testing.T) {
	sum := transfer.CRC32C()
	data := random(rand.New(rand.NewPCG(1, 2)), 2048)
	for _, length := range []int{700, 650, 512, 100} {
		s := open(t, vfs.NewMem(), "a")
		w, err := s.Create(1, 10, sum, false, nil, Want{})
		must(t, err)
		tail, err := w.WriteUnproven(0, data[:700], packet(sum, data[:700]), sum)
		must(t, err)
		w.Acked(700, tail)
		wrong, sums := bytes.Clone(data[512:]), packet(sum, data[512:])
		wrong[600] ^= 1
		_, err = w.WriteUnproven(512, wrong, sums, sum)
		must(t, err)
		must(t, w.Close(false))
		r, err := s.Get(1)
		must(t, err)
		if i, err := r.InitRecovery(10, 20); err != nil || i.Length != 700 || i.Torn {
			t.Fatalf("%+v %v", i, err)
		}
		if u := s.Storages()[0]; u.Used != 700 {
			t.Errorf("%d bytes used, want 700", u.Used)
		}
		must(t, r.Settle(20, int64(length)))
		if got := contents(t, s, 1); !bytes.Equal(got, data[:length]) {
			t.Errorf("settled on %d bytes: others are there", length)
		}
		must(t, s.Close())
	}
}
