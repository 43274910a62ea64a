package hdfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// faulty is a path on which things happen at certain steps.
type faulty struct {
	data.Path
	mu    sync.Mutex
	setup func(req *data.WriteRequest, n int)               // before the n-th pipeline is set up
	send  func(k *data.Packet, n int, w *data.WriteRequest) // before the n-th packet is sent
	read  func(req *data.ReadRequest, n int) error
	next  func(n int) // before the n-th packet of all reads is taken

	setups, sends, reads, nexts int
}

// inject has a client use a path on which things happen.
func inject(c *Client, f *faulty) {
	f.Path = c.path
	c.path, c.read.Path = f, f
}

func (f *faulty) count(n *int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
	return *n
}

func (f *faulty) Write(ctx context.Context, req *data.WriteRequest) (data.Pipeline, error) {
	if f.setup != nil {
		f.setup(req, f.count(&f.setups))
	}
	p, err := f.Path.Write(ctx, req)
	if err != nil {
		return nil, err
	}
	return &faultyLine{p, f, req}, nil
}

type faultyLine struct {
	data.Pipeline
	f   *faulty
	req *data.WriteRequest
}

func (l *faultyLine) Send(k *data.Packet) error {
	if l.f.send != nil {
		l.f.send(k, l.f.count(&l.f.sends), l.req)
	}
	return l.Pipeline.Send(k)
}

func (f *faulty) Read(ctx context.Context, req *data.ReadRequest) (data.BlockReader, error) {
	if f.read != nil {
		if err := f.read(req, f.count(&f.reads)); err != nil {
			return nil, err
		}
	}
	r, err := f.Path.Read(ctx, req)
	if err != nil {
		return nil, err
	}
	return &faultyReader{r, f}, nil
}

type faultyReader struct {
	data.BlockReader
	f *faulty
}

func (r *faultyReader) Next() ([]byte, error) {
	if r.f.next != nil {
		r.f.next(r.f.count(&r.f.nexts))
	}
	return r.BlockReader.Next()
}

// stop closes the DataNode of a pipeline or a located block.
func (s *system) stop(n *hdfspb.DatanodeInfoProto) {
	for i, dn := range s.DataNodes {
		if dn.Addr() == data.Name(n) {
			if err := dn.Close(); err != nil {
				s.t.Error(err)
			}
			s.DataNodes = append(s.DataNodes[:i:i], s.DataNodes[i+1:]...)
			return
		}
	}
}

// A DataNode that dies at any step of a pipeline, whichever it is, costs no write and no
// byte.
func TestWritesOutliveDataNodes(t *testing.T) {
	t.Parallel()
	const blockSize = 1 << 20
	content := randomBytes(2*blockSize + 300_000)
	perBlock := blockSize/(64<<10) + 1 // packets, with the last
	steps := []struct {
		name string
		at   int // packet
	}{
		{"first packet", 1}, {"second packet", 2}, {"middle", perBlock / 2}, {"last data packet", perBlock - 1}, {"last packet", perBlock},
		{"next block", perBlock + 1}, {"last packet of the file", 2*perBlock + 6},
	}
	for victim, step := range steps {
		for _, transport := range []string{plain, verbena.TransportAuto} {
			victim := victim % 3
			t.Run(fmt.Sprintf("%s/DataNode %d/%s", transport, victim, step.name), func(t *testing.T) {
				s := startSystem(t, 4, 3)
				c := s.own(transport, func(cfg *ClientConfig) { cfg.PacketSize, cfg.BlockSize = 64<<10, blockSize })
				var once sync.Once
				inject(c, &faulty{send: func(k *data.Packet, n int, req *data.WriteRequest) {
					if n == step.at {
						once.Do(func() { s.stop(req.Nodes[victim]) })
					}
				}})
				store(t, c, "/file", content, CreateOptions{})
				if len(s.DataNodes) != 3 {
					t.Fatal("nothing was stopped")
				}
				expect(t, c, "/file", content)
			})
		}
	}
}

