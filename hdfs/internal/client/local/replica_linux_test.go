package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/shortcircuit"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// handedOver is a replica as a DataNode hands it over, with the memory of its flag.
type handedOver struct {
	*replica
	t     *testing.T
	flags int // descriptor
	path  *Path
}

// newHandedOver is one that is in use, so that its descriptors stay open.
func newHandedOver(t *testing.T, content []byte) *handedOver {
	t.Helper()
	sum := transfer.CRC32C()
	sums := make([]byte, 4*sum.Chunks(int64(len(content))))
	sum.Sum(sums, content)
	open := func(name string, content []byte) int {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	flags := open("flags", make([]byte, shortcircuit.SegmentSize))
	own, err := unix.Dup(flags)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := shortcircuit.Adopt(own)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { memory.Close() })
	if err := memory.Claim(0); err != nil {
		t.Fatal(err)
	}
	p := &Path{Path: farPath{}, cfg: Config{Logger: slog.New(slog.DiscardHandler)}, replicas: map[key]*replica{}}
	r := &replica{
		node: &node{path: p}, slot: slot{segment: &segment{memory: memory}}, data: open("data", content), meta: open("meta", sums),
		sum: sum, size: int64(len(content)), length: int64(len(content)), full: sum.Chunks(int64(len(content))), state: opened, users: 2,
	}
	p.replicas[r.key] = r
	return &handedOver{r, t, flags, p}
}

// takeBack is what the DataNode does before it changes the replica.
func (h *handedOver) takeBack() {
	h.t.Helper()
	if _, err := unix.Pwrite(h.flags, make([]byte, 8), 0); err != nil {
		h.t.Fatal(err)
	}
}

// damage changes the byte at off.
func (h *handedOver) damage(off int64) {
	h.t.Helper()
	var b [1]byte
	_, err := unix.Pread(h.data, b[:], off)
	b[0] ^= 1
	if err == nil {
		_, err = unix.Pwrite(h.data, b[:], off)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *handedOver) read(off, length int64) ([]byte, bool, error) {
	b := make([]byte, length)
	done, err := h.path.fillFrom(h.t.Context(), h.replica, &data.ReadRequest{Offset: off, Length: length}, b)
	return b, done, err
}

func random(n int) []byte {
	b := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{byte(n)})
	rng.Read(b)
	return b
}

// A replica that has been taken back is not read from any more, although its descriptors are
// open and its bytes match: what the DataNode does to it from then on is nobody's business.
func TestReplicasThatAreTakenBackAreNotRead(t *testing.T) {
	content := random(3*piece + 100)
	h := newHandedOver(t, content)
	if got, done, err := h.read(5, 2*piece); err != nil || !done || !bytes.Equal(got, content[5:5+2*piece]) {
		t.Fatal("before", done, err)
	}
	r := &blockReader{p: h.path, ctx: t.Context(), req: data.ReadRequest{Length: h.length}, r: h.replica, verify: true}
	if got, err := r.Next(); err != nil || !bytes.Equal(got, content[:piece]) {
		t.Fatal("the first piece", err)
	}
	h.takeBack()
	if _, done, err := h.read(5, 100); err != nil || done {
		t.Error("a read of a replica that was taken back", done, err)
	}
	if _, err := r.Next(); !errors.Is(err, errFar) {
		t.Error("the next piece is not read over a connection:", err)
	}
}

// A read whose context has ended goes no further than to the end of a piece.
func TestReadsByDescriptorEndWithTheirContext(t *testing.T) {
	h := newHandedOver(t, random(2*piece))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("somebody else was faster")
	cancel(cause)
	b := make([]byte, 2*piece)
	if done, err := h.path.fillFrom(ctx, h.replica, &data.ReadRequest{Length: 2 * piece}, b); done || !errors.Is(err, cause) {
		t.Error(done, err)
	}
	if !bytes.Equal(b[piece:], make([]byte, piece)) {
		t.Error("the second piece was read")
	}
}

// Bytes that do not match are the replica's fault, in whichever chunk, unless it has been
// taken back: then it may be changing.
func TestBytesOfReplicasAreCompared(t *testing.T) {
	const length = 10*512 + 100 // the last chunk is not whole
	for _, off := range []int64{0, 511, 5 * 512, length - 101, length - 100, length - 1} {
		for _, from := range []int64{0, off} {
			t.Run(fmt.Sprintf("damaged at %d, read from %d", off, from), func(t *testing.T) {
				h := newHandedOver(t, random(length))
				h.damage(off)
				if _, done, err := h.read(from, length-from); !errors.Is(err, transfer.ErrChecksum) || done {
					t.Error(done, err)
				}
				r := &blockReader{p: h.path, ctx: t.Context(), req: data.ReadRequest{Offset: from, Length: length - from}, r: h.replica, verify: true}
				if _, err := r.Next(); !errors.Is(err, transfer.ErrChecksum) {
					t.Error(err)
				}
			})
		}
	}
	h := newHandedOver(t, random(length))
	h.damage(7)
	mismatch := h.readAt(make([]byte, 100), 0, true)
	if !errors.Is(mismatch, transfer.ErrChecksum) {
		t.Fatal(mismatch)
	}
	h.takeBack()
	if done, err := h.path.failed(h.replica, mismatch); err != nil || done {
		t.Error("a replica that was taken back meanwhile is blamed:", err)
	}
}

// A replica of Apache's that grows changes its last checksum. That is nobody's fault, and it is
// read over a connection then; one that is known to grow is from the start.
func TestReplicasThatGrowAreNotBlamed(t *testing.T) {
	const length, more = 3*512 + 100, 50
	content := random(length + more)
	h := newHandedOver(t, content[:length])
	if got, done, err := h.read(0, length); err != nil || !done || !bytes.Equal(got, content[:length]) {
		t.Fatal("before", done, err)
	}
	if r, err := h.path.acquire(t.Context(), &data.ReadRequest{Growing: true}); r != nil || err != nil {
		t.Error("one that is being written is read by descriptor:", r, err)
	}
	var last [4]byte
	h.sum.Sum(last[:], content[3*512:])
	if _, err := unix.Pwrite(h.data, content[length:], length); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Pwrite(h.meta, last[:], 3*4); err != nil {
		t.Fatal(err)
	}
	if got, done, err := h.read(0, 3*512); err != nil || !done || !bytes.Equal(got, content[:3*512]) {
		t.Error("what does not change", done, err)
	}
	r := &blockReader{p: h.path, ctx: t.Context(), req: data.ReadRequest{Length: length}, r: h.replica, verify: true}
	if _, err := r.Next(); !errors.Is(err, errFar) {
		t.Error("it is not read over a connection:", err)
	}
	if _, done, err := h.read(0, length); err != nil || done {
		t.Error("what has changed", done, err)
	}
}
