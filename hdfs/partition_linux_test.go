package hdfs

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/liveness"
	"github.com/verbena-data/verbena/internal/testnet"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp"
)

var allPartitions = flag.Bool("partitions", false, "cut networks in all ways, over TCP with its own time-out: up to half a minute each")

// A distant file system has its NameNode, each of its DataNodes and a client on hosts of their
// own, between any two of which the network can be cut.
type distant struct {
	t         *testing.T
	net       *testnet.Network
	transport string
	home      *testnet.Host // of the client
	nodes     []*DataNode
	hosts     map[string]*testnet.Host // of DataNodes, by their addresses
	own       func() *Client
	name      *testnet.Host // of the NameNode
	onlooker  *Client       // on the NameNode's host
}

// runtimeAt is a runtime that dials from a host. It takes a peer for dead that is silent for 1.5 s;
// with -partitions that takes 30 s over TCP, as it does by default.
func runtimeAt(t *testing.T, h *testnet.Host, transport string) *verbena.Runtime {
	t.Helper()
	const silence = 1500 * time.Millisecond
	patience := liveness.DefaultTimeout
	if !*allPartitions {
		patience = silence
	}
	cfg := verbena.Config{PeerTimeout: patience, Connect: dialFrom(h, patience), HelloTimeout: 5 * time.Second, Linger: 100 * time.Millisecond}
	if transport == "iwarp" {
		cfg.Providers = []rdma.Provider{iwarp.New(iwarp.Config{AllowRemote: true, PeerTimeout: silence})}
	}
	rt, err := verbena.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return rt
}

// dialFrom is how a runtime connects by default that waits for peers for so long, from a host. Long
// reads over TCP have nothing else that tells them of a peer's silence.
func dialFrom(h *testnet.Host, patience time.Duration) func(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{KeepAliveConfig: liveness.KeepAlive(patience)}
	return func(ctx context.Context, network, address string) (c net.Conn, err error) {
		h.Do(func() { c, err = dialer.DialContext(ctx, network, address) })
		return c, err
	}
}