// A pipeline that can't be set up is set up elsewhere.
func TestPipelinesAvoidDeadDataNodes(t *testing.T) {
	for victim := range 3 {
		s := startSystem(t, 4, 3)
		c := s.own(plain)
		var nodes []*hdfspb.DatanodeInfoProto
		inject(c, &faulty{setup: func(req *data.WriteRequest, n int) {
			if n == 1 {
				s.stop(req.Nodes[victim])
			}
			nodes = req.Nodes
		}})
		content := randomBytes(100_000)
		store(t, c, "/file", content, CreateOptions{})
		expect(t, c, "/file", content)
		if len(nodes) != 3 {
			t.Errorf("the pipeline has %d DataNodes in the end", len(nodes))
		}
	}
}

// Of three replicas two may go, one after the other; and with flushed bytes, or if that is
// always wanted, others take their place and get what was written before.
func TestDataNodesAreReplaced(t *testing.T) {
	for _, how := range []struct {
		name     string
		policy   ReplacePolicy
		flush    bool
		nodes    int // in the end
		replicas int
	}{
		{"default", ReplaceDefault, false, 2, 3},
		{"flushed", ReplaceDefault, true, 3, 3},
		{"always", ReplaceAlways, false, 3, 3},
		{"never", ReplaceNever, true, 2, 3},
		{"two replicas", ReplaceDefault, true, 1, 2},
	} {
		t.Run(how.name, func(t *testing.T) {
			s := startSystem(t, 4, how.replicas)
			c := s.own(plain, func(cfg *ClientConfig) { cfg.PacketSize, cfg.Replace = 64<<10, how.policy })
			var nodes int
			var once sync.Once
			inject(c, &faulty{
				setup: func(req *data.WriteRequest, _ int) { nodes = len(req.Nodes) },
				send: func(k *data.Packet, n int, req *data.WriteRequest) {
					if n == 6 {
						once.Do(func() { s.stop(req.Nodes[1]) })
					}
				},
			})
			w, err := c.Create(t.Context(), "/file", CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			content := randomBytes(900_000)
			if _, err := w.Write(content[:100_001]); err != nil {
				t.Fatal(err)
			}
			if how.flush {
				if err := w.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := w.Write(content[100_001:]); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if nodes != how.nodes {
				t.Errorf("the last pipeline has %d DataNodes, want %d", nodes, how.nodes)
			}
			expect(t, c, "/file", content)
		})
	}
}

// Without a DataNode to take the place of one that failed a write fails, unless it is to
// do its best.
func TestReplacementIsAMatterOfPolicy(t *testing.T) {
	for _, best := range []bool{false, true} {
		s := startSystem(t, 3, 3)
		c := s.own(plain, func(cfg *ClientConfig) {
			cfg.PacketSize, cfg.Replace, cfg.ReplaceBestEffort = 64<<10, ReplaceAlways, best
		})
		inject(c, &faulty{send: func(k *data.Packet, n int, req *data.WriteRequest) {
			if n == 3 {
				s.stop(req.Nodes[2])
			}
		}})
		w, err := c.Create(t.Context(), "/file", CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Write(randomBytes(600_000))
		if err = errors.Join(err, w.Close()); (err == nil) != best {
			t.Errorf("best effort %v: %v", best, err)
		}
		if !best && !strings.Contains(err.Error(), "replace-datanode-on-failure") {
			t.Errorf("%v does not tell what to set", err)
		}
	}
}

// When all DataNodes of a block are gone, writes end with an error, and Close after them.
func TestWriteWithoutDataNodes(t *testing.T) {
	s := startSystem(t, 2, 2)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.PacketSize = 64 << 10 })
	inject(c, &faulty{send: func(k *data.Packet, n int, req *data.WriteRequest) {
		if n == 3 {
			s.stop(req.Nodes[0])
			s.stop(req.Nodes[1])
		}
	}})
	w, err := c.Create(t.Context(), "/file", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(w, bytes.NewReader(randomBytes(900_000)))
	if cerr := w.Close(); cerr == nil || err == nil && cerr == nil {
		t.Errorf("written without DataNodes: %v, %v", err, cerr)
	}
	if _, err := w.Write([]byte("x")); err == nil {
		t.Error("a stream that has failed takes more")
	}
}

// The end of the context, Abort and the client's Close end a write at once, with the
// bytes that were flushed kept.
func TestWritesEnd(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 2, 2)
	for name, end := range map[string]func(c *Client, w *FileWriter, cancel func()){
		"context": func(_ *Client, _ *FileWriter, cancel func()) { cancel() },
		"abort":   func(_ *Client, w *FileWriter, _ func()) { w.Abort() },
		"client":  func(c *Client, _ *FileWriter, _ func()) { c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			c, again := s.own(plain), s.own(plain)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w, err := c.Create(ctx, "/"+name, CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			content := randomBytes(70_000)
			if _, err := w.Write(content); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			end(c, w, cancel)
			<-w.s.Done()
			if _, err := w.Write(randomBytes(1 << 20)); err == nil {
				t.Error("it takes more")
			}
			if err := w.Close(); err == nil {
				t.Error("it closes as if nothing had happened")
			}
			limit, stop := context.WithTimeout(t.Context(), 20*time.Second)
			defer stop()
			if _, err := again.RecoverLease(limit, "/"+name); err != nil {
				t.Fatal(err)
			}
			if err := again.WaitClosed(limit, "/"+name); err != nil {
				t.Fatal(err)
			}
			expect(t, again, "/"+name, content)
		})
	}
}

// A read goes on at another DataNode when one dies in the middle, and returns no byte
// twice.
func TestReadsOutliveDataNodes(t *testing.T) {
	content := randomBytes(3<<20 + 12_345)
	for _, transport := range []string{plain, verbena.TransportAuto} {
		s := startSystem(t, 3, 3)
		c := s.own(transport)
		store(t, c, "/file", content, CreateOptions{})
		reading := ""
		stops := 0
		inject(c, &faulty{
			read: func(req *data.ReadRequest, _ int) error { reading = data.Name(req.Node); return nil },
			next: func(n int) {
				if n%3 == 2 && stops < 2 {
					stops++
					for _, dn := range s.DataNodes {
						if dn.Addr() == reading {
							s.stop(&hdfspb.DatanodeInfoProto{Id: idOf(reading)})
							break
						}
					}
				}
			},
		})
		f, err := c.Open(t.Context(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if _, err := f.WriteTo(&out); err != nil || !bytes.Equal(out.Bytes(), content) {
			t.Errorf("%s: %d bytes: %v", transport, out.Len(), err)
		}
		f.Close()
		if stops != 2 {
			t.Errorf("%d DataNodes were stopped", stops)
		}
		expect(t, c, "/file", content)
	}
}

func idOf(address string) *hdfspb.DatanodeIDProto {
	host, port, _ := strings.Cut(address, ":")
	var n uint32
	fmt.Sscan(port, &n)
	return &hdfspb.DatanodeIDProto{IpAddr: &host, XferPort: &n}
}

// Corrupt replicas are read around and reported; if all are, the error says so.
func TestOwnReadsAreVerified(t *testing.T) {
	s := startSystem(t, 2, 2)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.ReadPause = time.Millisecond })
	content := randomBytes(700_001)
	store(t, c, "/file", content, CreateOptions{})
	files := replicas(t, s.cfg.Dir, int64(len(content)))
	if len(files) != 2 {
		t.Fatalf("%v", files)
	}
	flipByte(t, files[0], 345_678)
	for range 10 {
		expect(t, c, "/file", content)
	}
	flipByte(t, files[1], 1)
	if _, err := c.ReadFile(t.Context(), "/file"); err == nil || !strings.Contains(strings.ToLower(err.Error()), "checksum") {
		t.Errorf("all replicas are corrupt, and the error is %v", err)
	}
}

// A token that has expired is replaced by another.
func TestReadsGetOtherTokens(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain)
	content := randomBytes(100_000)
	store(t, c, "/file", content, CreateOptions{})
	refused := 0
	inject(c, &faulty{read: func(req *data.ReadRequest, n int) error {
		if n == 1 {
			refused++
			return &data.StatusError{Status: hdfspb.Status_ERROR_ACCESS_TOKEN, Message: "expired"}
		}
		return nil
	}})
	expect(t, c, "/file", content)
	if refused != 1 {
		t.Error("no token was refused")
	}
}

