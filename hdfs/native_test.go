package hdfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
)

// Native and legacy clients write one file in turns, with flushes at odd places, and both
// read it while it is open.
func TestBothPathsAtOneBlock(t *testing.T) {
	s := startSystem(t, 3, 3)
	// An append that begins before the NameNode has heard of all three replicas finds no
	// other DataNode for the third, and does with two.
	away := func(cfg *ClientConfig) { cfg.NoLocalReads, cfg.PacketSize, cfg.ReplaceBestEffort = true, 30_000, true }
	clients := []*Client{
		s.own(verbena.TransportAuto, away), s.own(plain, away), s.own("shm", away),
		s.own("shm", away, func(cfg *ClientConfig) { cfg.LegacyTransfers = true }), s.own("tcp", away),
	}
	random := rand.New(rand.NewPCG(7, 8))
	var want []byte
	for round := range 10 {
		c := clients[round%len(clients)]
		var w *FileWriter
		var err error
		if round == 0 {
			w, err = c.Create(t.Context(), "/both", CreateOptions{})
		} else {
			w, err = c.Append(t.Context(), "/both", AppendOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			piece := randomBytes(random.IntN(150_000))
			if _, err := w.Write(piece); err != nil {
				t.Fatal(err)
			}
			want = append(want, piece...)
			if random.IntN(2) == 0 {
				err = w.Flush(t.Context())
			} else {
				err = w.Sync(t.Context(), true)
			}
			if err != nil {
				t.Fatal(err)
			}
			expect(t, clients[random.IntN(len(clients))], "/both", want)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range clients {
		expect(t, c, "/both", want)
		got := c.ExplainTransfers(s.DataNodes[0].Addr())
		if legacy := i == 1 || i == 3; strings.HasPrefix(got, "legacy: ") != legacy || !legacy && !strings.HasPrefix(got, native.Service) {
			t.Errorf("client %d: %s", i, got)
		}
	}
}

// With no memory for windows at the DataNodes, writers back off and then take the legacy
// protocol: nothing fails.
func TestWindowsAreBounded(t *testing.T) {
	t.Parallel()
	s := startSystem(t, 2, 2)
	c := s.own(verbena.TransportAuto, func(cfg *ClientConfig) { cfg.Window = native.MaxWindow })
	content := randomBytes(100_000)
	var open []*FileWriter
	for i := range 9 { // of 64 MiB each, in 512
		w, err := c.Create(t.Context(), fmt.Sprintf("/window-%d", i), CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		open = append(open, w)
	}
	for i, w := range open {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		expect(t, c, fmt.Sprintf("/window-%d", i), content)
	}
}

// A client has no more on its way than a set-up can announce, whatever its window: a
// DataNode would end its endpoint.
func TestLongWindowsAreCut(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own("shm", func(cfg *ClientConfig) { cfg.Window, cfg.PacketSize = largestWindow, 8<<20 })
	w, _, err := c.writing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if w.Window > native.MaxWindow || w.Window < 2*w.Packets.Memory() {
		t.Errorf("a window of %d bytes, packets of %d", w.Window, w.Packets.Memory())
	}
}

// A packet is as long as the tuning table says for the transport that it goes by: the built-in one,
// or the client's own.
func TestPacketsSuitTheTransport(t *testing.T) {
	s := startSystem(t, 1, 1)
	own := verbena.TuningTable{}
	for name, value := range map[string]string{"shm.packet": "100000", "tcp.packet": "1000000"} {
		if err := own.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	tuned, err := verbena.New(verbena.Config{Providers: providers.Default(), Tuning: own})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tuned.Close() })
	for _, c := range []struct {
		name, transport string
		rt              *verbena.Runtime
		data            int // bytes of a packet: whole chunks, with checksums and a header of 64 bytes
	}{
		{"shm", "shm", s.rt, 1016 << 10}, {"iwarp", "iwarp", s.rt, 1016 << 10}, {"tcp", "tcp", s.rt, 252 << 10},
		{"own shm", "shm", tuned, (100_000 - 64) / 516 * 512}, {"own tcp", "tcp", tuned, (1_000_000 - 64) / 516 * 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := NewDialer(c.rt, c.transport)
			t.Cleanup(func() { d.Close() })
			client := s.own(plain, func(cfg *ClientConfig) { cfg.Dialer, cfg.BlockSize = d, 64<<20 })
			w, err := client.Create(t.Context(), "/suits "+c.name, CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			packets := func(content []byte) uint64 {
				t.Helper()
				before := s.DataNodes[0].Packets().Packets
				if _, err := w.Write(content); err != nil {
					t.Fatal(err)
				}
				if err := w.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				return s.DataNodes[0].Packets().Packets - before
			}
			packets(make([]byte, 512)) // the first ones go before there is a pipeline
			const count = 8
			if n := packets(make([]byte, count*c.data)); n != count {
				t.Errorf("%d packets for %d times %d bytes", n, count, c.data)
			}
			if n := packets(make([]byte, c.data+512)); n != 2 {
				t.Errorf("%d packets for a chunk more than %d bytes", n, c.data)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// rawNative dials a DataNode's native service.
func (s *system) rawNative(g *verbena.Group, transport string) *verbena.Endpoint {
	s.t.Helper()
	ep, err := s.rt.Dial(s.t.Context(), s.DataNodes[0].Addr(), native.Service, verbena.DialConfig{Group: g, Transport: transport})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { ep.Close() })
	return ep
}

// A peer that breaks the protocol loses its endpoint, and nobody else notices; one
// without a token gets nothing.
func TestHostilePeersEndAlone(t *testing.T) {
	s := startSystem(t, 1, 1)
	g, err := group(s.rt)
	if err != nil {
		t.Fatal(err)
	}
	c := s.own(verbena.TransportAuto)
	content := randomBytes(700_000)
	w, err := c.Create(t.Context(), "/honest", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content[:300_000]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	setUp, err := native.AppendSetUp(nil, 1000, &hdfspb.OpWriteBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{ClientName: proto.String("eve"), BaseHeader: &hdfspb.BaseHeaderProto{Block: &hdfspb.ExtendedBlockProto{
			PoolId: proto.String("?"), BlockId: proto.Uint64(firstBlock), GenerationStamp: proto.Uint64(1001)}}},
		Stage: hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE.Enum(), PipelineSize: proto.Uint32(1), MinBytesRcvd: proto.Uint64(0), MaxBytesRcvd: proto.Uint64(0),
		LatestGenerationStamp: proto.Uint64(0), RequestedChecksum: transfer.CRC32C().Proto(),
	})
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 2000)
	native.PutPacketHeader(large, &transfer.PacketHeader{DataLen: 10}, 4)
	for name, messages := range map[string][][]byte{
		"nothing": {{}}, "short": {{2, 0, 0}}, "unknown": {make([]byte, 100)}, "of the other end": {native.AppendAck(nil, &transfer.Ack{Replies: make([]hdfspb.Status, 1)})},
		"no window": {append([]byte{1, 0, 0, 0, 0, 0, 0, 0}, setUp[8:]...)}, "no set-up": {append(append([]byte{}, setUp[:8]...), 0xff, 0xff)},
		"hello": {{4, 0, 0, 0, 0, 0, 0, 0, 1}}, "twice": {setUp, setUp, setUp, setUp, setUp, large, large, setUp[:20]},
	} {
		for _, transport := range []string{"shm", "iwarp", "tcp"} {
			t.Run(name+"/"+transport, func(t *testing.T) {
				ep := s.rawNative(g, transport)
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				for _, m := range messages {
					if ep.Send(ctx, 1, m) != nil {
						break
					}
				}
				for {
					m, err := ep.Receive(ctx)
					if ctx.Err() != nil {
						t.Fatal("the endpoint lives on")
					}
					if err != nil {
						break
					}
					if v, _, err := native.ParseAnswer(m.Bytes()); err != nil || v == native.Accepted {
						t.Errorf("verdict %d: %v", v, err)
					}
					m.Release()
				}
			})
		}
	}
	if _, err := w.Write(content[300_000:]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/honest", content)
	header, err := proto.Marshal(&hdfspb.ClientOperationHeaderProto{ClientName: proto.String("eve"), BaseHeader: &hdfspb.BaseHeaderProto{Block: &hdfspb.ExtendedBlockProto{
		PoolId: proto.String("?"), BlockId: proto.Uint64(firstBlock), GenerationStamp: proto.Uint64(1001)}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, transport := range []string{"shm", "iwarp", "tcp"} {
		_, reads, err := s.own(transport).cfg.Dialer.native()
		if err != nil {
			t.Fatal(err)
		}
		for name, request := range map[string][]byte{
			"no token": native.AppendReadRequest(nil, &native.ReadRequest{Length: 10}, header), "nothing": nil,
			"too long": native.AppendReadRequest(nil, &native.ReadRequest{Length: native.MaxRead + 1}, header),
		} {
			var refused *verbena.CallError
			m, err := reads.Call(t.Context(), s.DataNodes[0].Addr(), verbena.Intent{}, native.MethodRead, request)
			if !errors.As(err, &refused) || refused.Code <= verbena.CodeApplication {
				t.Errorf("%s over %s: %v", name, transport, err)
			}
			if m != nil {
				m.Release()
			}
		}
	}
}

// registered is how many bytes the pools of a runtime have.
func registered(rt *verbena.Runtime) (total int64) {
	for _, d := range rt.Stats().Devices {
		for _, p := range d.Pools {
			total += p.Registered
		}
	}
	return total
}

// Each of many clients has an endpoint of its own to the DataNode, and a block that is open: all go by the
// native path, and the DataNode has reserved what their windows come to, and nothing when they are closed.
func TestManyNativeClients(t *testing.T) {
	const window = 256 << 10
	clients := 1000
	if testing.Short() {
		clients = 50
	}
	s := startSystem(t, 1, 1)
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	content := randomBytes(20_000)
	open := make([]*FileWriter, clients)
	all := make([]*Client, clients)
	each := func(what string, do func(i int) error) {
		t.Helper()
		var group errgroup.Group
		group.SetLimit(16)
		for i := range clients {
			group.Go(func() error {
				if err := do(i); err != nil {
					return fmt.Errorf("client %d: %w", i, err)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	name := func(i int) string { return fmt.Sprintf("/client-%d", i) }
	before := registered(s.rt)
	dialers := make([]*Dialer, clients)
	t.Cleanup(func() {
		for i := range clients {
			if all[i] != nil {
				all[i].Close()
			}
			if dialers[i] != nil {
				dialers[i].Close()
			}
		}
	})
	each("write", func(i int) error {
		dialers[i] = NewDialer(rt, verbena.TransportAuto)
		c, err := NewClient(ClientConfig{
			NameNodes: []string{s.NameNode.Addr()}, User: superuser(t), Patience: time.Minute, BlockSize: 1 << 20,
			NoLocalReads: true, Dialer: dialers[i], Window: window, PacketSize: 64 << 10,
		})
		if err != nil {
			return err
		}
		all[i] = c
		if open[i], err = c.Create(t.Context(), name(i), CreateOptions{}); err != nil {
			return err
		}
		if _, err := open[i].Write(content); err != nil {
			return err
		}
		return open[i].Flush(t.Context())
	})
	reserved := s.DataNodes[0].Packets().Reserved
	if least, most := int64(clients)*window/2, int64(512<<20); reserved < least || reserved > most {
		t.Errorf("%d bytes are reserved for %d blocks, want %d to %d", reserved, clients, least, most)
	}
	memory := registered(s.rt) - before
	if most := int64(clients)<<20 + 64<<20; memory > most {
		t.Errorf("%d bytes more are registered for %d clients, want %d at most", memory, clients, most)
	}
	t.Logf("%d clients: the servers reserve %d KiB and register %d KiB, %d KiB a client", clients, reserved>>10, memory>>10, memory>>10/int64(clients))
	each("read", func(i int) error {
		if got := all[i].ExplainTransfers(s.DataNodes[0].Addr()); !strings.HasPrefix(got, native.Service+" over ") {
			return errors.New(got)
		}
		got, err := all[i].ReadFile(t.Context(), name(i))
		if err == nil && !bytes.Equal(got, content) {
			err = fmt.Errorf("%d bytes of %d, or others", len(got), len(content))
		}
		return err
	})
	each("close", func(i int) error { return open[i].Close() })
	eventually(t, "no memory is reserved", func() error {
		if n := s.DataNodes[0].Packets().Reserved; n != 0 {
			return fmt.Errorf("%d bytes are reserved", n)
		}
		return nil
	})
}

// A client that has written a block is connected to all of its DataNodes, not only to the first.
func TestClientsConnectBeforehand(t *testing.T) {
	s := startSystem(t, 3, 3)
	c := s.own(verbena.TransportAuto)
	store(t, c, "/first", randomBytes(1000), CreateOptions{})
	for _, dn := range s.DataNodes {
		eventually(t, "a connection to each DataNode", func() error {
			if got := c.ExplainTransfers(dn.Addr()); !strings.HasPrefix(got, native.Service+" over ") {
				return errors.New(got)
			}
			return nil
		})
	}
}

// only is the provider of a transport; TCP has none.
func only(t *testing.T, transport string) []rdma.Provider {
	t.Helper()
	for _, p := range providers.Default() {
		if p.Name() == transport {
			return []rdma.Provider{p}
		}
	}
	if transport != verbena.TransportTCP {
		t.Skipf("this binary has no %s", transport)
	}
	return nil
}

// The NameNode has replicas copied, and a client has another DataNode get what its pipeline has: over
// each transport they go natively, and every replica has the bytes.
func TestReplicasAreCopiedNatively(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"shm", "iwarp", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel() // the NameNode takes its time
			rt, err := verbena.New(verbena.Config{Providers: only(t, transport)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { rt.Close() })
			s := systemIn(t, 4, 1, "127.0.0.1", func(cfg *ClusterConfig) { cfg.Runtime = rt })
			own := func() *Client {
				return s.own(verbena.TransportAuto, func(cfg *ClientConfig) { cfg.PacketSize, cfg.Replace = 64<<10, ReplaceAlways })
			}
			c := own()
			content := randomBytes(2<<20 + 12_345)
			store(t, c, "/copied", content, CreateOptions{})
			if err := c.SetReplication(t.Context(), "/copied", 3); err != nil {
				t.Fatal(err)
			}
			block := content[2<<20:]
			eventually(t, "three replicas", func() error {
				names := replicas(t, s.cfg.Dir, int64(len(block)))
				if len(names) != 3 {
					return fmt.Errorf("%d replicas", len(names))
				}
				for _, name := range names {
					if b, err := os.ReadFile(name); err != nil || !bytes.Equal(b, block) {
						return fmt.Errorf("%s: %d bytes, or others: %w", name, len(b), err)
					}
				}
				if n := len(replicas(t, s.cfg.Dir, 1<<20)); n != 6 {
					return fmt.Errorf("%d replicas of the others", n)
				}
				return nil
			})
			copies := func() (native uint64) {
				for _, dn := range s.DataNodes {
					n := dn.Copies()
					native += n.Native.Blocks
					for why, count := range n.Fallbacks {
						// A DataNode that was stopped can't be connected to.
						if n.Legacy.Blocks > 0 || count > 0 && why != "not connected" {
							t.Errorf("%d blocks went by the other protocol; %d copies fell back: %s", n.Legacy.Blocks, count, why)
						}
					}
				}
				return native
			}
			eventually(t, "three blocks are copied", func() error { // the source is told of the end a moment later
				if n := copies(); n != 3 {
					return fmt.Errorf("%d blocks are", n)
				}
				return nil
			})
			if transport != "shm" {
				return
			}
			var once sync.Once
			var before uint64
			c = own() // the writes of the other one have begun
			inject(c, &faulty{send: func(_ *data.Packet, n int, req *data.WriteRequest) {
				if n == 6 {
					once.Do(func() {
						s.stop(req.Nodes[1])
						before = copies()
					})
				}
			}})
			store(t, c, "/replaced", content, CreateOptions{Replication: 3})
			expect(t, c, "/replaced", content)
			if copies() == before {
				t.Error("nothing was copied to the pipeline's new member")
			}
		})
	}
}
