package cluster

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/cluster/clustertest"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is a NameNode and a DataNode of which tests set what they need.
type service struct {
	NameNode
	DataNode
	heartbeat func(context.Context, *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error)
}

func (s service) Heartbeat(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	return s.heartbeat(ctx, req)
}

func (s service) InitRecovery(_ context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	return &clusterpb.InitRecoveryResponse{Replica: &clusterpb.Replica{Block: req.Block}}, nil
}

// serve connects a client to a service.
func serve(t *testing.T, s any) (Conn, <-chan error) {
	t.Helper()
	here, there := clustertest.Pair(0)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- Serve(ctx, there, s) }()
	t.Cleanup(cancel)
	return here, done
}

func TestCallsBesideEachOther(t *testing.T) {
	second := make(chan struct{})
	conn, done := serve(t, service{heartbeat: func(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
		if req.GetUuid() == "second" {
			close(second)
		} else {
			<-second // the first call ends after the second
		}
		return &clusterpb.HeartbeatResponse{Commands: []*clusterpb.Command{{NewGeneration: req.Capacity}}}, nil
	}})
	c := NewNameNodeClient(conn)
	var wg sync.WaitGroup
	for i, name := range []string{"first", "second"} {
		wg.Go(func() {
			resp, err := c.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{Uuid: &name, Capacity: proto.Uint64(uint64(i))})
			if err != nil || len(resp.Commands) != 1 || resp.Commands[0].GetNewGeneration() != uint64(i) {
				t.Errorf("%s: %v %v", name, resp, err)
			}
		})
	}
	wg.Wait()
	d := &DataNodeClient{c.caller}
	r, err := d.InitRecovery(t.Context(), &clusterpb.InitRecoveryRequest{Block: &clusterpb.Block{Id: proto.Uint64(9)}})
	if err != nil || r.GetReplica().GetBlock().GetId() != 9 {
		t.Errorf("%v %v", r, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := c.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestErrorsKeepTheirCode(t *testing.T) {
	conn, _ := serve(t, service{heartbeat: func(context.Context, *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
		return nil, ErrNotRegistered
	}})
	c := NewNameNodeClient(conn)
	defer c.Close()
	_, err := c.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{})
	if !errors.Is(err, ErrNotRegistered) || errors.Is(err, ErrForeign) {
		t.Errorf("%v", err)
	}
	var e *Error
	if err := c.call(t.Context(), 99, &clusterpb.HeartbeatRequest{}, &clusterpb.HeartbeatResponse{}); !errors.As(err, &e) || e.Code != CodeUnknownMethod {
		t.Errorf("unknown method: %v", err)
	}
}

func TestPeerDeathEndsWaits(t *testing.T) {
	started := make(chan struct{})
	here, there := clustertest.Pair(0)
	ctx, kill := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Serve(ctx, there, service{heartbeat: func(ctx context.Context, _ *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
			close(started)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
	}()
	c := NewNameNodeClient(here)
	defer c.Close()
	failed := make(chan error, 1)
	go func() {
		_, err := c.Heartbeat(context.Background(), &clusterpb.HeartbeatRequest{})
		failed <- err
	}()
	<-started
	kill()
	if err := <-failed; err == nil {
		t.Error("the call succeeded")
	}
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Serve: %v", err)
	}
	<-c.Done()
}

func TestCallEndsWithItsContext(t *testing.T) {
	started := make(chan struct{}, 2)
	conn, _ := serve(t, service{heartbeat: func(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
		if req.GetUuid() == "slow" {
			started <- struct{}{}
			<-ctx.Done()
		}
		return &clusterpb.HeartbeatResponse{}, nil
	}})
	c := NewNameNodeClient(conn)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, err := c.Heartbeat(ctx, &clusterpb.HeartbeatRequest{Uuid: proto.String("slow")}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := c.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{}); err != nil {
		t.Errorf("the connection is not usable any more: %v", err)
	}
}

func TestServeRefusesGarbage(t *testing.T) {
	for name, msg := range map[string][]byte{
		"short":    {1, 0, 1},
		"version":  append([]byte{2, 0, 1, 0}, make([]byte, 8)...),
		"kind":     append([]byte{1, 7, 1, 0}, make([]byte, 8)...),
		"flags":    append([]byte{1, 0, 1, 1}, make([]byte, 8)...),
		"response": append([]byte{1, 1, 1, 0}, make([]byte, 8)...),
	} {
		conn, done := serve(t, service{})
		if err := conn.Send(t.Context(), msg); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
	}
	conn, _ := clustertest.Pair(0)
	if err := Serve(t.Context(), conn, 7); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Errorf("a service that is none: %v", err)
	}
}

func TestGoldenHeader(t *testing.T) {
	got := header{kindRequest, methodBlocksChanged, 0x0102030405060708}.append(nil)
	want := []byte{1, 0, 4, 0, 1, 2, 3, 4, 5, 6, 7, 8}
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	got = appendError(header{kindError, methodHeartbeat, 1}.append(nil), ErrNotRegistered)
	want = append([]byte{1, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1}, "DataNode is not registered"...)
	if !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(header{kindRequest, methodHeartbeat, 1}.append(nil))
	f.Add(appendError(header{kindError, methodHeartbeat, 1}.append(nil), io.ErrNoProgress))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, body, err := parseHeader(b)
		if err != nil {
			return
		}
		if again := append(h.append(nil), body...); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
		if h.kind == kindError {
			if e, err := parseError(body); err == nil && len(e.Message)+2 != len(body) {
				t.Errorf("the error's text has %d of %d bytes", len(e.Message), len(body))
			}
		}
		c := &caller{waiting: map[uint64]*waiter{h.id: {h.method, &clusterpb.HeartbeatResponse{}, make(chan error, 1)}}}
		_ = c.deliver(b) // garbage is refused, never a panic
	})
}
