package datanode

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A peer without a token that asks and asks, and never receives the answers, loses its
// endpoint, with the reason, before it has cost the DataNode much memory. Others go on.
func TestDeafPeersEnd(t *testing.T) {
	t.Parallel()
	refused := writeOf(1)
	refused.Header.BaseHeader.Block.PoolId = new(string)
	setUp, err := native.AppendSetUp(nil, 1000, refused)
	must(t, err)
	hello := native.AppendHello(nil, [native.NonceLen]byte{1})
	for _, transport := range []string{"fakeband", verbena.TransportTCP} {
		for name, message := range map[string][]byte{"hellos": hello, "set-ups": setUp} {
			t.Run(name+" over "+transport, func(t *testing.T) {
				t.Parallel() // a TCP endpoint takes some seconds to end whose peer does not read
				network := fake.NewNetwork()
				ended := make(chan error, 10)
				f := newNativesOn(t, network, 1, nil, func(n *node) func(context.Context, *verbena.Endpoint) error {
					return func(ctx context.Context, ep *verbena.Endpoint) error {
						err := n.ServeNative(ctx, ep)
						ended <- err
						return err
					}
				})
				table := newRuntime(t, network, "eve")
				table.Dial.Transport = transport
				ctx, cancel := context.WithTimeout(t.Context(), 3*patient)
				defer cancel()
				ep, err := table.Runtime.Dial(ctx, f.nodes[0].addr, native.Service, table.Dial)
				must(t, err)
				defer ep.Close()
				honest := dialNative(t, f.nodes[0])
				honest.ctx = ctx // it waits until the other one has ended
				for tag := uint32(1); err == nil; tag++ {
					if name == "hellos" {
						tag = 0
					}
					err = ep.Send(ctx, tag, message)
				}
				if ctx.Err() != nil {
					t.Fatal("the endpoint lives on:", err)
				}
				if err := <-ended; !errors.Is(err, native.ErrDeaf) {
					t.Errorf("the endpoint has ended with %v", err)
				}
				if v, resp := honest.setUp(1, writeOf(1)); v != native.Accepted {
					t.Errorf("another peer: %v %v", v, resp)
				}
			})
		}
	}
}

// A next DataNode that receives nothing loses its connection, and blocks that go there end. What
// they had is free for others.
func TestDeafNextDataNodeEnds(t *testing.T) {
	const deaf = "deaf"
	f := newNativesOn(t, fake.NewNetwork(), 2, func(i int, c *Config) {
		c.WriteTimeout = 50 * time.Millisecond
		if i == 1 {
			c.Hostname = deaf
			return
		}
		// Blocks that come when the connection has just been given up may be too few to fill another one.
		// They end because nothing is heard of that.
		c.ReadTimeout = 2*time.Second - perHop
	}, func(n *node) func(context.Context, *verbena.Endpoint) error {
		if n.cfg.Hostname != deaf {
			return nil
		}
		return func(ctx context.Context, ep *verbena.Endpoint) error {
			select {
			case <-ctx.Done():
			case <-ep.Done():
			}
			return nil
		}
	})
	c := dialNative(t, f.nodes[0])
	const blocks = 500 // more than a peer may be sent that receives nothing
	var setUps [blocks][]byte
	for i := range setUps {
		var err error
		setUps[i], err = native.AppendSetUp(nil, 1000, writeOf(uint64(1+i), f.nodes[1]))
		must(t, err)
	}
	go func() {
		for i, m := range setUps {
			_ = c.ep.Send(c.ctx, uint32(1+i), m) // the loop below waits for each
		}
	}()
	for range blocks {
		m, err := c.ep.Receive(c.ctx)
		must(t, err)
		v, resp, err := native.ParseAnswer(m.Bytes())
		must(t, err)
		if v != native.Refused || resp.GetFirstBadLink() != f.nodes[1].addr {
			t.Fatalf("block %d: verdict %d, %v", m.Tag, v, resp)
		}
		m.Release()
	}
	wantIdle(t, f.nodes[0])
}

