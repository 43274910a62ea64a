package native

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// writesTo serves pipelines of one DataNode, by what reply returns for each message, and returns a
// path to it, which waits as long as patience for what it owes, and a request for a new block.
func writesTo(t *testing.T, patience time.Duration, reply func(m *verbena.Message) []byte) (*Path, *data.WriteRequest) {
	return writesOver(t, verbena.Config{}, patience, reply)
}

// writesOver is writesTo over what a runtime is configured to use.
func writesOver(t *testing.T, cfg verbena.Config, patience time.Duration, reply func(m *verbena.Message) []byte) (*Path, *data.WriteRequest) {
	t.Helper()
	return servedBy(t, cfg, patience, func(ep *verbena.Endpoint) {
		for {
			m, err := ep.Receive(context.Background())
			if err != nil {
				return
			}
			if b := reply(m); b != nil {
				_ = ep.Send(context.Background(), m.Tag, b) // its error is the next Receive's
			}
			m.Release()
		}
	})
}

// servedBy is writesOver with what serves an endpoint.
func servedBy(t *testing.T, cfg verbena.Config, patience time.Duration, serve func(ep *verbena.Endpoint)) (*Path, *data.WriteRequest) {
	t.Helper()
	rt, err := verbena.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := rt.Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{Services: []string{native.Service}})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			ep, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			serving.Go(func() { serve(ep) })
		}
	})
	calls, err := rt.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{Service: native.CallService}})
	if err != nil {
		t.Fatal(err)
	}
	table := native.NewTable(native.TableConfig{Runtime: rt})
	p := New(Config{Table: table, Calls: calls, Logger: slog.New(slog.DiscardHandler), SocketTimeout: patience - perNode}) // which is added for the one DataNode
	t.Cleanup(func() {
		p.Close()
		table.Close()
		if err := errors.Join(calls.Close(), rt.Close()); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	addr := ln.Addr().(*net.TCPAddr)
	return p, &data.WriteRequest{
		Client: "test", Window: 1 << 20, Checksum: transfer.CRC32C(), Stage: hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE, BlockSize: 1 << 20,
		Block: &hdfspb.ExtendedBlockProto{PoolId: proto.String("p"), BlockId: proto.Uint64(1), GenerationStamp: proto.Uint64(1)},
		Token: &hdfspb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: proto.String(""), Service: proto.String("")},
		Nodes: []*hdfspb.DatanodeInfoProto{{Id: &hdfspb.DatanodeIDProto{
			IpAddr: proto.String(addr.IP.String()), HostName: proto.String("localhost"), DatanodeUuid: proto.String("it"),
			XferPort: proto.Uint32(uint32(addr.Port)), InfoPort: proto.Uint32(0), IpcPort: proto.Uint32(0),
		}}},
	}
}

// A DataNode may guess the id of the next block, and refuse it before it is asked: that block
// fails, and the DataNode is blamed.
func TestDataNodeThatRefusesBeforeItIsAsked(t *testing.T) {
	no, err := native.AppendAnswer(nil, native.Refused, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_ERROR.Enum()})
	if err != nil {
		t.Fatal(err)
	}
	p, req := servedBy(t, verbena.Config{}, time.Minute, func(ep *verbena.Endpoint) {
		for next := uint32(1); ; {
			if m := ep.TryReceive(); m != nil {
				next = m.Tag + 1
				m.Release()
				_ = ep.Send(context.Background(), next-1, no) // if nothing came early; its error is that of the next one
			}
			if ep.Send(context.Background(), next, no) != nil {
				return
			}
		}
	})
	for range 10 {
		_, err := p.Write(t.Context(), req)
		var broken *data.PipelineError
		if !errors.As(err, &broken) || broken.Node != 0 {
			t.Fatal(err)
		}
	}
}

