package verbena

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

func fileWith(t testing.TB, contents []byte) *os.File {
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

func exposeFile(t testing.TB, e *Endpoint, c FileConfig) *Exposure {
	t.Helper()
	x, err := e.ExposeFile(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = x.Close() })
	return x
}

// A file is read on every transport as memory is, and Selection tells how.
func TestExposeFile(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		want := filesServed
		if w.transport == "shm" && runtime.GOOS == "linux" {
			want = filesByDescriptor
		}
		if a.Selection().Files != want || b.Selection().Files != want {
			t.Errorf("%q and %q", a.Selection().Files, b.Selection().Files)
		}
		const size = 3 << 20
		contents := pattern(size, 1)
		f := fileWith(t, contents)
		x := exposeFile(t, b, FileConfig{File: f, Offset: 100})
		if x.Bytes() != nil || x.Token().Len() != size-100 || x.Token().Rights() != MayRead {
			t.Fatal(x.Token())
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		token, err := ParseToken(x.Token().Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct{ offset, n int }{{0, 1}, {size - 108, 8}, {5000, 4096}, {1, 100_000}, {77, MaxOperation + 5}, {0, size - 100}} {
			into := make([]byte, c.n)
			if err := a.Get(p.ctx, token, c.offset, into); err != nil || !bytes.Equal(into, contents[100+c.offset:][:c.n]) {
				t.Fatalf("%d bytes at %d are others: %v", c.n, c.offset, err)
			}
		}
		// A batch of memory and file, with a notification, and buffers.
		m, memory := exposeTo(t, b, 4096, allRights)
		buffer, err := a.Buffer(p.ctx, 4096)
		if err != nil {
			t.Fatal(err)
		}
		batch := a.Batch()
		var read [64]byte
		var before uint64
		batch.Put(memory, 8, pattern(100, 9))
		batch.GetBuffer(token, 1000, buffer, 0, 4096)
		batch.Get(memory, 8, read[:])
		batch.FetchAdd(memory, 0, 3, &before)
		batch.Get(token, 0, read[32:])
		batch.Notify(7, []byte("done"))
		if err := batch.Do(p.ctx); err != nil {
			t.Fatal(err)
		}
		if n, err := b.Receive(p.ctx); err != nil || n.Tag != 7 || !bytes.Equal(m.Bytes()[8:108], pattern(100, 9)) || binary.NativeEndian.Uint64(m.Bytes()) != 3 {
			t.Fatal("the notification came before the rest:", err)
		} else {
			n.Release()
		}
		if before != 0 || !bytes.Equal(buffer.Bytes(), contents[1100:5196]) {
			t.Fatal("a batch has read something else")
		}
		buffer.Release()
		for name, c := range map[string]struct{ got, want error }{
			"a Put":      {a.Put(p.ctx, token, 0, read[:]), ErrRights},
			"behind it":  {a.Get(p.ctx, token, size-100, read[:1]), ErrBounds},
			"no file":    {exposed(b.ExposeFile(p.ctx, FileConfig{})), ErrMemory},
			"a longer":   {exposed(b.ExposeFile(p.ctx, FileConfig{File: fileWith(t, contents[:10]), Length: 11})), ErrBounds},
			"an empty":   {exposed(b.ExposeFile(p.ctx, FileConfig{File: fileWith(t, nil)})), ErrBounds},
			"over":       {exposed(b.ExposeFile(p.ctx, FileConfig{File: fileWith(t, contents[:10]), Until: time.Now().Add(-time.Second)})), ErrRevoked},
			"closed one": {exposed(b.ExposeFile(p.ctx, FileConfig{File: f})), os.ErrClosed},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%s: %v", name, c.got)
			}
		}
		// Revoked, it is refused, and the endpoint lives.
		if err := x.Revoke(); err != nil {
			t.Fatal(err)
		}
		if err := a.Get(p.ctx, token, 0, read[:]); !errors.Is(err, ErrRevoked) {
			t.Fatal(err)
		}
		sendOne(t, p.ctx, a, b)
		closeBoth(t, a, b)
	})
}

func exposed(x *Exposure, err error) error {
	if err == nil {
		_ = x.Close()
	}
	return err
}

