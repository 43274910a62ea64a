package hdfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/hdfs/internal/client/lease"
)

// A file that has been closed, or aborted, is neither read nor written, whatever is asked of
// it, and a read opens no connection that nobody would close.
func TestClosedFiles(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own("tcp")
	store(t, c, "/file", randomBytes(100_000), CreateOptions{})
	f, err := c.Open(t.Context(), "/file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	created := func(name string) *FileWriter {
		w, err := c.Create(t.Context(), name, CreateOptions{})
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	closed, aborted := created("/closed"), created("/aborted")
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	aborted.Abort()
	for what, f := range map[string]func() (int, error){
		"Read":          func() (int, error) { return f.Read(b) },
		"Read nothing":  func() (int, error) { return f.Read(nil) },
		"ReadAt":        func() (int, error) { return f.ReadAt(b, 3) },
		"ReadAtContext": func() (int, error) { return f.ReadAtContext(t.Context(), b, 3) },
		"WriteTo":       func() (int, error) { n, err := f.WriteTo(io.Discard); return int(n), err },
		"Seek":          func() (int, error) { n, err := f.Seek(5, io.SeekStart); return int(n), err },
		"Refresh":       func() (int, error) { return 0, f.Refresh(t.Context()) },
		"Close again":   func() (int, error) { return 0, f.Close() },

		"Write":    func() (int, error) { return closed.Write(b) },
		"ReadFrom": func() (int, error) { n, err := closed.ReadFrom(bytes.NewReader(b)); return int(n), err },
		"Flush":    func() (int, error) { return 0, closed.Flush(t.Context()) },
		"Sync":     func() (int, error) { return 0, closed.Sync(t.Context(), true) },

		"Write, aborted":    func() (int, error) { return aborted.Write(b) },
		"ReadFrom, aborted": func() (int, error) { n, err := aborted.ReadFrom(bytes.NewReader(b)); return int(n), err },
		"Flush, aborted":    func() (int, error) { return 0, aborted.Flush(t.Context()) },
		"Close, aborted":    func() (int, error) { return 0, aborted.Close() },
	} {
		n, err := f()
		var path *fs.PathError
		if n != 0 || !errors.Is(err, fs.ErrClosed) || !errors.As(err, &path) {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	if err := closed.Close(); err != nil {
		t.Errorf("a writer's Close again: %v", err)
	}
}

// What ends a read or a write can be told by errors.Is.
func TestErrorsThatTellWhatHappened(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own("tcp", func(cfg *ClientConfig) { cfg.ReadFailures = -1 })
	store(t, c, "/file", randomBytes(100_000), CreateOptions{})
	w, err := c.Create(t.Context(), "/taken", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if closed, err := s.own("tcp").RecoverLease(t.Context(), "/taken"); err != nil || !closed {
		t.Fatal(closed, err)
	}
	if _, err = w.Write(make([]byte, 10)); err == nil {
		err = w.Close()
	}
	if !errors.Is(err, ErrLeaseLost) {
		t.Errorf("a write to a file that another client has taken: %v", err)
	}
	w.Abort()
	if w, err = c.Create(t.Context(), "/unrenewed", CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.s.Abort(fmt.Errorf("%w: not for 21 minutes", lease.ErrLost)) // as the renewer does
	<-w.s.Done()
	if _, err := w.Write(make([]byte, 10)); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("a write to a file whose lease was not renewed: %v", err)
	}
	f, err := c.Open(t.Context(), "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := s.DataNodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 10), 0); !errors.Is(err, ErrBlockMissing) {
		t.Errorf("ReadAt without a DataNode: %v", err)
	}
	if _, err := f.Read(make([]byte, 10)); !errors.Is(err, ErrBlockMissing) {
		t.Errorf("Read without a DataNode: %v", err)
	}
}

// A file has no negative number of replicas, and not more than the protocol has.
func TestImpossibleReplication(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own("tcp")
	for _, n := range []int{-2, 1 << 16} {
		if _, err := c.Create(t.Context(), "/file", CreateOptions{Replication: n}); !errors.Is(err, fs.ErrInvalid) || strings.Contains(err.Error(), "4294967294") {
			t.Errorf("%d replicas: %v", n, err)
		}
		if err := c.SetReplication(t.Context(), "/file", n); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%d replicas, set: %v", n, err)
		}
	}
}
