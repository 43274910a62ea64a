package store

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// The disk fails at every point in turn. Nothing that was written before is
// lost, and the store opens again.
func TestFailingDisk(t *testing.T) {
	sum := transfer.CRC32C()
	failed := 0
	for at := int32(0); ; at++ {
		mem := vfs.NewMem()
		s := open(t, mem, "a")
		must(t, s.Close())
		index := errorfs.OnIndex(at)
		s, err := Open(Config{FS: errorfs.Wrap(mem, errorfs.ErrInjected.If(index)), Dirs: []Directory{{Path: "/dn"}}, BootID: "a"})
		if err != nil {
			failed++
			continue
		}
		data := random(rand.New(rand.NewPCG(1, 1)), 20_000)
		safe, gen := 0, uint64(10)
		story := func() error {
			w, err := s.Create(1, gen, sum, false, nil, Want{})
			if err != nil {
				return err
			}
			for _, n := range []int{700, 900, 5000, 5001} {
				off := safe / 512 * 512
				if _, err := w.Write(int64(off), data[off:n], packet(sum, data[off:n]), sum); err != nil {
					return errors.Join(err, w.Close(false))
				}
				safe = n
				if err := w.Sync(); err != nil {
					return errors.Join(err, w.Close(false))
				}
			}
			if err := w.Finalize(true); err != nil {
				return errors.Join(err, w.Close(false))
			}
			if err := w.Close(false); err != nil {
				return err
			}
			if w, err = s.Reopen(1, ReopenOptions{Mode: Append, Generation: gen, NewGeneration: gen + 1, Min: int64(safe)}); err != nil {
				return err
			}
			gen++
			if _, err := w.Write(int64(safe), data[safe:9000], packet(sum, data[safe:9000]), sum); err != nil {
				return errors.Join(err, w.Close(false))
			}
			safe = 9000
			if err := w.Close(false); err != nil {
				return err
			}
			r, err := s.Get(1)
			if err != nil {
				return err
			}
			if _, err := r.InitRecovery(gen, gen+1); err != nil {
				return err
			}
			safe = min(safe, 8000)
			if err := r.Settle(gen+1, 8000); err != nil {
				return err
			}
			gen++
			return nil
		}
		err = story()
		_ = s.Close()
		if err != nil {
			failed++
		}
		s = open(t, mem, "a")
		if safe > 0 {
			got := contents(t, s, 1)
			if len(got) < safe || !bytes.Equal(got, data[:len(got)]) {
				t.Fatalf("operation %d failed (%v): %d bytes are left of %d", at, err, len(got), safe)
			}
		}
		must(t, s.Close())
		if err == nil {
			break
		}
	}
	if failed < 40 {
		t.Fatalf("only %d operations failed", failed)
	}
}
