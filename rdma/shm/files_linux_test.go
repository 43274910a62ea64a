package shm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

// twoSides are connected.
func twoSides(t *testing.T) (a, b *side) {
	t.Helper()
	device := openDevice(t, Config{})
	a, b = newSide(t, device, 4096), newSide(t, device, 4096)
	a.qp, b.qp = a.pair(nil), b.pair(nil)
	connect(t, device, a.qp, b.qp)
	return a, b
}

func fileOf(t *testing.T, contents []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, contents, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestSharedFile(t *testing.T) {
	withAlarms(t, false) // descriptors are counted
	a, b := twoSides(t)
	before := countDescriptors(t)
	contents := bytes.Repeat([]byte("0123456789"), 1000)
	f := fileOf(t, contents)
	owner, reader := b.qp.(rdma.FileQueuePair), a.qp.(rdma.FileQueuePair)
	if !owner.SharesFiles() || !reader.SharesFiles() {
		t.Fatal("both ends are of this release")
	}
	s, err := owner.ShareFile(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(f.Name()); err != nil { // the name is not needed
		t.Fatal(err)
	}
	if err := f.Close(); err != nil { // nor is this descriptor
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			p := make([]byte, 1000)
			for offset := int64(i); offset < 9000; offset += 777 {
				if n, err := reader.ReadPeerFile(ctx, s.Key(), p, offset); err != nil || n != len(p) || !bytes.Equal(p, contents[offset:][:1000]) {
					t.Errorf("%d bytes at %d: %v", n, offset, err)
				}
			}
		})
	}
	wg.Wait()
	p := make([]byte, 100)
	if n, err := reader.ReadPeerFile(ctx, s.Key(), p, 9950); n != 50 || err != io.EOF {
		t.Error(n, err)
	}
	// A key that opens nothing, one of memory, and one that is the other end's.
	for _, key := range []uint32{s.Key() + 1, b.memory.Key(), a.memory.Key()} {
		if _, err := reader.ReadPeerFile(ctx, key, p, 0); !errors.Is(err, rdma.ErrRemoteAccess) {
			t.Errorf("key %#x: %v", key, err)
		}
	}
	if _, err := owner.ReadPeerFile(ctx, s.Key(), p, 0); !errors.Is(err, rdma.ErrRemoteAccess) {
		t.Error("the owner's end asks the peer:", err)
	}
	// Another connection does not get it.
	device := a.domain.Device()
	c, d := a.pair(nil), b.pair(nil)
	connect(t, device, c, d)
	if _, err := c.(rdma.FileQueuePair).ReadPeerFile(ctx, s.Key(), p, 0); !errors.Is(err, rdma.ErrRemoteAccess) {
		t.Error("a file is shared with all:", err)
	}
	if err := errors.Join(c.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	// Memory is not reached by the key of a file.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.ReadPeerFile(ctx, s.Key(), p, 0); !errors.Is(err, rdma.ErrRemoteAccess) {
		t.Error("read after the end:", err)
	}
	awaitDescriptors(t, before)
	// The connection lives.
	b.recv(1, b.sge(0, 64)...)
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 64)})
	a.expect(1, rdma.StatusSuccess)
	b.expect(1, rdma.StatusSuccess)
}

// What could make a reader wait is not shared.
func TestOnlyRegularFiles(t *testing.T) {
	a, _ := twoSides(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, f := range []*os.File{r, null, dir} {
		if _, err := a.qp.(rdma.FileQueuePair).ShareFile(int(f.Fd())); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v", f.Name(), err)
		}
	}
}

