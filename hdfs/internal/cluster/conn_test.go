package cluster

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/cluster/clustertest"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// nameNode records what it is asked.
type nameNode struct {
	mu    sync.Mutex
	asked []proto.Message
}

func record[Resp any](n *nameNode, req proto.Message, resp *Resp) (*Resp, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, proto.Clone(req))
	return resp, nil
}

func (n *nameNode) Register(_ context.Context, req *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error) {
	return record(n, req, &clusterpb.RegisterResponse{ClusterId: proto.String("c1")})
}

func (n *nameNode) Heartbeat(_ context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	return record(n, req, &clusterpb.HeartbeatResponse{})
}

func (n *nameNode) BlockReport(_ context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	return record(n, req, &clusterpb.BlockReportResponse{Commands: []*clusterpb.Command{{Kind: clusterpb.Command_DELETE.Enum()}}})
}

func (n *nameNode) BlocksChanged(_ context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	return record(n, req, &clusterpb.BlocksChangedResponse{})
}

func (n *nameNode) CommitRecovery(_ context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
	return record(n, req, &clusterpb.CommitRecoveryResponse{})
}

type dataNode struct{}

func (dataNode) InitRecovery(_ context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	return nil, &Error{CodeStale, "promised to a newer recovery"}
}

func (dataNode) UpdateRecovery(_ context.Context, req *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	return &clusterpb.UpdateRecoveryResponse{}, nil
}

// Each method of the interfaces reaches its own, with its own message.
func TestEveryMethod(t *testing.T) {
	here, there := clustertest.Pair(0)
	nn := &nameNode{}
	done := make(chan error, 1)
	go func() { done <- Serve(context.Background(), there, nn) }()
	c := NewNameNodeClient(here)
	ctx, id := t.Context(), proto.String("d1")
	requests := []proto.Message{
		&clusterpb.RegisterRequest{Version: proto.String("v")},
		&clusterpb.HeartbeatRequest{Uuid: id, Used: proto.Uint64(7)},
		// 20,000 replicas: more than any buffer that is kept.
		&clusterpb.BlockReportRequest{Uuid: id, Replicas: make([]*clusterpb.Replica, 20_000)},
		&clusterpb.BlocksChangedRequest{Uuid: id, Changes: []*clusterpb.ReplicaChange{{Kind: clusterpb.ReplicaChange_CORRUPT.Enum()}}},
		&clusterpb.CommitRecoveryRequest{Uuid: id, NewGeneration: proto.Uint64(1 << 40)},
	}
	report := requests[2].(*clusterpb.BlockReportRequest)
	for i := range report.Replicas {
		report.Replicas[i] = &clusterpb.Replica{Block: &clusterpb.Block{Id: proto.Uint64(uint64(i))}}
	}
	register, err := c.Register(ctx, requests[0].(*clusterpb.RegisterRequest))
	if err != nil || register.GetClusterId() != "c1" {
		t.Errorf("Register: %v %v", register, err)
	}
	if _, err := c.Heartbeat(ctx, requests[1].(*clusterpb.HeartbeatRequest)); err != nil {
		t.Error(err)
	}
	commands, err := c.BlockReport(ctx, report)
	if err != nil || len(commands.Commands) != 1 || commands.Commands[0].GetKind() != clusterpb.Command_DELETE {
		t.Errorf("BlockReport: %v %v", commands, err)
	}
	if _, err := c.BlocksChanged(ctx, requests[3].(*clusterpb.BlocksChangedRequest)); err != nil {
		t.Error(err)
	}
	if _, err := c.CommitRecovery(ctx, requests[4].(*clusterpb.CommitRecoveryRequest)); err != nil {
		t.Error(err)
	}
	if len(nn.asked) != len(requests) {
		t.Fatalf("%d requests came, want %d", len(nn.asked), len(requests))
	}
	for i, want := range requests {
		if !proto.Equal(nn.asked[i], want) {
			t.Errorf("request %d came as %T, want %T", i, nn.asked[i], want)
		}
	}
	// What a NameNode does not serve is refused; the connection stays.
	var e *Error
	if _, err := (&DataNodeClient{c.caller}).UpdateRecovery(ctx, &clusterpb.UpdateRecoveryRequest{}); !errors.As(err, &e) || e.Code != CodeUnknownMethod {
		t.Errorf("a NameNode asked for a recovery: %v", err)
	}
	c.mu.Lock()
	if len(c.waiting) != 0 {
		t.Errorf("%d calls wait after all have ended", len(c.waiting))
	}
	c.mu.Unlock()
	c.Close()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}

	here, there = clustertest.Pair(0)
	go func() { done <- Serve(context.Background(), there, dataNode{}) }()
	d := NewDataNodeClient(here)
	if resp, err := d.InitRecovery(ctx, &clusterpb.InitRecoveryRequest{}); !errors.Is(err, ErrStale) || resp != nil {
		t.Errorf("InitRecovery: %v %v", resp, err)
	}
	if _, err := d.UpdateRecovery(ctx, &clusterpb.UpdateRecoveryRequest{}); err != nil {
		t.Error(err)
	}
	d.Close()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

