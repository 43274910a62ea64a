package datanode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/colinmarc/hdfs/v2"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
	"github.com/verbena-data/verbena/internal/port"
)

// fileSystem is a real NameNode, three DataNodes and an unmodified client.
type fileSystem struct {
	*fixture
	*hdfs.Client
}

func newFileSystem(t *testing.T) *fileSystem {
	nn, err := namenode.Open(t.Context(), namenode.Config{Dir: t.TempDir(), Superuser: "root", HeartbeatInterval: 20 * time.Millisecond,
		CheckInterval: 20 * time.Millisecond, RedundancyInterval: 20 * time.Millisecond, RepairDelay: time.Millisecond, Groups: func(string) []string { return nil }})
	must(t, err)
	srv := rpc.NewServer(rpc.Config{})
	nn.RegisterRPC(srv)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = port.Accept(ctx, l, slog.New(slog.DiscardHandler), func(nc net.Conn) { go srv.ServeConn(nc) })
	})
	f := &fileSystem{fixture: &fixture{t: t, net: &testNet{nodes: map[string]*node{}}}}
	t.Cleanup(func() {
		for _, n := range f.nodes {
			n.stop()
		}
		l.Close()
		srv.Close()
		cancel()
		wg.Wait()
		must(t, nn.Close())
	})
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		f.nodes = append(f.nodes, f.start(Config{Dirs: []Directory{{Path: t.TempDir()}}, FS: vfs.Default, Holder: f.net.holder,
			Host: "127.0.0.1", Port: uint16(l.Addr().(*net.TCPAddr).Port), ScanRate: -1,
			NameNode: nn}, l))
	}
	f.Client, err = hdfs.NewClient(hdfs.ClientOptions{Addresses: []string{l.Addr().String()}, User: "root"})
	must(t, err)
	t.Cleanup(func() { f.Client.Close() })
	// The client fetches these when it first needs them, without a lock.
	_, err = f.ServerDefaults()
	must(t, err)
	for end := time.Now().Add(patient); ; {
		fs, err := f.StatFs()
		must(t, err)
		if fs.Capacity > 0 && !nn.InSafeMode() && len(f.nodes) == 3 && f.registered() {
			return f
		}
		if time.Now().After(end) {
			t.Fatal("the file system does not get ready")
		}
		f.nodes[0].sleep(time.Millisecond)
	}
}

func (f *fileSystem) registered() bool {
	for _, n := range f.nodes {
		if !n.hasNameNode() {
			return false
		}
	}
	return true
}

func (f *fileSystem) write(name string, w *hdfs.FileWriter, data []byte) {
	f.t.Helper()
	_, err := w.Write(data)
	must(f.t, err)
	must(f.t, w.Close())
}

func (f *fileSystem) wantFile(name string, want []byte) {
	f.t.Helper()
	r, err := f.Open(name)
	must(f.t, err)
	defer r.Close()
	got, err := io.ReadAll(r)
	must(f.t, err)
	if !bytes.Equal(got, want) {
		f.t.Fatalf("%s: %d bytes, want %d, or wrong ones", name, len(got), len(want))
	}
}

// again repeats what the client gives up on too early, such as a file that is
// still being recovered.
func (f *fileSystem) again(what string, do func() error) {
	f.t.Helper()
	var err error
	for end := time.Now().Add(patient); time.Now().Before(end); {
		if err = do(); err == nil {
			return
		}
		if !f.nodes[0].sleep(10*time.Millisecond) && f.nodes[0].ctx.Err() == nil {
			break
		}
	}
	f.t.Fatalf("%s: %v", what, err)
}

func TestUnmodifiedClient(t *testing.T) {
	f := newFileSystem(t)
	data := random(1, 5<<20)
	w, err := f.CreateFile("/file", 3, 1<<20, 0o644)
	must(t, err)
	f.write("/file", w, data[:3_500_000])
	f.wantFile("/file", data[:3_500_000])
	at := 3_500_000
	for _, n := range []int{1, 511, 513, 100_000, 700_000} {
		var w *hdfs.FileWriter
		f.again("append", func() (err error) { w, err = f.Append("/file"); return err })
		f.write("/file", w, data[at:at+n])
		at += n
		f.wantFile("/file", data[:at])
	}
	r, err := f.Open("/file")
	must(t, err)
	first, err := r.Checksum()
	must(t, err)
	must(t, r.Close())
	if len(first) == 0 {
		t.Fatal("no checksum")
	}

	// Cut in the middle of a chunk, and go on with other bytes.
	at = 2_345_678
	done, err := f.Truncate("/file", int64(at))
	must(t, err)
	_ = done // it may go on in the background
	f.again("append after the truncation", func() (err error) { w, err = f.Append("/file"); return err })
	more := random(2, 300_000)
	f.write("/file", w, more)
	want := append(bytes.Clone(data[:at]), more...)
	f.wantFile("/file", want)

	// Every DataNode starts anew, and each alone has everything.
	for i, n := range f.nodes {
		n.stop()
		l, err := net.Listen("tcp", n.addr)
		must(t, err)
		f.nodes[i] = f.start(n.cfg, l)
	}
	f.wantFile("/file", want)
	for i := range f.nodes {
		for j, n := range f.nodes {
			if j != i {
				n.stop()
			}
		}
		f.wantFile("/file", want)
		for j, n := range f.nodes {
			if j != i {
				l, err := net.Listen("tcp", n.addr)
				must(t, err)
				f.nodes[j] = f.start(n.cfg, l)
			}
		}
	}
}

func TestManySmallFiles(t *testing.T) {
	f := newFileSystem(t)
	must(t, f.MkdirAll("/small", 0o755))
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 25 {
				name := fmt.Sprintf("/small/%d-%d", g, i)
				w, err := f.CreateFile(name, 3, 1<<20, 0o644)
				if err == nil {
					if _, err = w.Write(random(uint64(100*g+i), 1+100*i)); err == nil {
						err = w.Close()
					}
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for g := range 4 {
		for i := range 25 {
			f.wantFile(fmt.Sprintf("/small/%d-%d", g, i), random(uint64(100*g+i), 1+100*i))
		}
	}
	// A file that is removed is removed from the disks.
	must(t, f.RemoveAll("/small"))
	f.again("removal from the disks", func() error {
		for _, n := range f.nodes {
			if len(n.store.Replicas()) > 0 {
				return errors.New("there are replicas left")
			}
		}
		return nil
	})
}