// A DataNode that owes an answer or an acknowledgement for too long fails the pipeline though its
// endpoint lives; while it owes nothing it may be silent.
func TestSilentDataNodes(t *testing.T) {
	const patience = 200 * time.Millisecond
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	if err != nil {
		t.Fatal(err)
	}
	silent := func(t *testing.T, err error) {
		t.Helper()
		var broken *data.PipelineError
		if !errors.As(err, &broken) || broken.Node != 0 || broken.Blameless || !strings.Contains(err.Error(), "silent") {
			t.Errorf("%v", err)
		}
	}
	t.Run("answers nothing", func(t *testing.T) {
		t.Parallel()
		p, req := writesTo(t, patience, func(*verbena.Message) []byte { return nil })
		l, err := p.Write(t.Context(), req)
		if err == nil {
			l.Close()
		}
		silent(t, err)
	})
	t.Run("acknowledges one packet", func(t *testing.T) {
		t.Parallel()
		p, req := writesTo(t, patience, func(m *verbena.Message) []byte {
			switch kind := native.KindOf(m.Bytes()); {
			case kind == native.SetUp:
				return accepted
			case kind == native.Packet && m.Bytes()[23] == 0:
				return native.AppendAck(nil, &transfer.Ack{Replies: make([]hdfspb.Status, 1)})
			}
			return nil
		})
		l, err := p.Write(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		pool := data.NewPool(1000, req.Checksum)
		for seqno := range int64(2) {
			time.Sleep(3 * patience) // nothing is owed, and nothing happens
			k := pool.Get(seqno, 1000*seqno, 1000, nil)
			k.Grow(copy(k.Room(), make([]byte, 1000)))
			k.Seal()
			if err := l.Send(k); err != nil {
				t.Fatal(err)
			}
			var a transfer.Ack
			if err = l.Ack(&a); seqno == 0 && (err != nil || !a.OK()) {
				t.Fatalf("%+v, %v", a, err)
			}
			pool.Put(k)
		}
		silent(t, err)
	})
}

// A DataNode that lives but receives nothing fails the pipelines to it in time, those that wait
// to send, too. Those that come later get another connection.
func TestDeafDataNodes(t *testing.T) {
	const patience = 100 * time.Millisecond
	accepted, err := native.AppendAnswer(nil, native.Accepted, nil)
	if err != nil {
		t.Fatal(err)
	}
	hears := make(chan struct{})
	var deaf atomic.Bool
	// Without sockets nothing but receives takes what is sent.
	device := fake.NewNetwork().NewDevice(fake.InfiniBand("device"))
	cfg := verbena.Config{Providers: []rdma.Provider{fake.NewProvider("fake", device)}}
	p, req := writesOver(t, cfg, time.Hour, func(m *verbena.Message) []byte { // for what must succeed
		if native.KindOf(m.Bytes()) == native.Packet {
			if deaf.CompareAndSwap(false, true) { // one connection is
				<-hears
			}
			return nil
		}
		return accepted
	})
	t.Cleanup(func() { close(hears) })
	silent := func(what string, err error) {
		t.Helper()
		var broken *data.PipelineError
		if !errors.As(err, &broken) || broken.Node != 0 || !strings.Contains(err.Error(), "silent") {
			t.Errorf("%s: %v", what, err)
		}
	}
	begin := func() *pipeline {
		t.Helper()
		l, err := p.Write(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.(*pipeline)
	}
	pool := data.NewPool(1000, req.Checksum)
	send := func(l *pipeline) error {
		k := pool.Get(0, 0, 1000, nil)
		k.Grow(len(k.Room()))
		k.Seal()
		return l.Send(k)
	}
	l, patient := begin(), begin()
	l.mu.Lock()
	l.wait = patience
	l.timer.Reset(patience)
	l.mu.Unlock()

	packet := append([]byte{byte(native.Packet)}, make([]byte, 1000)...)
	for taken := true; taken; { // until the connection takes nothing more
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		taken = l.conn.Endpoint().Send(ctx, l.id, packet) == nil
		cancel()
	}
	p.cfg.SocketTimeout = patience - perNode
	_, err = p.Write(t.Context(), req)
	p.cfg.SocketTimeout = time.Hour
	silent("a set-up", err)
	silent("a packet", send(l))
	silent("its acknowledgement", l.Ack(&transfer.Ack{}))
	ended := make(chan error)
	go func() { ended <- send(patient) }()
	for sends := false; !sends; runtime.Gosched() {
		patient.mu.Lock()
		sends = patient.sent.Len() > 0
		patient.mu.Unlock()
	}
	patient.Close()
	if err := <-ended; !errors.Is(err, errClosed) {
		t.Errorf("a packet of a pipeline that is closed: %v", err)
	}
	if next := begin(); next.conn == l.conn || patient.conn != l.conn {
		t.Error("a later pipeline gets the connection that takes nothing, or an earlier one had another")
	} else if err := send(next); err != nil {
		t.Error(err)
	}
}
