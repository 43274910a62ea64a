package hdfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"testing"

	"github.com/verbena-data/verbena"
)

// Files that several write are those that one would have written, whatever their length, and
// have whole blocks; only theirs are left.
func TestWritesInParallel(t *testing.T) {
	const block = 1 << 20
	s := startSystem(t, 2, 2)
	for _, transport := range []string{plain, verbena.TransportAuto} {
		c := s.own(transport, func(cfg *ClientConfig) { cfg.BlockSize = block })
		for _, size := range []int{0, 1, block, 3*block + 5, 7 * block} {
			content := randomBytes(size)
			for _, writers := range []int{1, 3, 20} {
				name := fmt.Sprintf("/parallel-%s/%d-%d", transport, size, writers)
				if err := c.WriteParallel(t.Context(), name, bytes.NewReader(content), int64(size), writers, CreateOptions{Replication: 2}); err != nil {
					t.Fatal(err)
				}
				expect(t, c, name, content)
				blocks, err := c.BlockLocations(t.Context(), name, 0, -1)
				if err != nil || len(blocks) != (size+block-1)/block {
					t.Errorf("%s: %d blocks, %v", name, len(blocks), err)
				}
			}
		}
		if all, err := c.ReadDir(t.Context(), "/parallel-"+transport); err != nil || len(all) != 15 {
			t.Errorf("%d files are there, %v", len(all), err)
		}
	}
}

// shortReader ends before it should.
type shortReader struct{ *bytes.Reader }

func (r shortReader) ReadAt(p []byte, off int64) (int, error) {
	if off > 2<<20 {
		return 0, io.EOF
	}
	return r.Reader.ReadAt(p, off)
}

// readerFunc does something before each read.
type readerFunc struct {
	*bytes.Reader
	first func()
}

func (r readerFunc) ReadAt(p []byte, off int64) (int, error) {
	r.first()
	return r.Reader.ReadAt(p, off)
}

// A file that came while the parts were written is not replaced unless that is asked for.
func TestWritesInParallelReplaceNothing(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.BlockSize = 1 << 20 })
	theirs := []byte("somebody else's")
	from := readerFunc{bytes.NewReader(randomBytes(3 << 20)), sync.OnceFunc(func() { store(t, c, "/dir/file", theirs, CreateOptions{}) })}
	if err := c.WriteParallel(t.Context(), "/dir/file", from, from.Size(), 3, CreateOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Error("over a file that came meanwhile:", err)
	}
	expect(t, c, "/dir/file", theirs)
	if all, err := c.ReadDir(t.Context(), "/dir"); err != nil || len(all) != 1 {
		t.Errorf("%d files are there, %v", len(all), err)
	}
}

// What cannot be is refused at once.
func TestWritesInParallelRefuse(t *testing.T) {
	c := startSystem(t, 1, 1).own(plain)
	for _, bad := range []struct {
		size      int64
		writers   int
		blockSize int64
	}{{-1, 1, 0}, {1, 0, 0}, {1, -1, 0}, {1, 1, -1}} {
		err := c.WriteParallel(t.Context(), "/file", bytes.NewReader([]byte{1}), bad.size, bad.writers, CreateOptions{BlockSize: bad.blockSize})
		if !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// A file that fails leaves nothing, and the one that was there as it was.
func TestFailedWritesInParallelLeaveNothing(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.BlockSize = 1 << 20 })
	old := []byte("as it was")
	store(t, c, "/dir/file", old, CreateOptions{})
	content := randomBytes(4 << 20)
	if err := c.WriteParallel(t.Context(), "/dir/file", bytes.NewReader(content), int64(len(content)), 2, CreateOptions{}); !errors.Is(err, fs.ErrExist) {
		t.Error("over a file that is there:", err)
	}
	if err := c.WriteParallel(t.Context(), "/dir/file", shortReader{bytes.NewReader(content)}, int64(len(content)), 4, CreateOptions{Replace: true}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error("of a reader that ends early:", err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.WriteParallel(over, "/dir/file", bytes.NewReader(content), int64(len(content)), 4, CreateOptions{Replace: true}); !errors.Is(err, context.Canceled) {
		t.Error("with a context that has ended:", err)
	}
	expect(t, c, "/dir/file", old)
	if all, err := c.ReadDir(t.Context(), "/dir"); err != nil || len(all) != 1 {
		t.Errorf("%d files are there, %v", len(all), err)
	}
	if err := c.WriteParallel(t.Context(), "/dir/file", bytes.NewReader(content), int64(len(content)), 4, CreateOptions{Replace: true}); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/dir/file", content)
}