// An answer that comes as the context ends must end the call, not be waited
// for a second time.
func TestAnswerAndContextTogether(t *testing.T) {
	here, there := clustertest.Pair(4)
	c := NewNameNodeClient(here)
	defer c.Close()
	for range 500 {
		ctx, cancel := context.WithCancel(context.Background())
		result := make(chan error, 1)
		go func() {
			_, err := c.Heartbeat(ctx, &clusterpb.HeartbeatRequest{})
			result <- err
		}()
		msg, err := there.Receive(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		h, _, err := parseHeader(msg)
		if err != nil {
			t.Fatal(err)
		}
		go cancel()
		if err := there.Send(t.Context(), appendError(header{kindError, h.method, h.id}.append(nil), ErrNotRegistered)); err != nil {
			t.Fatal(err)
		}
		if err := <-result; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrNotRegistered) {
			t.Fatalf("%v", err)
		}
		cancel()
	}
}

// An answer that makes no sense ends the connection: what follows cannot be
// trusted either.
func TestClientRefusesGarbage(t *testing.T) {
	for name, garble := range map[string]func(h header) []byte{
		"request":       func(h header) []byte { return header{kindRequest, h.method, h.id}.append(nil) },
		"other method":  func(h header) []byte { return header{kindResponse, methodRegister, h.id}.append(nil) },
		"short error":   func(h header) []byte { return header{kindError, h.method, h.id}.append(nil) },
		"bad body":      func(h header) []byte { return append(header{kindResponse, h.method, h.id}.append(nil), 0xff) },
		"short message": func(header) []byte { return []byte{1} },
	} {
		here, there := clustertest.Pair(4)
		c := NewNameNodeClient(here)
		go func() {
			if msg, err := there.Receive(context.Background(), nil); err == nil {
				h, _, _ := parseHeader(msg)
				_ = there.Send(context.Background(), garble(h))
			}
		}()
		if _, err := c.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{}); !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", name, err)
		}
		<-c.Done()
		c.Close()
	}
}

// A peer that does not read must not hold a caller beyond its context.
func TestSendToAPeerThatDoesNotRead(t *testing.T) {
	here, there := clustertest.Pair(0)
	defer there.Close()
	c := NewNameNodeClient(here)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	for range 3 { // one is in the middle of its message, two wait for it
		wg.Go(func() {
			if _, err := c.Heartbeat(ctx, &clusterpb.HeartbeatRequest{}); err == nil {
				t.Error("a call that nobody read succeeded")
			}
		})
	}
	wg.Wait()
}

// Requests wait unread where those under way are too large together.
func TestBytesInFlightAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started atomic.Int32
		release := make(chan struct{})
		here, there := clustertest.Pair(4)
		done := make(chan error, 1)
		go func() {
			done <- Serve(context.Background(), there, service{heartbeat: func(context.Context, *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
				started.Add(1)
				<-release
				return &clusterpb.HeartbeatResponse{}, nil
			}})
		}()
		c := NewNameNodeClient(here)
		big := string(make([]byte, MaxMessage-100))
		const fit = maxInFlightBytes / MaxMessage
		var calls sync.WaitGroup
		for range fit + 1 {
			calls.Go(func() {
				if _, err := c.Heartbeat(context.Background(), &clusterpb.HeartbeatRequest{Uuid: &big}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		if n := started.Load(); n != fit {
			t.Errorf("%d calls run, of which %d fit", n, fit)
		}
		close(release)
		calls.Wait()
		c.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTooLongARequestSaysSo(t *testing.T) {
	here, _ := clustertest.Pair(4)
	c := NewNameNodeClient(here)
	defer c.Close()
	big := string(make([]byte, MaxMessage))
	if _, err := c.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{Uuid: &big}); err == nil || len(c.waiting) != 0 {
		t.Errorf("%v, %d calls are waiting", err, len(c.waiting))
	}
}

// FuzzServe feeds a server whole messages, cut out of the bytes.
func FuzzServe(f *testing.F) {
	body, err := proto.Marshal(&clusterpb.BlockReportRequest{Uuid: proto.String("d"), Replicas: []*clusterpb.Replica{{Block: &clusterpb.Block{Id: proto.Uint64(1)}}}})
	if err != nil {
		f.Fatal(err)
	}
	for m := methodRegister; m <= methodUpdateRecovery; m++ {
		f.Add(append(header{kindRequest, m, 7}.append(nil), body...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		here, there := clustertest.Pair(4)
		done := make(chan error, 1)
		go func() { done <- Serve(context.Background(), there, &nameNode{}) }()
		if err := here.Send(t.Context(), b); err != nil {
			t.Fatal(err)
		}
		if _, _, err := parseHeader(b); err == nil && b[1] == byte(kindRequest) {
			msg, err := here.Receive(t.Context(), nil)
			if err != nil {
				t.Fatalf("no answer: %v", err)
			}
			h, _, err := parseHeader(msg)
			if err != nil || h.kind == kindRequest || !bytes.Equal(msg[2:headerSize], b[2:headerSize]) {
				t.Errorf("the answer to %x is %x", b, msg)
			}
			here.Close()
		}
		<-done
		here.Close()
	})
}