// A file that becomes shorter under its readers ends nothing but their reads.
func TestFileTruncated(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		const size = 1 << 20
		f := fileWith(t, pattern(size, 1))
		token := exposeFile(t, b, FileConfig{File: f}).Token()
		var wg sync.WaitGroup
		truncated := make(chan struct{})
		read := make(chan struct{}, 2)
		for range 2 {
			wg.Go(func() {
				into := make([]byte, size)
				for {
					err := a.Get(p.ctx, token, 0, into)
					select {
					case read <- struct{}{}:
					default:
					}
					select {
					case <-truncated:
						if err = a.Get(p.ctx, token, 0, into); !errors.Is(err, ErrBounds) {
							t.Error(err)
						}
						return
					default:
					}
					if err != nil && !errors.Is(err, ErrBounds) {
						t.Error(err)
						return
					}
				}
			})
		}
		<-read
		if err := f.Truncate(1000); err != nil {
			t.Error(err)
		}
		close(truncated)
		wg.Wait()
		if err := a.Get(p.ctx, token, 0, make([]byte, 1000)); err != nil {
			t.Error(err)
		}
		sendOne(t, p.ctx, a, b)
		closeBoth(t, a, b)
	})
}

// Many read files and count while the files are revoked one after the other, and then
// the endpoint ends under them.
func TestServedUnderRevocation(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		contents := pattern(100_000, 1)
		f := fileWith(t, contents)
		var files [8]*Exposure
		for i := range files {
			files[i] = exposeFile(t, b, FileConfig{File: f})
		}
		x, counter := exposeTo(t, b, 8, allRights)
		var wg sync.WaitGroup
		const each = 100
		for i := range 4 {
			wg.Go(func() {
				into := make([]byte, 50_000)
				for j := range each {
					switch err := a.Get(p.ctx, files[(i+j)%8].Token(), j, into); {
					case errors.Is(err, ErrRevoked):
					case err != nil:
						t.Error(err)
						return
					case !bytes.Equal(into, contents[j:][:len(into)]):
						t.Error("a Get has read something else")
					}
					if _, err := a.FetchAdd(p.ctx, counter, 0, 1); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Go(func() {
			for _, x := range files {
				if err := x.Revoke(); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		var sum [8]byte
		if err := a.Get(p.ctx, counter, 0, sum[:]); err != nil || binary.NativeEndian.Uint64(sum[:]) != 4*each {
			t.Error(binary.NativeEndian.Uint64(sum[:]), err)
		}
		last := exposeFile(t, b, FileConfig{File: f})
		for range 4 {
			wg.Go(func() {
				into := make([]byte, 50_000)
				for {
					if err := a.Get(p.ctx, last.Token(), 0, into); err != nil {
						if errors.Is(err, ErrRevoked) && a.Err() == nil {
							continue
						}
						return
					}
				}
			})
		}
		closeBoth(t, b)
		wg.Wait()
		closeBoth(t, a)
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
}

// An end that closes in order lets nobody into what it exposes while it lingers: the
// peer, which has messages to receive, begins no operation.
func TestNoOperationAfterGoodbye(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{}, ListenConfig{})
		a, b := p.connect(t, w.transport)
		x, token := exposeTo(t, b, 4096, allRights)
		file := exposeFile(t, b, FileConfig{File: fileWith(t, pattern(4096, 1))}).Token()
		if err := a.Get(p.ctx, file, 0, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		if err := b.Send(p.ctx, 1, pattern(300_000, 1)); err != nil { // nobody receives it: b lingers
			t.Fatal(err)
		}
		closed := make(chan error)
		go func() { closed <- b.Close() }()
		over := func(err error) bool {
			if err != nil && !errors.Is(err, ErrPeerClosed) && !(w.transport == TransportTCP && errors.Is(err, ErrRevoked)) {
				t.Error(err)
			}
			return err != nil
		}
		for !over(a.Get(p.ctx, token, 0, make([]byte, 8))) {
		}
		over(a.Get(p.ctx, file, 0, make([]byte, 8)))
		if _, err := a.FetchAdd(p.ctx, token, 0, 1); !over(err) {
			t.Error("an operation was carried out after the goodbye")
		}
		if m, err := a.Receive(p.ctx); err != nil || !bytes.Equal(m.Bytes(), pattern(300_000, 1)) {
			t.Error("what was sent before the goodbye is lost:", err)
		} else {
			m.Release()
		}
		closeBoth(t, a)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if binary.NativeEndian.Uint64(x.Bytes()) != 0 {
			t.Error("memory has changed after the goodbye")
		}
	})
}
