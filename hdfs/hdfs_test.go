package hdfs

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	client "github.com/colinmarc/hdfs/v2"
	"go.uber.org/goleak"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/providers"
)

func TestMain(m *testing.M) {
	testneed.AtOnce(8) // they wait for leases, for the NameNode, and for those who are silent
	goleak.VerifyTestMain(collected{m})
}

// collected are tests after which the collector runs: the foreign client loses connections
// without closing them, and rdmanet ends those that nobody reaches any more, as net does.
type collected struct{ goleak.TestingM }

func (c collected) Run() int {
	defer runtime.GC()
	return c.TestingM.Run()
}

// plain is the client as its authors made it; the others are transports.
const plain = "plain"

func everyTransport() []string {
	all := []string{plain, verbena.TransportTCP}
	for _, p := range providers.Default() {
		if _, err := p.Devices(context.Background()); err != nil {
			continue // this host has no such adapter
		}
		all = append(all, p.Name())
	}
	return all
}

// system is a cluster and what connects to it.
type system struct {
	*Cluster
	t       testing.TB
	rt      *verbena.Runtime
	cfg     ClusterConfig
	dialers map[string]*Dialer
}

func startSystem(t testing.TB, dataNodes, replication int) *system {
	t.Helper()
	return systemIn(t, dataNodes, replication, "127.0.0.1")
}

func systemIn(t testing.TB, dataNodes, replication int, host string, change ...func(*ClusterConfig)) *system {
	t.Helper()
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	return systemOn(t, rt, dataNodes, replication, host, change...)
}

