package hdfs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
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
		for _, transport := range []string{"shm", "tcp"} {
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
	_, reads, err := c.cfg.Dialer.native()
	if err != nil {
		t.Fatal(err)
	}
	header, err := proto.Marshal(&hdfspb.ClientOperationHeaderProto{ClientName: proto.String("eve"), BaseHeader: &hdfspb.BaseHeaderProto{Block: &hdfspb.ExtendedBlockProto{
		PoolId: proto.String("?"), BlockId: proto.Uint64(firstBlock), GenerationStamp: proto.Uint64(1001)}}})
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
			t.Errorf("%s: %v", name, err)
		}
		if m != nil {
			m.Release()
		}
	}
}
