package datanode

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// repliesOfTwo are how many DataNodes may be said to have a packet where two lie behind, and what the one
// in front of them says then.
var repliesOfTwo = []struct{ said, passedOn int }{{2, 3}, {1, 2}, {3, 2}}

// wantCounted compares an acknowledgement with the one of a pipeline in which the second DataNode has
// said that so many have the packet.
func wantCounted(t *testing.T, a *transfer.Ack, said, replies int) {
	t.Helper()
	if a.OK() != (said == 2) || len(a.Replies) != replies || a.Replies[0] != hdfspb.Status_SUCCESS || !a.OK() && a.Replies[1] != hdfspb.Status_ERROR {
		t.Errorf("%d of 2 behind have a packet, and it is acknowledged by %v", said, a.Replies)
	}
}

// A yes of fewer DataNodes than there are behind, or of more, says that the next one does not keep to
// the protocol: it is to blame, and the packet counts as acknowledged by nobody behind.
func TestRepliesAreCounted(t *testing.T) {
	for _, c := range repliesOfTwo {
		t.Run(fmt.Sprint(c.said, " of 2"), func(t *testing.T) {
			f := newFixture(t, 1, nil)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			next := make(chan error, 1)
			go func() { next <- acknowledgeAs(l, c.said) }()
			op := writeOf(1, f.nodes[0], f.nodes[0])
			op.Targets[0] = proto.CloneOf(op.Targets[0])
			op.Targets[0].Id.XferPort = proto.Uint32(uint32(l.Addr().(*net.TCPAddr).Port))
			cl := dialNode(t, f.nodes[0])
			must(t, transfer.WriteRequest(cl.nc, transfer.OpWriteBlock, op))
			resp := &hdfspb.BlockOpResponseProto{}
			if must(t, cl.r.ReadMessage(resp)); resp.GetStatus() != hdfspb.Status_SUCCESS {
				t.Fatal(resp)
			}
			cl.send(0, random(1, 1000), false, false)
			a := cl.ack()
			wantCounted(t, &a, c.said, c.passedOn)
			cl.nc.Close()
			must(t, <-next)
		})
	}
}

// acknowledgeAs is the next DataNode of one pipeline, which says that so many DataNodes have each packet.
func acknowledgeAs(l net.Listener, said int) error {
	defer l.Close()
	nc, err := l.Accept()
	if err != nil {
		return err
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(patient)); err != nil {
		return err
	}
	r := transfer.NewReader(nc, nil)
	if _, err := r.ReadOp(); err != nil {
		return err
	}
	if err := r.ReadMessage(&hdfspb.OpWriteBlockProto{}); err != nil {
		return err
	}
	if err := transfer.WriteMessage(nc, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum()}); err != nil {
		return err
	}
	for {
		var p transfer.Packet
		if err := r.ReadPacket(transfer.CRC32C(), &p); gone(err) {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := nc.Write(transfer.AppendAck(nil, &transfer.Ack{Seqno: p.Seqno, Replies: make([]hdfspb.Status, said)})); err != nil {
			return err
		}
	}
}

// So it is over the native path.
func TestRepliesAreCountedOverTheNativePath(t *testing.T) {
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	must(t, err)
	for _, c := range repliesOfTwo {
		t.Run(fmt.Sprint(c.said, " of 2"), func(t *testing.T) {
			f := newNativesBefore(t, func(ctx context.Context, ep *verbena.Endpoint) error {
				for {
					m, err := ep.Receive(ctx)
					if err != nil {
						return err
					}
					var reply []byte
					switch native.KindOf(m.Bytes()) {
					case native.SetUp:
						reply = accepted
					case native.Packet:
						reply = native.AppendAck(nil, &transfer.Ack{Seqno: int64(binary.BigEndian.Uint64(m.Bytes()[16:])), Replies: make([]hdfspb.Status, c.said)})
					}
					tag := m.Tag
					if m.Release(); reply == nil {
						continue
					}
					if err := ep.Send(ctx, tag, reply); err != nil {
						return err
					}
				}
			})
			cl := dialNative(t, f.nodes[0])
			if v, resp := cl.setUp(7, writeOf(1, f.nodes[1], f.nodes[0])); v != native.Accepted {
				t.Fatal(resp)
			}
			cl.send(7, packetsOf(random(1, 1000), 1000, 0)[0])
			var a transfer.Ack
			must(t, native.ParseAck(cl.next(7), &a))
			wantCounted(t, &a, c.said, c.passedOn)
		})
	}
}
