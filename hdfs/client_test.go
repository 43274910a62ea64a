package hdfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/iotest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/exception"
)

// own returns our client over a transport; plain is TCP without Verbena. It reads blocks of
// this host over connections, too.
func (s *system) own(transport string, change ...func(*ClientConfig)) *Client {
	s.t.Helper()
	cfg := ClientConfig{NameNodes: []string{s.NameNode.Addr()}, User: superuser(s.t), Patience: 10 * time.Second, BlockSize: 1 << 20, NoLocalReads: true}
	if transport != plain {
		if s.dialers[transport] == nil {
			s.dialers[transport] = NewDialer(s.rt, transport)
		}
		cfg.Dialer = s.dialers[transport]
	}
	for _, f := range change {
		f(&cfg)
	}
	c, err := NewClient(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func store(t testing.TB, c *Client, name string, content []byte, o CreateOptions) {
	t.Helper()
	w, err := c.Create(t.Context(), name, o)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.Write(content); err != nil || n != len(content) {
		t.Fatalf("%s: %d bytes written: %v", name, n, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func expect(t testing.TB, c *Client, name string, want []byte) {
	t.Helper()
	got, err := c.ReadFile(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(got) != sha256.Sum256(want) {
		t.Fatalf("%s: %d bytes came back, %d were stored, or others", name, len(got), len(want))
	}
}

func TestClientStoresAndReads(t *testing.T) {
	s := startSystem(t, 3, 3)
	for _, transport := range everyTransport() {
		t.Run(transport, func(t *testing.T) {
			c := s.own(transport)
			dir := "/own-" + transport
			for _, size := range []int{0, 1, 511, 512, 513, 65_536, 300_001, 1 << 20, 1<<20 + 1, 3<<20 + 77} {
				name := fmt.Sprintf("%s/%d", dir, size)
				data := randomBytes(size)
				store(t, c, name, data, CreateOptions{})
				expect(t, c, name, data)
				if got := readAll(t, s.connect(plain), name); !bytes.Equal(got, data) {
					t.Errorf("another client reads %d bytes of %s, or others", len(got), name)
				}
				info, err := c.Stat(t.Context(), name)
				if err != nil || info.Size() != int64(size) || info.Replication() != 3 || info.BlockSize() != 1<<20 {
					t.Errorf("%+v %v", info, err)
				}
			}
		})
	}
}

// What is written in small pieces, flushed at odd places and appended to comes back, and
// a reader sees what was flushed while the file is open.
func TestClientFlushesAndAppends(t *testing.T) {
	s := startSystem(t, 3, 3)
	for _, kind := range []ChecksumType{ChecksumCRC32C, ChecksumCRC32} {
		c := s.own(plain, func(cfg *ClientConfig) { cfg.Checksum, cfg.BlockSize, cfg.PacketSize = kind, 1<<20, 10_000 })
		random := rand.New(rand.NewPCG(3, uint64(kind)))
		name := "/flushed-" + kind.String()
		var want []byte
		for round := range 6 {
			var w *FileWriter
			var err error
			if round == 0 {
				w, err = c.Create(t.Context(), name, CreateOptions{})
			} else {
				w, err = c.Append(t.Context(), name, AppendOptions{NewBlock: round == 3})
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 12 {
				piece := randomBytes(random.IntN([]int{3, 600, 5_000, 200_000}[random.IntN(4)]))
				if _, err := w.Write(piece); err != nil {
					t.Fatal(err)
				}
				want = append(want, piece...)
				switch random.IntN(4) {
				case 0:
					err = w.Flush(t.Context())
				case 1:
					err = w.Sync(t.Context(), true)
					if info, serr := c.Stat(t.Context(), name); serr != nil || info.Size() != int64(len(want)) {
						t.Fatalf("after a sync that tells the length: %v %v, want %d", info.Size(), serr, len(want))
					}
				default:
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				expect(t, c, name, want) // the file is open
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Errorf("closed twice: %v", err)
			}
			if _, err := w.Write([]byte("x")); err == nil {
				t.Error("a closed file takes more")
			}
			expect(t, c, name, want)
		}
		if got := readAll(t, s.connect(plain), name); !bytes.Equal(got, want) {
			t.Error("another client reads other bytes")
		}
	}
}

func TestClientReadsAnywhere(t *testing.T) {
	s := startSystem(t, 2, 2)
	c := s.own(verbena.TransportAuto, func(cfg *ClientConfig) { cfg.BlockSize = 1 << 20 })
	data := randomBytes(5<<20 + 4321)
	w, err := c.Create(t.Context(), "/file", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := w.ReadFrom(iotest.HalfReader(bytes.NewReader(data))); err != nil || n != int64(len(data)) {
		t.Fatal(n, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []int{0, 3} {
		c := s.own(verbena.TransportAuto, func(cfg *ClientConfig) { cfg.ReadAhead = ahead })
		f, err := c.Open(t.Context(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if n, err := f.WriteTo(&out); err != nil || n != int64(len(data)) || !bytes.Equal(out.Bytes(), data) {
			t.Errorf("WriteTo: %d bytes, %v", n, err)
		}
		f.Close()
	}
	f, err := c.Open(t.Context(), "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.New(rand.NewPCG(1, 2))
	p := make([]byte, 2<<20)
	for range 60 {
		off, n := random.Int64N(int64(len(data)+1000)), random.IntN(len(p))
		got, err := f.ReadAt(p[:n], off)
		want := data[min(off, int64(len(data))):min(off+int64(n), int64(len(data)))]
		if !bytes.Equal(p[:got], want) || (err == io.EOF) != (len(want) < n) || err != nil && err != io.EOF {
			t.Fatalf("ReadAt(%d, %d): %d bytes, %v", n, off, got, err)
		}
		if _, err := f.Seek(off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		got, err = io.ReadFull(f, p[:n/10])
		want = data[min(off, int64(len(data))):min(off+int64(n/10), int64(len(data)))]
		if !bytes.Equal(p[:got], want) || len(want) == n/10 && err != nil {
			t.Fatalf("Read(%d) at %d: %d bytes, %v", n/10, off, got, err)
		}
	}
	if _, err := f.Seek(-1, io.SeekStart); err == nil {
		t.Error("a seek before the start")
	}
}

func TestClientTree(t *testing.T) {
	s := startSystem(t, 1, 1)
	c, ctx := s.own(verbena.TransportAuto), t.Context()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	is := func(err, want error) {
		t.Helper()
		var path *fs.PathError
		if !errors.Is(err, want) || !errors.As(err, &path) || path.Path == "" {
			t.Errorf("%v, want %v in a PathError", err, want)
		}
	}
	check(c.MkdirAll(ctx, "/tree/a/b", 0o750))
	is(c.Mkdir(ctx, "/tree/a", 0o755), fs.ErrExist)
	is(c.Mkdir(ctx, "/none/a", 0o755), fs.ErrNotExist)
	store(t, c, "/tree/a/file", []byte("hello"), CreateOptions{Mode: 0o640})
	_, err := c.Create(ctx, "/tree/a/file", CreateOptions{})
	is(err, fs.ErrExist)
	var told *ServerError
	if !errors.As(err, &told) || told.Class != exception.FileAlreadyExists {
		t.Errorf("%v lacks the class", err)
	}
	_, err = c.Create(ctx, "/tree/a/file/below", CreateOptions{})
	is(err, syscall.ENOTDIR)
	_, err = c.Create(ctx, "/none/file", CreateOptions{NoParents: true})
	is(err, fs.ErrNotExist)
	_, err = c.Open(ctx, "/tree/none")
	is(err, fs.ErrNotExist)
	_, err = c.Stat(ctx, "/tree/none")
	is(err, fs.ErrNotExist)
	is(c.Remove(ctx, "/tree"), syscall.ENOTEMPTY)
	is(c.Remove(ctx, "/tree/none"), fs.ErrNotExist)
	check(c.RemoveAll(ctx, "/tree/none"))
	check(c.Chmod(ctx, "/tree/a", 0o700|fs.ModeSticky))
	check(c.Chown(ctx, "/tree/a/file", "ada", "staff"))
	then := time.UnixMilli(1_700_000_000_123)
	check(c.Chtimes(ctx, "/tree/a/file", time.Time{}, then))
	info, err := c.Stat(ctx, "/tree/a/file")
	check(err)
	if info.Owner() != "ada" || info.Group() != "staff" || !info.ModTime().Equal(then) || info.Mode() != 0o640 || info.Name() != "file" || info.IsDir() {
		t.Errorf("%+v", info.s)
	}
	if info, err := c.Stat(ctx, "/tree/a"); err != nil || info.Mode() != 0o700|fs.ModeSticky|fs.ModeDir {
		t.Errorf("%v %v", info.Mode(), err)
	}
	store(t, c, "/tree/other", nil, CreateOptions{})
	is(c.Rename(ctx, "/tree/other", "/tree/a/file", false), fs.ErrExist)
	check(c.Rename(ctx, "/tree/other", "/tree/a/file", true))
	check(c.SetReplication(ctx, "/tree/a/file", 2))
	is(c.SetReplication(ctx, "/tree/a", 2), fs.ErrInvalid)
	sum, err := c.Summary(ctx, "/tree")
	check(err)
	if sum.Files != 1 || sum.Directories != 3 {
		t.Errorf("%+v", sum)
	}
	if status, err := c.Status(ctx); err != nil || status.Capacity == 0 {
		t.Errorf("%+v %v", status, err)
	}
	if nodes, err := c.DataNodes(ctx); err != nil || len(nodes) != 1 || nodes[0].Address != s.DataNodes[0].Addr() {
		t.Errorf("%+v %v", nodes, err)
	}
	check(c.Access(ctx, "/tree/a/file", 4))
	other := s.own(verbena.TransportAuto, func(cfg *ClientConfig) { cfg.User = "eve" })
	is(other.Access(ctx, "/tree/a/file", 4), fs.ErrPermission)
	_, err = other.Open(ctx, "/tree/a/file")
	is(err, fs.ErrPermission)
	var walked []string
	check(c.Walk(ctx, "/tree", func(name string, _ *FileInfo, err error) error {
		walked = append(walked, name)
		return err
	}))
	if !slices.Equal(walked, []string{"/tree", "/tree/a", "/tree/a/b", "/tree/a/file"}) {
		t.Errorf("%v", walked)
	}
	if c.Abs("x/../y") != "/user/"+c.User()+"/y" {
		t.Error(c.Abs("x/../y"))
	}
}

// A directory of more entries than a page.
func TestClientLists(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(verbena.TransportAuto)
	var group errgroup.Group
	group.SetLimit(16) // changes that come together are in one sync of the journal
	for i := range 2_100 {
		group.Go(func() error { return c.MkdirAll(t.Context(), fmt.Sprintf("/many/%04d", i), 0o755) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	i := 0
	for info, err := range c.List(t.Context(), "/many") {
		if err != nil || info.Name() != fmt.Sprintf("%04d", i) {
			t.Fatalf("entry %d: %v %v", i, info, err)
		}
		i++
	}
	if i != 2_100 {
		t.Errorf("%d entries", i)
	}
	for range c.List(t.Context(), "/many") {
		break
	}
}

func TestClientAsFS(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(verbena.TransportAuto)
	if err := c.MkdirAll(t.Context(), "/fs/empty", 0o755); err != nil {
		t.Fatal(err)
	}
	store(t, c, "/fs/dir/file", randomBytes(1000), CreateOptions{})
	store(t, c, "/fs/other", []byte("other"), CreateOptions{})
	if err := fstest.TestFS(c.FS(t.Context(), "/fs"), "dir/file", "other", "empty"); err != nil {
		t.Error(err)
	}
}

func TestClientTruncatesAndConcatenates(t *testing.T) {
	s := startSystem(t, 2, 2)
	c, ctx := s.own(plain), t.Context()
	data := randomBytes(2<<20 + 5000)
	store(t, c, "/cat/a", data, CreateOptions{})
	done, err := c.Truncate(ctx, "/cat/a", 2<<20)
	if err != nil || !done {
		t.Fatal(done, err)
	}
	expect(t, c, "/cat/a", data[:2<<20])
	if done, err = c.Truncate(ctx, "/cat/a", 1<<20+77); err != nil || done {
		t.Fatalf("a cut inside a block: %v %v", done, err)
	}
	limit, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := c.WaitClosed(limit, "/cat/a"); err != nil {
		t.Fatal(err)
	}
	w, err := c.Append(ctx, "/cat/a", AppendOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data[1<<20+77 : 2<<20]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/cat/a", data[:2<<20])
	store(t, c, "/cat/b", data[2<<20:], CreateOptions{})
	store(t, c, "/cat/c", data[:10], CreateOptions{})
	if err := c.Concat(ctx, "/cat/a", "/cat/b", "/cat/c"); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/cat/a", append(slices.Clone(data), data[:10]...))
}