// A window is memory for what goes with packets, too: those without an acknowledgement are as many
// as it has room for.
func TestPacketsInAWindowAreCounted(t *testing.T) {
	const window = 4096
	most := native.WindowPackets(window)
	for _, more := range []int64{0, 1} {
		d := newDam()
		f := newNatives(t, 1, func(_ int, c *Config) { c.FS = d.disk() })
		c := dialNative(t, f.nodes[0])
		if v, resp := c.setUpWith(7, window, writeOf(1)); v != native.Accepted {
			t.Fatal(resp)
		}
		d.shut.Store(true)
		h := transfer.PacketHeader{DataLen: 1, Sync: true}
		packet := make([]byte, native.PacketHeaderLen+5)
		packet[native.PacketHeaderLen+4] = 'x'
		sum := transfer.CRC32C()
		sum.Sum(packet[native.PacketHeaderLen:native.PacketHeaderLen+4], packet[native.PacketHeaderLen+4:])
		for h.Seqno < most+more {
			native.PutPacketHeader(packet, &h, 4)
			if err := c.ep.Send(c.ctx, 7, packet); err != nil {
				break // the endpoint ends
			}
			h.Seqno++
			h.Offset++
		}
		if more == 0 {
			d.wait(t)
			d.free()
			for acked := int64(-1); acked < most-1; {
				var a transfer.Ack
				must(t, native.ParseAck(c.next(7), &a))
				acked = a.Seqno
			}
			continue
		}
		if _, err := c.ep.Receive(c.ctx); err == nil || c.ctx.Err() != nil {
			t.Errorf("%d packets wait in a window for %d: %v", most+more, most, err)
		}
		d.free()
	}
}

// A set-up for which there is no room gets its answer in turn, from the goroutine that
// receives: no goroutine is begun for it.
func TestSetUpsWithoutRoomAreAnsweredInTurn(t *testing.T) {
	f := newNatives(t, 1, func(_ int, c *Config) { c.MaxTransfers = 1 })
	c := dialNative(t, f.nodes[0])
	if v, resp := c.setUp(1, writeOf(1)); v != native.Accepted {
		t.Fatal(v, resp)
	}
	setUp, err := native.AppendSetUp(nil, 1000, writeOf(2))
	must(t, err)
	const tries = 500
	go func() {
		for tag := range uint32(tries) {
			_ = c.ep.Send(c.ctx, 100+tag, setUp) // the loop below waits for each
		}
	}()
	for tag := range uint32(tries) {
		m, err := c.ep.Receive(c.ctx)
		must(t, err)
		v, resp, err := native.ParseAnswer(m.Bytes())
		must(t, err)
		if m.Tag != 100+tag || v != native.Busy || resp.GetStatus() != hdfspb.Status_ERROR {
			t.Fatalf("answer %d is that of %d: %v %v", tag, m.Tag-100, v, resp)
		}
		m.Release()
	}
}

// The next DataNode may accept no message as long as a client sends. That ends the block, and no other one between the
// two DataNodes.
func TestPacketTooLongForTheNextDataNode(t *testing.T) {
	f := newNatives(t, 2, func(i int, c *Config) {
		if i == 1 {
			rt, err := verbena.New(verbena.Config{MaxMessage: 4096})
			must(t, err)
			t.Cleanup(func() { must(t, rt.Close()) })
			c.Native = &native.TableConfig{Runtime: rt}
		}
	})
	c := dialNative(t, f.nodes[0])
	for tag := uint32(1); tag <= 2; tag++ {
		if v, resp := c.setUp(tag, writeOf(uint64(tag), f.nodes[1])); v != native.Accepted {
			t.Fatal(resp)
		}
	}
	short := packetsOf(random(1, 3000), 1000, 0, 1, 2)
	c.send(1, short[0])
	c.wantAck(1, 0)
	c.send(2, packetsOf(random(2, 5000), 5000, 0)[0])
	var a transfer.Ack
	if must(t, native.ParseAck(c.next(2), &a)); a.OK() || len(a.Replies) != 2 || a.Replies[0] != hdfspb.Status_SUCCESS {
		t.Errorf("acknowledgement %+v", a)
	}
	c.send(1, short[1])
	c.wantAck(1, 1)
	op := writeOf(3, f.nodes[1])
	op.Header.ClientName = proto.String(strings.Repeat("c", 5000))
	if v, resp := c.setUp(3, op); v != native.Unreachable || resp.GetFirstBadLink() != f.nodes[1].addr {
		t.Errorf("verdict %d of a set-up that is too long: %v", v, resp)
	}
	c.send(1, short[2])
	c.wantAck(1, 2)
}
