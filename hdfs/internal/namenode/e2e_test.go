package namenode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/colinmarc/hdfs/v2"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/internal/port"
)

// serve brings up a NameNode on disk and returns the address of its RPC.
func serve(t testing.TB, dir string) (*NameNode, string, func()) {
	t.Helper()
	nn, err := Open(t.Context(), Config{Dir: dir, Superuser: "root", Groups: func(string) []string { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	srv := rpc.NewServer(rpc.Config{})
	nn.RegisterRPC(srv)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = port.Accept(context.Background(), l, nn.log, func(nc net.Conn) { go srv.ServeConn(nc) }) }) // until stop closes it
	var once sync.Once
	stop := func() {
		once.Do(func() {
			l.Close()
			srv.Close()
			wg.Wait()
			if err := nn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	return nn, l.Addr().String(), stop
}

func dial(t testing.TB, addr, user string) *hdfs.Client {
	t.Helper()
	c, err := hdfs.NewClient(hdfs.ClientOptions{Addresses: []string{addr}, User: user})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestClient lets the unmodified Go client do what needs no DataNode.
func TestClient(t *testing.T) {
	dir := t.TempDir()
	_, addr, stop := serve(t, dir)
	root := dial(t, addr, "root")
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ok(root.MkdirAll("/user/alice/deep", 0o755))
	ok(root.Chown("/user/alice", "alice", "staff"))
	ok(root.CreateEmptyFile("/user/alice/empty"))
	if err := root.CreateEmptyFile("/user/alice/empty"); !errors.Is(err, os.ErrExist) {
		t.Fatalf("creating it again: %v", err)
	}
	info, err := root.Stat("/user/alice/empty")
	ok(err)
	if info.Size() != 0 || info.IsDir() || info.Mode().Perm() != 0o644 {
		t.Fatalf("stat: %v %v", info.Size(), info.Mode())
	}
	ok(root.Rename("/user/alice/empty", "/user/alice/renamed"))
	if _, err := root.Stat("/user/alice/empty"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the old name after a rename: %v", err)
	}
	ok(root.Chmod("/user/alice/renamed", 0o600))
	at := time.UnixMilli(1_600_000_000_000)
	ok(root.Chtimes("/user/alice/renamed", at, at))
	info, err = root.Stat("/user/alice/renamed")
	ok(err)
	if info.Mode().Perm() != 0o600 || !info.ModTime().Equal(at) {
		t.Fatalf("after chmod and chtimes: %v %v", info.Mode(), info.ModTime())
	}
	if err := root.Remove("/user/alice"); !isErrno(err, syscall.ENOTEMPTY) {
		t.Fatalf("removing a directory that is not empty: %v", err)
	}

	bob := dial(t, addr, "bob")
	if err := bob.Mkdir("/user/alice/bobs", 0o755); !errors.Is(err, os.ErrPermission) {
		t.Fatalf("mkdir without permission: %v", err)
	}
	alice := dial(t, addr, "alice")
	ok(alice.Mkdir("/user/alice/hers", 0o755))
	if err := alice.Chown("/user/alice/hers", "bob", ""); !errors.Is(err, os.ErrPermission) {
		t.Fatalf("chown by one who is not the superuser: %v", err)
	}

	const files = 5000
	ok(root.Mkdir("/many", 0o755))
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < files; i += 8 {
				if err := root.Mkdir(fmt.Sprintf("/many/%06d", i), 0o755); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	list, err := root.ReadDir("/many")
	ok(err)
	if len(list) != files {
		t.Fatalf("%d entries, want %d", len(list), files)
	}
	for i, e := range list {
		if want := fmt.Sprintf("%06d", i); e.Name() != want {
			t.Fatalf("entry %d is %s, want %s", i, e.Name(), want)
		}
	}
	sum, err := root.GetContentSummary("/")
	ok(err)
	if sum.FileCount() != 1 || sum.DirectoryCount() != files+6 {
		t.Fatalf("summary: %d files, %d directories", sum.FileCount(), sum.DirectoryCount())
	}
	if _, err := root.StatFs(); err != nil {
		t.Fatal(err)
	}

	stop()
	_, addr, _ = serve(t, dir)
	root = dial(t, addr, "root")
	list, err = root.ReadDir("/many")
	ok(err)
	if len(list) != files {
		t.Fatalf("%d entries after a restart, want %d", len(list), files)
	}
	ok(root.RemoveAll("/many"))
	ok(root.Remove("/user/alice/renamed"))
	if _, err := root.Stat("/many"); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("removed: %v", err)
	}
}

func isErrno(err error, want syscall.Errno) bool {
	var pe *os.PathError
	return errors.As(err, &pe) && pe.Err == want
}

func BenchmarkMkdir(b *testing.B) {
	_, addr, _ := serve(b, b.TempDir())
	c := dial(b, addr, "root")
	i := 0
	for b.Loop() {
		if err := c.Mkdir(fmt.Sprintf("/%d", i), 0o755); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