func newDistant(t *testing.T, transport string, dataNodes int) *distant {
	t.Helper()
	d := &distant{t: t, transport: transport, net: testnet.NewNetwork(t, 2+dataNodes), hosts: map[string]*testnet.Host{}}
	d.name, d.home = d.net.Hosts[0], d.net.Hosts[1]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	start := func(h *testnet.Host, f func() (io.Closer, error)) {
		t.Helper()
		var c io.Closer
		var err error
		h.Do(func() { c, err = f() })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	quick := &conf.Properties{}
	quick.Set("dfs.namenode.redundancy.interval.seconds", "1", "this test")
	var name *NameNode
	at := d.name
	start(at, func() (_ io.Closer, err error) {
		name, err = StartNameNode(ctx, NameNodeConfig{Runtime: runtimeAt(t, at, transport), Dir: filepath.Join(dir, "namenode"), ClusterSecret: secret, Listen: at.Address + ":0", Replication: 3, Properties: quick})
		return name, err
	})
	for i, h := range d.net.Hosts[2:] {
		start(h, func() (io.Closer, error) {
			dn, err := StartDataNode(ctx, DataNodeConfig{
				Runtime: runtimeAt(t, h, transport), Dir: filepath.Join(dir, fmt.Sprint("datanode-", i)), ClusterSecret: secret, Listen: h.Address + ":0",
				NameNode: name.Addr(), NoLocalReads: true, shared: true,
			})
			d.nodes = append(d.nodes, dn)
			return dn, err
		})
		d.hosts[h.Address] = h
	}
	for _, dn := range d.nodes {
		if err := dn.WaitReported(ctx); err != nil {
			t.Fatal(err)
		}
	}
	clientAt := func(h *testnet.Host) func() *Client {
		dialer := NewDialer(runtimeAt(t, h, transport), verbena.TransportAuto)
		t.Cleanup(func() { dialer.Close() })
		return func() *Client {
			c, err := NewClient(ClientConfig{
				NameNodes: []string{name.Addr()}, User: superuser(t), Dialer: dialer, NoLocalReads: true, BlockSize: 4 << 20, PacketSize: 32 << 10, Replication: 3, ReplaceBestEffort: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
			return c
		}
	}
	d.own, d.onlooker = clientAt(d.home), clientAt(at)()
	return d
}

// at is the host of a DataNode.
func (d *distant) at(n *hdfspb.DatanodeInfoProto) *testnet.Host {
	return d.hosts[n.GetId().GetIpAddr()]
}

// whole waits until a file has three replicas of each block, as the NameNode knows.
func (d *distant) whole(t *testing.T, name string, length int64) {
	t.Helper()
	d.until(t, "three replicas of "+name, func() error {
		all, err := d.onlooker.BlockLocations(t.Context(), name, 0, length)
		for _, b := range all {
			if len(b.DataNodes) < 3 {
				err = errors.Join(err, fmt.Errorf("a block has %d replicas", len(b.DataNodes)))
			}
		}
		return err
	})
}

// until is eventually, for what comes after a peer's silence and the NameNode's next look.
func (d *distant) until(t *testing.T, what string, f func() error) {
	t.Helper()
	ctx := d.bounded(t)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("waiting for %s: %v", what, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// bounded is a context for what must end, though a network is cut in its middle: after the time in
// which a silent peer is noticed, here and at the other ends, and what recovery takes.
func (d *distant) bounded(t *testing.T) context.Context {
	limit := 60 * time.Second
	if d.transport == verbena.TransportTCP {
		limit = 3 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// A link goes down in the middle of a write, and of a read, between the client and a DataNode,
// between two DataNodes, or between the NameNode and any of them, which nobody is told: what was acknowledged is there, whatever is read is right, all ends, and
// when the link is back it is used.
func TestPartitionsOfTheNativePath(t *testing.T) {
	t.Parallel() // it waits for who is silent for most of its time
	for _, transport := range []string{"iwarp", verbena.TransportTCP} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			d := newDistant(t, transport, 4)
			first := func(nodes []*hdfspb.DatanodeInfoProto) (a, b *testnet.Host) { return d.home, d.at(nodes[0]) }
			second := func(nodes []*hdfspb.DatanodeInfoProto) (a, b *testnet.Host) { return d.at(nodes[0]), d.at(nodes[1]) }
			third := func(nodes []*hdfspb.DatanodeInfoProto) (a, b *testnet.Host) { return d.at(nodes[1]), d.at(nodes[2]) }
			for _, c := range []struct {
				name  string
				quick []string // over these it takes some two seconds
				do    func(t *testing.T)
			}{
				{"write, DataNode from DataNode", []string{"iwarp"}, func(t *testing.T) { d.write(t, "/second", second) }},
				{"write, first DataNode from client", []string{"iwarp", "tcp"}, func(t *testing.T) { d.write(t, "/first", first) }},
				{"write, last DataNode from DataNode", nil, func(t *testing.T) { d.write(t, "/third", third) }},
				{"write, NameNode from client", []string{"iwarp"}, d.writeWithoutTheNameNode},
				{"write, NameNode from DataNodes", []string{"tcp"}, d.writeWithoutReports},
				{"read", []string{"iwarp", "tcp"}, d.read},
				{"copy, in its middle", []string{"iwarp"}, d.copyInTheMiddle},
				{"copy", nil, d.copy},
			} {
				t.Run(c.name, func(t *testing.T) {
					if !slices.Contains(c.quick, transport) && !*allPartitions {
						t.Skip("it takes up to twelve seconds: it runs with -partitions")
					}
					c.do(t)
				})
			}
		})
	}
}

// write writes a file in whose middle the network is cut between two hosts of its pipeline.
func (d *distant) write(t *testing.T, name string, between func(nodes []*hdfspb.DatanodeInfoProto) (a, b *testnet.Host)) {
	ctx := d.bounded(t)
	c := d.own()
	var mu sync.Mutex
	var nodes []*hdfspb.DatanodeInfoProto
	pipelines := 0
	inject(c, &faulty{setup: func(req *data.WriteRequest, n int) {
		mu.Lock()
		defer mu.Unlock()
		nodes, pipelines = req.Nodes, n
	}})
	content := randomBytes(9<<20 + 321)
	const cutAt = 2<<20 + 5
	w, err := c.Create(ctx, name, CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content[:cutAt]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	if got := c.ExplainTransfers(data.Name(nodes[0])); got != native.Service+" over "+d.transport {
		t.Errorf("blocks go by %s", got)
	}
	a, b := between(nodes)
	before := pipelines
	mu.Unlock()
	d.net.Cut(a, b)
	began := time.Now()
	for at := cutAt; at < len(content); {
		n := min(300_000, len(content)-at)
		if _, err := w.Write(content[at : at+n]); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		at += n
		if err := w.Flush(ctx); err != nil {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		// What is acknowledged others can read.
		f, err := d.onlooker.Open(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		last := make([]byte, n)
		if _, err := f.ReadAtContext(ctx, last, int64(at-n)); err != nil || !bytes.Equal(last, content[at-n:at]) {
			t.Fatalf("%d bytes that were acknowledged at %d: %v, or others", n, at-n, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("written in %v", time.Since(began).Round(time.Millisecond))
	mu.Lock()
	if pipelines == before {
		t.Error("the pipeline has not noticed")
	}
	mu.Unlock()
	expect(t, d.onlooker, name, content)
	d.net.Heal(a, b)
	d.back(t, name, content)
}

// writeWithoutTheNameNode writes a file whose client is cut off from the NameNode in its middle: what it
// flushes is acknowledged, the next block waits for the network, and nothing is lost.
func (d *distant) writeWithoutTheNameNode(t *testing.T) {
	ctx := d.bounded(t)
	c := d.own()
	content := randomBytes(9<<20 + 654)
	const cutAt, flushed = 2<<20 + 7, 3 << 20 // all in the first block
	w := d.begin(t, c, "/nameless", content[:cutAt])
	d.net.Cut(d.home, d.name)
	began := time.Now()
	if _, err := w.Write(content[cutAt:flushed]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Fatalf("a flush to DataNodes, without the NameNode: %v", err)
	}
	f, err := d.onlooker.Open(ctx, "/nameless")
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, flushed)
	if _, err := f.ReadAtContext(ctx, got, 0); err != nil || !bytes.Equal(got, content[:flushed]) {
		t.Fatalf("what was acknowledged: %v, or other bytes", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := w.Write(content[flushed:])
		ended <- errors.Join(err, w.Close())
	}()
	// A call that began behind it is given up: the client knows nothing of the NameNode.
	lost, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := c.Stat(lost, "/nameless"); err == nil {
		t.Error("the client reaches the NameNode")
	}
	select {
	case err := <-ended:
		t.Fatalf("the write ended without the NameNode: %v", err)
	default:
	}
	d.net.Heal(d.home, d.name)
	if err := <-ended; err != nil {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
	t.Logf("written in %v", time.Since(began).Round(time.Millisecond))
	expect(t, d.onlooker, "/nameless", content)
	d.back(t, "/nameless", content)
}

// writeWithoutReports writes a file while no DataNode reaches the NameNode: what is flushed is
// acknowledged, and the file is closed when they have told of its blocks.
func (d *distant) writeWithoutReports(t *testing.T) {
	ctx := d.bounded(t)
	c := d.own()
	content := randomBytes(7<<20 + 123)
	const cutAt = 1<<20 + 3
	w := d.begin(t, c, "/unreported", content[:cutAt])
	for _, h := range d.hosts {
		d.net.Cut(h, d.name)
	}
	began := time.Now()
	if _, err := w.Write(content[cutAt : 2<<20]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(ctx); err != nil {
		t.Fatalf("a flush to DataNodes which the NameNode does not reach: %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := w.Write(content[2<<20:])
		ended <- errors.Join(err, w.Close())
	}()
	d.until(t, "the NameNode to hear of no DataNode", func() error {
		all, err := c.DataNodes(ctx)
		for _, dn := range all {
			if ago := time.Since(dn.LastContact); ago < 4*time.Second {
				err = errors.Join(err, fmt.Errorf("%s was heard %v ago", dn.Address, ago))
			}
		}
		return err
	})
	select {
	case err := <-ended:
		t.Fatalf("the file was closed though nobody told of its blocks: %v", err)
	default:
	}
	for _, h := range d.hosts {
		d.net.Heal(h, d.name)
	}
	if err := <-ended; err != nil {
		t.Fatalf("after %v: %v", time.Since(began), err)
	}
	t.Logf("written in %v", time.Since(began).Round(time.Millisecond))
	expect(t, d.onlooker, "/unreported", content)
	d.back(t, "/unreported", content)
}

// begin creates a file and flushes its first bytes.
func (d *distant) begin(t *testing.T, c *Client, name string, first []byte) *FileWriter {
	t.Helper()
	w, err := c.Create(d.bounded(t), name, CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(first); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(d.bounded(t)); err != nil {
		t.Fatal(err)
	}
	return w
}

// back tells whether all is as before a cut: replicas that were missing come, and the client writes
// to all DataNodes and reads from them.
func (d *distant) back(t *testing.T, name string, content []byte) {
	t.Helper()
	d.whole(t, name, int64(len(content)))
	c := d.own()
	expect(t, c, name, content)
	for i := range 4 {
		again := fmt.Sprintf("%s-again-%d", name, i)
		store(t, c, again, content[:1<<20], CreateOptions{})
		expect(t, c, again, content[:1<<20])
	}
	d.until(t, "native connections to all DataNodes", func() error {
		for i, dn := range d.nodes {
			if got := c.ExplainTransfers(dn.Addr()); got != native.Service+" over "+d.transport && !strings.HasSuffix(got, "not connected") {
				return fmt.Errorf("DataNode %d: %s", i, got)
			}
		}
		return nil
	})
}

// read reads a file while the network is cut between the client and the DataNode that it reads from.
func (d *distant) read(t *testing.T) {
	ctx := d.bounded(t)
	content := randomBytes(12<<20 + 99)
	c := d.own()
	store(t, c, "/read", content, CreateOptions{BlockSize: 16 << 20})
	d.whole(t, "/read", int64(len(content)))
	var mu sync.Mutex
	var from []*hdfspb.DatanodeInfoProto
	inject(c, &faulty{read: func(req *data.ReadRequest, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		from = append(from, req.Node)
		return nil
	}})
	f, err := c.Open(ctx, "/read")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var got bytes.Buffer
	if _, err := io.CopyN(&got, f, 100_000); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	victim := d.at(from[0])
	mu.Unlock()
	d.net.Cut(d.home, victim)
	began := time.Now()
	if _, err := io.Copy(&got, f); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Fatalf("after %v: %d bytes of %d, or others: %v", time.Since(began), got.Len(), len(content), err)
	}
	t.Logf("read in %v", time.Since(began).Round(time.Millisecond))
	mu.Lock()
	if len(from) < 2 || d.at(from[len(from)-1]) == victim {
		t.Errorf("the file was read from %d DataNodes", len(from))
	}
	mu.Unlock()
	d.net.Heal(d.home, victim)
	d.back(t, "/read", content)
}

// copyInTheMiddle has a block copied to one more DataNode, and cuts the network between the two in the
// middle: the source notices, and the block is copied when the packets pass again.
func (d *distant) copyInTheMiddle(t *testing.T) {
	ctx := d.bounded(t)
	content := randomBytes(32<<20 + 11)
	c := d.own()
	// A copy may be over before the network is cut.
	for attempt := range 5 {
		name := fmt.Sprint("/middle-", attempt)
		store(t, c, name, content, CreateOptions{Replication: 1, BlockSize: 128 << 20})
		at, err := c.BlockLocations(ctx, name, 0, 1)
		if err != nil {
			t.Fatal(err)
		}
		holder := at[0].DataNodes[0].Address
		var source *DataNode
		received := map[*DataNode]uint64{}
		for _, dn := range d.nodes {
			if dn.Addr() == holder {
				source = dn
			} else {
				received[dn] = dn.Packets().Packets
			}
		}
		before := source.Copies()
		if err := c.SetReplication(ctx, name, 2); err != nil {
			t.Fatal(err)
		}
		var target *DataNode
		for target == nil {
			for dn, packets := range received {
				if dn.Packets().Packets > packets+2 {
					target = dn
				}
			}
			select {
			case <-ctx.Done():
				t.Fatal("nothing is copied")
			case <-time.After(time.Millisecond):
			}
		}
		a, b := d.host(source), d.host(target)
		d.net.Cut(a, b)
		began, over := time.Now(), false
		d.until(t, "the source to notice", func() error {
			now := source.Copies()
			over = now.Native.Blocks > before.Native.Blocks
			if over || now.Fallbacks["broke off"] > before.Fallbacks["broke off"] {
				return nil
			}
			return errors.New("it has not")
		})
		d.net.Heal(a, b)
		if over {
			continue
		}
		t.Logf("noticed after %v", time.Since(began).Round(time.Millisecond))
		d.until(t, "two replicas", func() error {
			at, err := d.onlooker.BlockLocations(ctx, name, 0, 1)
			if err == nil && len(at[0].DataNodes) != 2 {
				err = fmt.Errorf("there are %d", len(at[0].DataNodes))
			}
			return err
		})
		t.Logf("copied after %v", time.Since(began).Round(time.Millisecond))
		inject(c, &faulty{read: func(req *data.ReadRequest, _ int) error {
			if data.Name(req.Node) == holder {
				return errors.New("the copy is to be read")
			}
			return nil
		}})
		expect(t, c, name, content)
		return
	}
	t.Error("all copies were over before the network was cut")
}

// host is the host that a DataNode is on.
func (d *distant) host(dn *DataNode) *testnet.Host {
	address, _, _ := net.SplitHostPort(dn.Addr())
	return d.hosts[address]
}

// copy has a block copied while the network is cut between all DataNodes that could give it and the
// one that is to get it, and then heals.
func (d *distant) copy(t *testing.T) {
	content := randomBytes(3<<20 + 7)
	c := d.own()
	store(t, c, "/copy", content, CreateOptions{Replication: 1})
	at, err := c.BlockLocations(t.Context(), "/copy", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	holder := d.hosts[strings.Split(at[0].DataNodes[0].Address, ":")[0]]
	for _, h := range d.net.Hosts[2:] {
		if h != holder {
			d.net.Cut(holder, h)
		}
	}
	var source *DataNode
	for _, dn := range d.nodes {
		if strings.HasPrefix(dn.Addr(), holder.Address+":") {
			source = dn
		}
	}
	before := source.Copies()
	if err := c.SetReplication(t.Context(), "/copy", 3); err != nil {
		t.Fatal(err)
	}
	d.until(t, "a copy that fails", func() error {
		for why, n := range source.Copies().Fallbacks {
			if n > before.Fallbacks[why] {
				return nil
			}
		}
		return errors.New("none does")
	})
	for _, h := range d.net.Hosts[2:] {
		if h != holder {
			d.net.Heal(holder, h)
		}
	}
	d.whole(t, "/copy", int64(len(content)))
	d.back(t, "/copy", content)
	if now := source.Copies(); now.Native.Blocks == before.Native.Blocks && now.Legacy.Blocks == before.Legacy.Blocks {
		t.Error("the DataNode has copied nothing after all")
	}
}
