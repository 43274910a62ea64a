package hdfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// near is a client that reads blocks of this host by descriptor.
func (s *system) near(change ...func(*ClientConfig)) *Client {
	s.t.Helper()
	return s.own(plain, append([]func(*ClientConfig){func(c *ClientConfig) { c.NoLocalReads = false }}, change...)...)
}

// reads adds up what the DataNodes have served.
func (s *system) reads() (sum ReadStats) {
	for _, dn := range s.DataNodes {
		r := dn.Reads()
		sum.Served += r.Served
		sum.HandedOver += r.HandedOver
		sum.Refused += r.Refused
		sum.Local.Slots += r.Local.Slots
		sum.Local.Revoked += r.Local.Revoked
		sum.Local.Segments += r.Local.Segments
	}
	return sum
}

// Whole files and ranges at odd places come by descriptor, and no DataNode serves a read.
func TestClientReadsByDescriptor(t *testing.T) {
	s := startSystem(t, 3, 1)
	for _, kind := range []ChecksumType{ChecksumCRC32C, ChecksumCRC32} {
		for _, chunk := range []int{512, 100, 4096} {
			c := s.near(func(cfg *ClientConfig) {
				cfg.Checksum, cfg.BytesPerChecksum, cfg.BlockSize = kind, chunk, int64((1<<20+chunk-1)/chunk*chunk)
			})
			const name = "/near"
			data := randomBytes(2<<20 + 333)
			before := s.reads()
			store(t, c, name, data, CreateOptions{Replace: true})
			expect(t, c, name, data)
			f, err := c.Open(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 300 {
				off := random.IntN(len(data))
				p := make([]byte, min(1+random.IntN(10_000), len(data)-off))
				if n, err := f.ReadAt(p, int64(off)); err != nil || n != len(p) || !bytes.Equal(p, data[off:off+n]) {
					t.Fatalf("%d bytes at %d of %d: %d, %v", len(p), off, len(data), n, err)
				}
			}
			// Long Reads from anywhere, by buffers that end within chunks.
			for _, from := range []int{0, 1, 1 << 20, 2<<20 - 5} {
				if _, err := f.Seek(int64(from), io.SeekStart); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, 0, len(data))
				for p := make([]byte, 200_001); len(got) < len(data)-from; {
					n, err := f.Read(p)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, p[:n]...)
				}
				if !bytes.Equal(got, data[from:]) {
					t.Fatalf("Reads from %d return other bytes", from)
				}
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			after := s.reads()
			if after.Served != before.Served || after.HandedOver-before.HandedOver != 3 {
				t.Fatalf("%+v, and then %+v: want 3 replicas handed over, and no read", before, after)
			}
			if r := c.LocalReads(); r.Replicas != 3 || r.Passed != 0 || r.Reads < 300 {
				t.Fatalf("%+v", r)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What is appended to, cut or deleted is taken back, and what is read then is right, or
// its end told. A file that is being written is read over connections.
func TestDescriptorsAreTakenBack(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 1, 1)
	c := s.near()
	data := randomBytes(300_000)
	store(t, c, "/changing", data, CreateOptions{})
	f, err := c.Open(t.Context(), "/changing")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	same := func(when string) {
		t.Helper()
		p := make([]byte, 1000)
		if _, err := f.ReadAt(p, 123_456); err != nil || !bytes.Equal(p, data[123_456:124_456]) {
			t.Fatalf("%s: %v, or other bytes", when, err)
		}
	}
	same("at first")
	if r := s.reads(); r.HandedOver != 1 || r.Local.Slots != 1 || r.Served != 0 {
		t.Fatalf("%+v", r)
	}
	w, err := c.Append(t.Context(), "/changing", AppendOptions{})
	if err != nil {
		t.Fatal(err)
	}
	more := randomBytes(5000)
	if _, err := w.Write(more); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	data = append(data, more...)
	same("while it is appended to")
	if r := s.reads(); r.Local.Revoked != 1 || r.Served == 0 || r.Refused == 0 {
		t.Fatalf("after an append: %+v", r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, s.near(), "/changing", data)
	if done, err := c.Truncate(t.Context(), "/changing", 200_000); err != nil {
		t.Fatal(done, err)
	}
	eventually(t, "the cut is done", func() error {
		if closed, err := c.IsClosed(t.Context(), "/changing"); err != nil || !closed {
			return fmt.Errorf("closed: %v, %w", closed, err)
		}
		return nil
	})
	data = data[:200_000]
	expect(t, c, "/changing", data)
	expect(t, s.near(), "/changing", data)
	same("after it was cut")
	revoked := s.reads().Local.Revoked
	if err := c.Remove(t.Context(), "/changing"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deleted block is taken back", func() error {
		if n := s.reads().Local.Revoked; n <= revoked {
			return fmt.Errorf("%d slots taken back", n)
		}
		return nil
	})
	// Nobody has the block any more: the read must not find the old one.
	c.cfg.ReadFailures = 0
	if _, err := f.ReadAt(make([]byte, 10), 0); err == nil {
		t.Fatal("a deleted block was read by descriptor after it was taken back")
	}
}

// A DataNode that is told a path listens there, too, and refuses one that others may put
// theirs in the place of.
func TestDomainSocketPath(t *testing.T) {
	dir := t.TempDir()
	s := systemIn(t, 2, 2, "127.0.0.1", func(cfg *ClusterConfig) { cfg.DomainSocket = filepath.Join(dir, "dn._PORT") })
	c := s.near(func(cfg *ClientConfig) { cfg.DomainSocket = filepath.Join(dir, "dn._PORT") })
	data := randomBytes(100_000)
	store(t, c, "/by-path", data, CreateOptions{})
	expect(t, c, "/by-path", data)
	if r := s.reads(); r.HandedOver != 1 || r.Served != 0 {
		t.Fatalf("%+v", r)
	}
	conf, err := os.ReadFile(filepath.Join(s.ConfDir, "hdfs-site.xml"))
	if err != nil || !strings.Contains(string(conf), "dn._PORT") {
		t.Fatalf("%v: the configuration for clients does not tell the socket: %s", err, conf)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	l, _, err := listenLocally(&DataNodeConfig{DomainSocket: filepath.Join(open, "dn")}, 1)
	if err == nil || !strings.Contains(err.Error(), "everybody may write") {
		t.Fatalf("%v %v: want a refusal", l, err)
	}
	// A socket that another process has left is replaced; anything else is not.
	left := filepath.Join(dir, "left")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	l, _, err = listenLocally(&DataNodeConfig{DomainSocket: left, NoLocalReads: true}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := listenLocally(&DataNodeConfig{DomainSocket: left}, 1); err == nil {
		t.Fatal("a file was replaced by a socket")
	}
}

// A DataNode that ends takes its slots with it: reads under way go on at another.
func TestDataNodeEndsUnderDescriptors(t *testing.T) {
	s := startSystem(t, 2, 2)
	c := s.near()
	data := randomBytes(700_000)
	store(t, c, "/twice", data, CreateOptions{})
	f, err := c.Open(t.Context(), "/twice")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got := make([]byte, 10)
	if _, err := io.ReadFull(f, got); err != nil {
		t.Fatal(err)
	}
	for i, dn := range s.DataNodes {
		if dn.Reads().HandedOver > 0 {
			if err := s.DataNodes[i].Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	rest, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(append(got, rest...), data) {
		t.Fatalf("%d bytes, or others: %v", len(got)+len(rest), err)
	}
	for range 3 {
		expect(t, c, "/twice", data)
	}
}

// A positional read by descriptor allocates little, and none of it for the bytes.
func TestDescriptorReadsAllocateLittle(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.near()
	store(t, c, "/hot", randomBytes(1<<20), CreateOptions{})
	f, err := c.Open(t.Context(), "/hot")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 4096)
	random := rand.New(rand.NewPCG(5, 5))
	if got := testing.AllocsPerRun(200, func() {
		if _, err := f.ReadAt(p, random.Int64N(1<<20-4096)); err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}); got > 2 {
		t.Errorf("%v allocations for a read of 4 KiB", got)
	}
}