// systemOn is one whose runtime is given, and is closed with it.
func systemOn(t testing.TB, rt *verbena.Runtime, dataNodes, replication int, host string, change ...func(*ClusterConfig)) *system {
	t.Helper()
	s := &system{t: t, rt: rt, dialers: map[string]*Dialer{}, cfg: ClusterConfig{
		Runtime: rt, Dir: t.TempDir(), Host: host, DataNodes: dataNodes, Replication: replication,
	}}
	for _, f := range change {
		f(&s.cfg)
	}
	s.start()
	t.Cleanup(func() {
		for _, d := range s.dialers {
			d.Close()
		}
		if err := errors.Join(s.Cluster.Close(), rt.Close()); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return s
}

func (s *system) start() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := StartCluster(ctx, s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.Cluster = c
}

func (s *system) connect(transport string) *client.Client {
	s.t.Helper()
	var c *client.Client
	var err error
	if transport == plain {
		c, err = client.NewClient(client.ClientOptions{Addresses: []string{s.NameNode.Addr()}, User: superuser(s.t)})
	} else {
		if s.dialers[transport] == nil {
			s.dialers[transport] = NewDialer(s.rt, transport)
		}
		d := s.dialers[transport]
		c, err = client.NewClient(client.ClientOptions{
			Addresses: []string{s.NameNode.Addr()}, User: superuser(s.t), NamenodeDialFunc: d.DialNameNode, DatanodeDialFunc: d.DialContext,
		})
	}
	if err != nil {
		s.t.Fatalf("connect over %s: %v", transport, err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

// superuser is who runs this process, and so the NameNode.
func superuser(t testing.TB) string {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	return u.Username
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	source := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = source.Read(b) // never fails
	return b
}

func write(t testing.TB, c *client.Client, name string, data []byte, replication int, blockSize int64) {
	t.Helper()
	w, err := c.CreateFile(name, replication, blockSize, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatalf("write %s: %v", name, err)
	}
	closeFile(t, w)
}

func closeFile(t testing.TB, w *client.FileWriter) {
	t.Helper()
	for {
		err := w.Close()
		if err == nil {
			return
		}
		if !client.IsErrReplicating(err) {
			t.Fatal(err)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func readAll(t testing.TB, c *client.Client, name string) []byte {
	t.Helper()
	b, err := c.ReadFile(name)
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return b
}

func TestFilesOverEveryTransport(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 3, 3)
	data := randomBytes(5<<20 + 3)
	const blockSize = 1 << 20
	var sums []string
	for _, transport := range everyTransport() {
		t.Run(transport, func(t *testing.T) {
			c := s.connect(transport)
			dir := "/" + transport
			if err := c.MkdirAll(dir+"/a/b", 0o755); err != nil {
				t.Fatal(err)
			}
			name := dir + "/a/b/file"
			write(t, c, name, data, 3, blockSize)
			if got := readAll(t, c, name); !bytes.Equal(got, data) {
				t.Fatal("other bytes came back")
			}
			r, err := c.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			part := make([]byte, 100_000)
			for _, at := range []int64{0, 1, 511, blockSize - 1, blockSize, 3*blockSize + 12345, int64(len(data)) - 100_000} {
				if _, err := r.ReadAt(part, at); err != nil || !bytes.Equal(part, data[at:at+int64(len(part))]) {
					t.Errorf("read at %d: %v", at, err)
				}
			}
			sum, err := r.Checksum()
			if err != nil {
				t.Fatal(err)
			}
			sums = append(sums, hex.EncodeToString(sum))

			// Append crosses a block's end.
			more := randomBytes(blockSize + 7)
			w, err := c.Append(name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(more); err != nil {
				t.Fatal(err)
			}
			closeFile(t, w)
			whole := append(append([]byte(nil), data...), more...)
			if got := readAll(t, c, name); !bytes.Equal(got, whole) {
				t.Fatal("other bytes came back after append")
			}
			if err := c.Rename(name, dir+"/moved"); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Stat(name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the old name: %v", err)
			}
			// Truncate inside a block is done by a recovery of that block.
			cut := int64(2*blockSize + 4321)
			done, err := c.Truncate(dir+"/moved", cut)
			if err != nil {
				t.Fatal(err)
			}
			if !done {
				eventually(t, "the truncated file to close", func() error {
					got, err := c.ReadFile(dir + "/moved")
					if err == nil && int64(len(got)) != cut {
						err = fmt.Errorf("%d bytes", len(got))
					}
					return err
				})
			}
			if got := readAll(t, c, dir+"/moved"); !bytes.Equal(got, whole[:cut]) {
				t.Errorf("%d bytes after truncating to %d, or others", len(got), cut)
			}
			if err := c.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("removed: %v", err)
			}
		})
	}
	for _, sum := range sums {
		if sum != sums[0] {
			t.Errorf("checksums of the same bytes differ: %v", sums)
		}
	}
}

// eventually waits for what the servers do by themselves.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("waiting for %s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// What a flush without a close leaves is TestAbandonedFileIsClosed's matter: the
// client reads no file that is open.
func TestFlushInTheMiddle(t *testing.T) {
	s := startSystem(t, 2, 2)
	c, reader := s.connect(verbena.TransportAuto), s.connect(plain)
	data := randomBytes(300_000)
	w, err := c.CreateFile("/open", 2, 1<<20, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	more := randomBytes(70_001)
	if _, err := w.Write(more); err != nil {
		t.Fatal(err)
	}
	closeFile(t, w)
	if got := readAll(t, reader, "/open"); !bytes.Equal(got, append(data, more...)) {
		t.Error("other bytes came back")
	}
}

func TestEverythingComesBack(t *testing.T) {
	s := startSystem(t, 2, 2)
	c := s.connect(verbena.TransportAuto)
	data := randomBytes(3 << 20)
	write(t, c, "/kept", data, 2, 1<<20)
	if err := c.Chmod("/kept", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Cluster.Close(); err != nil {
		t.Fatal(err)
	}
	s.start()
	again := s.connect(plain)
	if got := readAll(t, again, "/kept"); !bytes.Equal(got, data) {
		t.Error("other bytes came back")
	}
	if info, err := again.Stat("/kept"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
}

// DataNodes and clients find a NameNode again that has been away.
func TestNameNodeComesBack(t *testing.T) {
	t.Parallel()
	s := systemIn(t, 2, 2, loopbackOfItsOwn(t))
	data := randomBytes(100_000)
	write(t, s.connect(plain), "/before", data, 2, 1<<20)
	for round := range 2 {
		addr := s.NameNode.Addr()
		if err := s.NameNode.Close(); err != nil {
			t.Fatal(err)
		}
		nn, err := StartNameNode(t.Context(), NameNodeConfig{Runtime: s.rt, Dir: filepath.Join(s.cfg.Dir, "namenode"), ClusterSecret: filepath.Join(s.cfg.Dir, SecretFile), Listen: addr, Replication: 2})
		if err != nil {
			t.Fatal(err)
		}
		s.NameNode = nn
		// It knows no replica until it has been told of all.
		eventually(t, "the DataNodes to register again", func() error {
			c, err := client.NewClient(client.ClientOptions{Addresses: []string{addr}, User: superuser(t)})
			if err != nil {
				return err
			}
			defer c.Close()
			w, err := c.CreateFile(fmt.Sprintf("/after-%d-%d", round, time.Now().UnixNano()), 2, 1<<20, 0o644)
			if err != nil {
				return err
			}
			_, err = w.Write(data)
			return errors.Join(err, w.Close())
		})
		if got := readAll(t, s.connect(plain), "/before"); !bytes.Equal(got, data) {
			t.Error("other bytes came back")
		}
	}
}

// loopbackOfItsOwn is an address at which nothing takes a port while a server is away:
// connections come from 127.0.0.1.
func loopbackOfItsOwn(t testing.TB) string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("other systems have one loopback address")
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.N(254), rand.N(256), 1+rand.N(254))
}

// What a process keeps for HDFS is in its own group, with one endpoint from each
// DataNode to the NameNode.
func TestGroupAndEndpoints(t *testing.T) {
	s := startSystem(t, 3, 3)
	for _, transport := range everyTransport() {
		c := s.connect(transport)
		write(t, c, "/"+transport, randomBytes(100_000), 3, 1<<20)
		readAll(t, c, "/"+transport)
	}
	stats := s.rt.Stats()
	for _, d := range stats.Devices {
		if d.Transport == verbena.TransportTCP {
			continue // its memory is all groups'
		}
		for _, p := range d.Pools {
			if p.Group != GroupName {
				t.Errorf("%s: group %q has %+v", d.Transport, p.Group, p)
			}
		}
		if d.Opened > 0 && len(d.Pools) == 0 {
			t.Errorf("%s: endpoints without memory", d.Transport)
		}
	}
	// A better transport that comes back replaces an endpoint, so there may be one more
	// for a moment.
	eventually(t, "one endpoint of each DataNode to the NameNode", func() error {
		for _, dn := range s.DataNodes {
			if p := dn.calls.Peers(); len(p) != 1 || p[0].Addr != s.NameNode.Addr() || p[0].Open != 1 {
				return fmt.Errorf("%s has %+v", dn.Addr(), p)
			}
		}
		return nil
	})
}

// replicas finds block files on disk by their length.
func replicas(t testing.TB, dir string, length int64) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasPrefix(d.Name(), "blk_") {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() == length {
			found = append(found, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func flipByte(t testing.TB, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x40
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

func TestCorruptReplicaIsReadAroundAndRepaired(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 3, 2)
	data := randomBytes(700_001)
	write(t, s.connect(plain), "/file", data, 2, 1<<20)
	files := replicas(t, s.cfg.Dir, int64(len(data)))
	if len(files) != 2 {
		t.Fatalf("%d replicas on disk: %v", len(files), files)
	}
	flipByte(t, files[0], 345_678)
	// Readers choose a replica as they like: read until the bad one was met.
	for range 20 {
		for _, transport := range []string{plain, verbena.TransportAuto} {
			if got := readAll(t, s.connect(transport), "/file"); !bytes.Equal(got, data) {
				t.Fatal("a wrong byte was returned")
			}
		}
	}
	eventually(t, "the bad replica to be replaced", func() error {
		if got := readAll(t, s.connect(plain), "/file"); !bytes.Equal(got, data) {
			t.Fatal("a wrong byte was returned")
		}
		good := 0
		for _, name := range replicas(t, s.cfg.Dir, int64(len(data))) {
			b, err := os.ReadFile(name)
			if err == nil && bytes.Equal(b, data) {
				good++
			}
		}
		if good != 2 {
			return fmt.Errorf("%d good replicas", good)
		}
		return nil
	})
}

func TestOnlyReplicaCorruptIsAClearError(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 1, 1)
	data := randomBytes(100_000)
	write(t, s.connect(plain), "/file", data, 1, 1<<20)
	files := replicas(t, s.cfg.Dir, int64(len(data)))
	if len(files) != 1 {
		t.Fatalf("replicas on disk: %v", files)
	}
	flipByte(t, files[0], 50_000)
	for _, transport := range everyTransport() {
		got, err := s.connect(transport).ReadFile("/file")
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), "checksum") {
			t.Errorf("%s: %d bytes came from a corrupt replica, with the error %v", transport, len(got), err)
		}
	}
}

func TestReadsGoOnWithoutADataNode(t *testing.T) {
	s := startSystem(t, 2, 2)
	data := randomBytes(2<<20 + 99)
	write(t, s.connect(plain), "/file", data, 2, 1<<20)
	if err := s.DataNodes[0].Close(); err != nil {
		t.Fatal(err)
	}
	s.DataNodes = s.DataNodes[1:]
	for _, transport := range everyTransport() {
		if got := readAll(t, s.connect(transport), "/file"); !bytes.Equal(got, data) {
			t.Errorf("%s: other bytes came back", transport)
		}
	}
}

func TestManyClientsAtOnce(t *testing.T) {
	s := startSystem(t, 3, 2)
	var wg sync.WaitGroup
	for i, transport := range append(everyTransport(), everyTransport()...) {
		c := s.connect(transport)
		wg.Go(func() {
			for j := range 5 {
				name := fmt.Sprintf("/many-%d-%d", i, j)
				data := randomBytes(100_000*(j+1) + i)
				w, err := c.CreateFile(name, 2, 1<<20, 0o644)
				if err == nil {
					_, err = w.Write(data)
				}
				for err == nil {
					if err = w.Close(); err == nil {
						break
					}
					if client.IsErrReplicating(err) {
						err = nil
						<-time.After(5 * time.Millisecond)
					}
				}
				var got []byte
				if err == nil {
					got, err = c.ReadFile(name)
				}
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%s over %s: %v", name, transport, err)
				}
			}
		})
	}
	wg.Wait()
}

// Garbage on a port ends that connection alone, however long it is.
func TestGarbageOnEveryPort(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.connect(verbena.TransportAuto)
	write(t, c, "/before", []byte("before"), 1, 1<<20)
	ports := []string{s.NameNode.Addr(), s.DataNodes[0].Addr()}
	random := rand.New(rand.NewPCG(1, 2))
	starts := [][]byte{nil, []byte("hrpc\x09\x00\x00"), {0, 28, 80}, {0, 28, 81}, []byte("\x89VRB\r\n\x1a\n"), []byte("\x89VRB\r\n\x1a\n\x01\x00\x0f\xff"), {0xff, 0xff, 0xff, 0xff},
		[]byte("hrpc\x09\x00\x00\xff\xff\xff\xff"), {0, 28, 80, 0xff, 0xff, 0xff, 0xff, 0x0f}}
	var wg sync.WaitGroup
	for _, port := range ports {
		for _, start := range starts {
			garbage := make([]byte, random.IntN(100_000))
			for i := range garbage {
				garbage[i] = byte(random.Uint32())
			}
			wg.Go(func() {
				nc, err := net.Dial("tcp", port)
				if err != nil {
					t.Error(err)
					return
				}
				defer nc.Close()
				_, _ = nc.Write(append(append([]byte(nil), start...), garbage...)) // the server may have closed already
				nc.(*net.TCPConn).CloseWrite()
				nc.SetReadDeadline(time.Now().Add(20 * time.Second))
				if _, err := io.Copy(io.Discard, nc); err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s, start %q: the server keeps the connection", port, start)
				}
			})
		}
	}
	wg.Wait()
	if got := readAll(t, c, "/before"); string(got) != "before" {
		t.Errorf("%q", got)
	}
	write(t, s.connect(plain), "/after", []byte("after"), 1, 1<<20)
}

func TestConfigurationForClients(t *testing.T) {
	s := startSystem(t, 1, 1)
	text, err := os.ReadFile(filepath.Join(s.ConfDir, "core-site.xml"))
	if err != nil {
		t.Fatal(err)
	}
	var conf configuration
	if err := xml.Unmarshal(text, &conf); err != nil {
		t.Fatal(err)
	}
	if len(conf.Properties) != 1 || conf.Properties[0] != (property{"fs.defaultFS", "hdfs://" + s.NameNode.Addr()}) {
		t.Errorf("%+v", conf)
	}
	t.Setenv("HADOOP_CONF_DIR", s.ConfDir)
	t.Setenv("HADOOP_USER_NAME", superuser(t))
	c, err := client.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.ReadDir("/"); err != nil {
		t.Error(err)
	}
}

func TestClosedServersTellNoError(t *testing.T) {
	s := startSystem(t, 1, 1)
	if err := s.Cluster.Close(); err != nil {
		t.Fatal(err)
	}
	<-s.NameNode.Done()
	<-s.DataNodes[0].Done()
	if err := errors.Join(s.NameNode.Err(), s.DataNodes[0].Err()); err != nil {
		t.Error(err)
	}
}

func TestSecondServerOnTheSameData(t *testing.T) {
	s := startSystem(t, 1, 1)
	_, err := StartNameNode(t.Context(), NameNodeConfig{Runtime: s.rt, Dir: filepath.Join(s.cfg.Dir, "namenode"), Listen: "127.0.0.1:0"})
	if err == nil || !strings.Contains(err.Error(), filepath.Join(s.cfg.Dir, "namenode")) {
		t.Errorf("a second NameNode on the same directory: %v", err)
	}
}