// A positional read that takes long is begun elsewhere, too.
func TestHedgedReads(t *testing.T) {
	s := startSystem(t, 2, 2)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.HedgeAfter = time.Millisecond })
	content := randomBytes(100_000)
	store(t, c, "/file", content, CreateOptions{})
	eventually(t, "the second DataNode has told of its replica", func() error {
		blocks, err := c.BlockLocations(t.Context(), "/file", 0, 1)
		if err == nil && (len(blocks) != 1 || len(blocks[0].DataNodes) != 2) {
			err = fmt.Errorf("%+v", blocks)
		}
		return err
	})
	slow := make(chan struct{})
	inject(c, &faulty{next: func(n int) {
		if n == 1 {
			<-slow
		}
	}})
	f, err := c.Open(t.Context(), "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c.read.Path.(*faulty).read = func(_ *data.ReadRequest, n int) error {
		if n == 2 {
			defer close(slow) // the first goes on only when the second has begun
		}
		return nil
	}
	p := make([]byte, 5000)
	if _, err := f.ReadAt(p, 1234); err != nil || !bytes.Equal(p, content[1234:6234]) {
		t.Error(err)
	}
}

// A pipeline over which nothing is written is kept alive by heartbeats.
func TestIdlePipelinesLive(t *testing.T) {
	s := startSystem(t, 2, 2)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.SocketTimeout = 200 * time.Millisecond })
	beats, pipelines := make(chan struct{}, 100), 0
	inject(c, &faulty{
		setup: func(*data.WriteRequest, int) { pipelines++ },
		send: func(k *data.Packet, _ int, _ *data.WriteRequest) {
			if k.Seqno == -1 {
				beats <- struct{}{}
			}
		},
	})
	content := randomBytes(30_000)
	w, err := c.Create(t.Context(), "/file", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content[:10_000]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		<-beats
	}
	if _, err := w.Write(content[10_000:]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/file", content)
	if pipelines != 1 {
		t.Errorf("%d pipelines were set up", pipelines)
	}
}

