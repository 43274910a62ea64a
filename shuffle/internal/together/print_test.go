package together_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/verbena-data/verbena/shuffle/internal/jobtest"
	"github.com/verbena-data/verbena/shuffle/internal/together"
)

// TestPrint has process 0 write what all have, in order, also if it is more than goes at once.
func TestPrint(t *testing.T) {
	for _, lengths := range [][]int{{0}, {3}, {0, 0}, {5, 512 << 10, 0}, {512<<10 + 1, 0, 1 << 20}} {
		var out, want bytes.Buffer
		var all sync.WaitGroup
		for rank, x := range jobtest.Exchanges(t, len(lengths), 1) {
			own := bytes.Repeat([]byte{byte('a' + rank)}, lengths[rank])
			want.Write(own)
			all.Go(func() {
				to := io.Writer(&out)
				if rank > 0 {
					to = nil
				}
				if err := together.Print(t.Context(), x, iotest.HalfReader(bytes.NewReader(own)), to); err != nil {
					t.Error(err)
				}
				said, err := together.Told(t.Context(), x, bytes.Repeat([]byte(fmt.Sprint(rank)), 600_000))
				if err != nil || string(said) != strings.Repeat("0", 600_000) {
					t.Errorf("process %d is told %d bytes, %v", rank, len(said), err)
				}
			})
		}
		all.Wait()
		if !bytes.Equal(out.Bytes(), want.Bytes()) {
			t.Errorf("%v: %d bytes, want %d", lengths, out.Len(), want.Len())
		}
	}
}

type broken struct{}

var errFull = errors.New("full")

func (broken) Write([]byte) (int, error) { return 0, errFull }

// A process that cannot read its part, be it for an end that it does not expect, and one that cannot write, end all.
func TestPrintFails(t *testing.T) {
	for name, c := range map[string]struct {
		failing io.Reader
		out     io.Writer
		want    error
	}{
		"read":  {iotest.ErrReader(io.ErrUnexpectedEOF), io.Discard, io.ErrUnexpectedEOF},
		"write": {strings.NewReader("text"), broken{}, errFull},
	} {
		var all sync.WaitGroup
		for rank, x := range jobtest.Exchanges(t, 2, 1) {
			all.Go(func() {
				own := io.Reader(strings.NewReader("x"))
				if rank == 1 {
					own = c.failing
				}
				err := together.Print(t.Context(), x, own, c.out)
				if err == nil || !strings.Contains(err.Error(), c.want.Error()) {
					t.Errorf("%s: process %d: %v", name, rank, err)
				}
			})
		}
		all.Wait()
	}
}