// Many files, more than are kept open, revoked and read at the same time; then either
// end goes.
func TestSharedFilesUnderReads(t *testing.T) {
	device := openDevice(t, Config{})
	a, b := newSide(t, device, 4096), newSide(t, device, 4096)
	f := fileOf(t, bytes.Repeat([]byte{7}, 4096))
	before := countDescriptors(t)
	a.qp, b.qp = a.pair(nil), b.pair(nil)
	connect(t, device, a.qp, b.qp)
	owner, reader := b.qp.(rdma.FileQueuePair), a.qp.(rdma.FileQueuePair)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()
	const files = 600
	var shared [files]rdma.SharedFile
	for i := range shared {
		var err error
		if shared[i], err = owner.ShareFile(int(f.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			p := make([]byte, 64)
			for j := range files {
				n := (j*7 + i*150) % files
				_, err := reader.ReadPeerFile(ctx, shared[n].Key(), p, int64(n))
				if err != nil && !(n%3 == 0 && errors.Is(err, rdma.ErrRemoteAccess)) {
					t.Errorf("file %d: %v", n, err)
				}
			}
		})
	}
	wg.Go(func() {
		for n := 0; n < files; n += 3 {
			if err := shared[n].Close(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	// Readers while the connection ends.
	for i := range 4 {
		wg.Go(func() {
			p := make([]byte, 64)
			for j := 0; ; j++ {
				if _, err := reader.ReadPeerFile(ctx, shared[(j*3+1+i*3)%files].Key(), p, 0); err != nil && ctx.Err() == nil {
					if reader.Err() != nil {
						return
					}
					continue
				}
				if ctx.Err() != nil {
					t.Error("the connection has ended, and its reads have not")
					return
				}
			}
		})
	}
	if err := b.qp.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := a.qp.Close(); err != nil {
		t.Error(err)
	}
	for _, s := range shared {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	awaitDescriptors(t, before)
}

// A file of another user whose reads that user could hold up is not read.
func TestReadableFilesOfOthers(t *testing.T) {
	ordinary := fileOf(t, []byte("contents"))
	memory, err := os.Open("/proc/self/mem")
	if err != nil {
		t.Skip(err)
	}
	defer memory.Close()
	for _, each := range []struct {
		file    *os.File
		foreign bool
		want    error
	}{{ordinary, false, nil}, {ordinary, true, nil}, {memory, false, nil}, {memory, true, rdma.ErrUnsupported}} {
		if err := readable(int(each.file.Fd()), each.foreign); !errors.Is(err, each.want) {
			t.Errorf("%s, foreign %v: %v", each.file.Name(), each.foreign, err)
		}
	}
}

// Without a descriptor for it an owner gives no file, and the connection goes on. A peer of another
// user who asks meanwhile does not guess keys, however often it asks.
func TestFileWithoutDescriptors(t *testing.T) {
	for name, c := range map[string]struct {
		connect func(*testing.T) (a, b *side)
		asks    int
	}{"the same user": {twoSides, 1}, "another user": {connectOthers, maxMisses + 1}} {
		t.Run(name, func(t *testing.T) {
			a, b := c.connect(t)
			s, err := b.qp.(rdma.FileQueuePair).ShareFile(int(fileOf(t, []byte("contents")).Fd()))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			reader, p := a.qp.(rdma.FileQueuePair), make([]byte, 8)
			rdmatest.WithoutDescriptors(t, func() {
				for range c.asks {
					if _, err := reader.ReadPeerFile(t.Context(), s.Key(), p, 0); !errors.Is(err, rdma.ErrRemoteAccess) {
						t.Fatalf("without descriptors: %v", err)
					}
				}
			})
			if n, err := reader.ReadPeerFile(t.Context(), s.Key(), p, 0); n != len(p) || err != nil {
				t.Errorf("with descriptors again: %d bytes, %v", n, err)
			}
			for _, side := range []*side{a, b} {
				if err := side.qp.Err(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// late has a's queue pair take the grant of what b has closed before, as it comes if what tells
// of the end overtakes it.
func late(t *testing.T, a *side, g grant, fd int) {
	t.Helper()
	qp := a.qp.(*queuePair)
	qp.conn.wantsMu.Lock()
	qp.conn.wants = append(qp.conn.wants, g.want)
	qp.conn.wantsMu.Unlock()
	p := packet{bytes: g.append(nil), descriptors: []int{fd}}
	defer p.release()
	if err := qp.handle(&p); err != nil {
		t.Error(err)
	}
}

// A file or a region that its owner has closed before the grant comes is not kept.
func TestGrantsThatComeLate(t *testing.T) {
	a, b := twoSides(t)
	qp := a.qp.(*queuePair)
	memory, err := b.domain.Allocate(4096, rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	r := memory.(*region)
	fd, err := r.descriptor(true)
	if err != nil {
		t.Fatal(err)
	}
	g := grant{want: want{value: r.key}, found: true, handle: r.handle, key: r.key, access: uint8(rdma.AccessRemoteWrite), address: r.base(), length: r.size, state: r.state}
	if err := memory.Close(); err != nil {
		t.Fatal(err)
	}
	late(t, a, g, fd)
	peer := qp.peer.Load()
	peer.mu.RLock()
	_, mapped := peer.byHandle[g.handle]
	peer.mu.RUnlock()
	if mapped {
		t.Error("a region is mapped that was closed before")
	}

	shared, err := b.qp.(rdma.FileQueuePair).ShareFile(int(fileOf(t, []byte("contents")).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r = shared.(*sharedFile).region
	if fd, err = r.descriptor(true); err != nil {
		t.Fatal(err)
	}
	g = grant{want: want{file: true, value: r.key}, found: true, handle: r.handle, key: r.key, length: 1, state: r.state}
	if err := shared.Close(); err != nil {
		t.Fatal(err)
	}
	if f, _, first := qp.files.find(r.key); f != nil || !first {
		t.Error("the file is here before it was asked for")
	}
	late(t, a, g, fd)
	qp.files.mu.RLock()
	defer qp.files.mu.RUnlock()
	if len(qp.files.byHandle) != 0 {
		t.Error("a file is kept that was closed before")
	}
}