// Calls are made again when the NameNode has been away, and those that must not be
// carried out twice are not.
func TestClientOutlivesItsNameNode(t *testing.T) {
	s := systemIn(t, 2, 2, loopbackOfItsOwn(t))
	c := s.own(verbena.TransportAuto, func(cfg *ClientConfig) { cfg.Patience = 30 * time.Second; cfg.PacketSize = 64 << 10 })
	content := randomBytes(3 << 20)
	store(t, c, "/before", content, CreateOptions{})
	w, err := c.Create(t.Context(), "/across", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content[:1_500_000]); err != nil {
		t.Fatal(err)
	}
	addr := s.NameNode.Addr()
	if err := s.NameNode.Close(); err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() { made <- c.Mkdir(context.Background(), "/made-meanwhile", 0o755) }()
	nn, err := StartNameNode(t.Context(), NameNodeConfig{Runtime: s.rt, Dir: s.cfg.Dir + "/namenode", ClusterSecret: s.cfg.Dir + "/" + SecretFile, Listen: addr, Replication: 2})
	if err != nil {
		t.Fatal(err)
	}
	s.NameNode = nn
	if err := <-made; err != nil {
		t.Error(err)
	}
	eventually(t, "the DataNodes to come back", func() error {
		nodes, err := c.DataNodes(t.Context())
		if err == nil && len(nodes) != 2 {
			err = fmt.Errorf("%d are there", len(nodes))
		}
		return err
	})
	if _, err := w.Write(content[1_500_000:]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/across", content)
	expect(t, c, "/before", content)
}
