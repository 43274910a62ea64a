package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/providers"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// theirs is the secret of a test's cluster.
var theirs = secretOf("a text of 32 characters or more, and 26 more")

func secretOf(text string) *Secret {
	s, err := NewSecret([]byte(text))
	if err != nil {
		panic(err)
	}
	return s
}

// patient bounds what must happen; nothing waits for it when all is well.
const patient = 30 * time.Second

// nameNode records what it is asked, and answers heartbeats as the test says.
type nameNode struct {
	mu        sync.Mutex
	asked     []proto.Message
	heartbeat func(context.Context, *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error)
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

func (n *nameNode) Heartbeat(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	resp, err := record(n, req, &clusterpb.HeartbeatResponse{})
	if n.heartbeat != nil {
		return n.heartbeat(ctx, req)
	}
	return resp, err
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

func (dataNode) InitRecovery(context.Context, *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	return nil, fmt.Errorf("block 7: %w", &Error{CodeStale, "promised to a newer recovery"})
}

func (dataNode) UpdateRecovery(context.Context, *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	return &clusterpb.UpdateRecoveryResponse{}, nil
}

func (dataNode) ExtendRecovery(context.Context, *clusterpb.ExtendRecoveryRequest) (*clusterpb.ExtendRecoveryResponse, error) {
	return &clusterpb.ExtendRecoveryResponse{}, nil
}

// system is a server of calls, and a pool that makes them, over one transport.
type system struct {
	t         *testing.T
	rt        *verbena.Runtime
	pool      *verbena.CallPool
	transport string
	address   string

	listener *verbena.Listener
	accepted sync.WaitGroup
	mu       sync.Mutex
	open     []*verbena.Endpoint // at the server
	mux      *verbena.Mux
}

func available(t *testing.T, transport string) bool {
	for _, p := range providers.Default() {
		if p.Name() == transport {
			_, err := p.Devices(t.Context())
			return err == nil
		}
	}
	return transport == verbena.TransportTCP
}

// onTransports runs a test over TCP, and over shared memory where there is some.
func onTransports(t *testing.T, f func(t *testing.T, s *system)) {
	for _, transport := range []string{verbena.TransportTCP, "shm"} {
		t.Run(transport, func(t *testing.T) {
			if !available(t, transport) {
				t.Skip("not on this host")
			}
			rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			s := &system{t: t, rt: rt, transport: transport, mux: verbena.NewMux(verbena.MuxConfig{}), address: "127.0.0.1:0"}
			s.pool, err = rt.NewCallPool(verbena.CallPoolConfig{
				PoolConfig: verbena.PoolConfig{Service: Service, Endpoints: 1, Backoff: time.Millisecond, MaxBackoff: 20 * time.Millisecond, Dial: verbena.DialConfig{Transport: transport}},
			})
			if err != nil {
				t.Fatal(err)
			}
			s.listen()
			f(t, s)
			s.lose()
			s.stop()
			s.mux.Close()
			if err := s.pool.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func (s *system) listen() {
	s.t.Helper()
	l, err := s.rt.Listen(s.t.Context(), s.address, verbena.ListenConfig{Services: []string{Service}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.listener, s.address = l, l.Addr().String()
	s.accepted.Go(func() {
		for {
			e, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			s.mu.Lock()
			s.open = append(s.open, e)
			s.mu.Unlock()
			s.accepted.Go(func() { _ = s.mux.Serve(e) })
		}
	})
}

// lose ends the endpoints that are open.
func (s *system) lose() {
	s.mu.Lock()
	open := s.open
	s.open = nil
	s.mu.Unlock()
	for _, e := range open {
		e.Close()
	}
}

func (s *system) stop() {
	s.listener.Close()
	s.lose()
	s.accepted.Wait()
}

func (s *system) nameNode() *NameNodeClient { return NewNameNodeClient(s.pool, s.address, theirs) }

// Each method of the interfaces reaches its own, with its own message.
func TestEveryMethod(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		nn := &nameNode{}
		ServeNameNode(s.mux, nn, theirs)
		c := s.nameNode()
		ctx, id := t.Context(), proto.String("d1")
		report := &clusterpb.BlockReportRequest{Uuid: id, Replicas: make([]*clusterpb.Replica, 20_000)} // some 140 KB
		for i := range report.Replicas {
			report.Replicas[i] = &clusterpb.Replica{Block: &clusterpb.Block{Id: proto.Uint64(uint64(i))}}
		}
		register := &clusterpb.RegisterRequest{Version: proto.String("v")}
		heartbeat := &clusterpb.HeartbeatRequest{Uuid: id, Storages: []*clusterpb.Storage{{Used: proto.Uint64(7)}}}
		changed := &clusterpb.BlocksChangedRequest{Uuid: id, Changes: []*clusterpb.ReplicaChange{{Kind: clusterpb.ReplicaChange_CORRUPT.Enum()}}}
		commit := &clusterpb.CommitRecoveryRequest{Uuid: id, NewGeneration: proto.Uint64(1 << 40)}
		if resp, err := c.Register(ctx, register); err != nil || resp.GetClusterId() != "c1" {
			t.Errorf("Register: %v %v", resp, err)
		}
		if _, err := c.Heartbeat(ctx, heartbeat); err != nil {
			t.Error(err)
		}
		if resp, err := c.BlockReport(ctx, report); err != nil || len(resp.Commands) != 1 || resp.Commands[0].GetKind() != clusterpb.Command_DELETE {
			t.Errorf("BlockReport: %v %v", resp, err)
		}
		if _, err := c.BlocksChanged(ctx, changed); err != nil {
			t.Error(err)
		}
		if _, err := c.CommitRecovery(ctx, commit); err != nil {
			t.Error(err)
		}
		nn.mu.Lock()
		defer nn.mu.Unlock()
		requests := []proto.Message{register, heartbeat, report, changed, commit}
		if len(nn.asked) != len(requests) {
			t.Fatalf("%d requests came, want %d", len(nn.asked), len(requests))
		}
		for i, want := range requests {
			if !proto.Equal(nn.asked[i], want) {
				t.Errorf("request %d came as %T, want %T", i, nn.asked[i], want)
			}
		}
		// What a NameNode does not serve is refused, and nothing else happens.
		d := NewDataNodeClient(s.pool, s.address, theirs)
		if _, err := d.UpdateRecovery(ctx, &clusterpb.UpdateRecoveryRequest{}); !errors.Is(err, ErrUnproven) || !strings.Contains(err.Error(), "this is a NameNode") {
			t.Errorf("a NameNode asked for a recovery: %v", err)
		}
		ServeDataNode(s.mux, dataNode{}, theirs)
		if resp, err := d.InitRecovery(ctx, &clusterpb.InitRecoveryRequest{}); !errors.Is(err, ErrStale) || resp != nil || !strings.Contains(err.Error(), "block 7") {
			t.Errorf("InitRecovery: %v %v", resp, err)
		}
		if _, err := d.UpdateRecovery(ctx, &clusterpb.UpdateRecoveryRequest{}); err != nil {
			t.Error(err)
		}
		for _, p := range s.pool.Peers() {
			if p.Open != 1 {
				t.Errorf("%d endpoints to the server", p.Open)
			}
		}
	})
}

func TestErrorsKeepTheirCode(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		answers := make(chan error, 1)
		ServeNameNode(s.mux, &nameNode{heartbeat: func(context.Context, *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
			return nil, <-answers
		}}, theirs)
		for _, want := range []*Error{ErrNotRegistered, ErrForeign, ErrStale, {CodeFailed, "the disk is full"}, {99, "of a later release"}} {
			answers <- fmt.Errorf("namenode: %w", want)
			_, err := s.nameNode().Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{})
			if !errors.Is(err, want) || !strings.Contains(err.Error(), want.Message) {
				t.Errorf("%v became %v", want, err)
			}
			if want != ErrForeign && errors.Is(err, ErrForeign) {
				t.Errorf("%v is another one, too", err)
			}
		}
		answers <- errors.New(strings.Repeat("é", maxErrorText))
		_, err := s.nameNode().Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{})
		var e *Error
		if !errors.As(err, &e) || len(e.Message) != maxErrorText || strings.Trim(e.Message, "é") != "" {
			t.Errorf("a long text came as %d bytes", len(e.Message))
		}
		answers <- errors.New("x" + strings.Repeat("é", maxErrorText))
		_, err = s.nameNode().Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{})
		if !errors.As(err, &e) || len(e.Message) != maxErrorText-1 || strings.Trim(e.Message, "xé") != "" {
			t.Errorf("a text cut within a letter came as %d bytes", len(e.Message))
		}
	})
}

// The deadline and the end of a caller's context travel to the handler.
func TestContextsTravel(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		began, ended := make(chan time.Time, 1), make(chan struct{})
		ServeNameNode(s.mux, &nameNode{heartbeat: func(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
			deadline, _ := ctx.Deadline()
			began <- deadline
			if req.GetUuid() == "waits" {
				<-ctx.Done()
				close(ended)
			}
			return nil, ctx.Err()
		}}, theirs)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		result := make(chan error, 1)
		go func() {
			_, err := s.nameNode().Heartbeat(ctx, &clusterpb.HeartbeatRequest{Uuid: proto.String("waits")})
			result <- err
		}()
		if left := time.Until(<-began); left < 30*time.Minute || left > time.Hour+time.Minute {
			t.Errorf("the handler has %v, its caller an hour", left)
		}
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		select {
		case <-ended:
		case <-time.After(patient):
			t.Fatal("the handler does not hear of it")
		}
		if _, err := s.nameNode().Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{}); err != nil {
			t.Errorf("the endpoint is not usable any more: %v", err)
		}
		if deadline := <-began; !deadline.IsZero() {
			t.Errorf("a deadline out of nothing: %v", deadline)
		}
	})
}

// A call whose endpoint ends before the answer is made again, also when the peer is
// away for a while.
func TestCallsOutliveTheirEndpoint(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		began := make(chan struct{})
		var first sync.Once
		ServeNameNode(s.mux, &nameNode{heartbeat: func(ctx context.Context, _ *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
			first.Do(func() {
				close(began)
				<-ctx.Done()
			})
			return &clusterpb.HeartbeatResponse{Commands: []*clusterpb.Command{{}}}, nil
		}}, theirs)
		result := make(chan error, 1)
		go func() {
			resp, err := s.nameNode().Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{})
			if err == nil && len(resp.GetCommands()) != 1 {
				err = fmt.Errorf("the answer is %v", resp)
			}
			result <- err
		}()
		<-began
		s.lose()
		if err := <-result; err != nil {
			t.Errorf("the endpoint was lost: %v", err)
		}
		s.stop()
		ctx, cancel := context.WithTimeout(t.Context(), patient)
		defer cancel()
		if _, err := s.nameNode().Heartbeat(ctx, &clusterpb.HeartbeatRequest{}); !errors.Is(err, verbena.ErrNotSent) {
			t.Errorf("while the peer is away: %v", err)
		}
		s.listen()
		for {
			_, err := s.nameNode().Heartbeat(ctx, &clusterpb.HeartbeatRequest{})
			if err == nil {
				break
			}
			if !errors.Is(err, verbena.ErrNotSent) || ctx.Err() != nil {
				t.Fatalf("after the peer's return: %v", err)
			}
		}
	})
}

// What does not decode ends the call, not the endpoint.
func TestGarbage(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		ServeNameNode(s.mux, &nameNode{}, theirs)
		s.mux.Long(uint32(methodHeartbeat), func(q verbena.Request) { _ = q.Reply([]byte{0xff}) })
		if _, err := s.nameNode().Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{}); err == nil || !strings.Contains(err.Error(), "the answer does not come from") {
			t.Errorf("an answer that is none: %v", err)
		}
		for m, want := range map[method]uint32{methodHello: 256, methodProve: 256, methodRegister: 261} {
			_, err := s.pool.Call(t.Context(), s.address, verbena.Intent{}, uint32(m), []byte{0xff})
			var e *verbena.CallError
			if !errors.As(err, &e) || e.Code != want {
				t.Errorf("%v: a request that is none: %v", m, err)
			}
		}
		if _, err := s.nameNode().Register(t.Context(), &clusterpb.RegisterRequest{}); err != nil {
			t.Error(err)
		}
		for _, p := range s.pool.Peers() {
			if p.Lost != 0 || p.Open != 1 {
				t.Errorf("endpoints: %+v", p)
			}
		}
	})
}

// The numbers are part of the protocol.
func TestGoldenNumbers(t *testing.T) {
	for want, m := range map[string]method{
		"Register 1": methodRegister, "Heartbeat 2": methodHeartbeat, "BlockReport 3": methodBlockReport, "BlocksChanged 4": methodBlocksChanged,
		"CommitRecovery 5": methodCommitRecovery, "InitRecovery 6": methodInitRecovery, "UpdateRecovery 7": methodUpdateRecovery,
		"Hello 8": methodHello, "Prove 9": methodProve, "ExtendRecovery 10": methodExtendRecovery,
	} {
		if got := fmt.Sprintf("%v %d", m, uint32(m)); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for want, err := range map[uint32]error{256: errors.New("x"), 257: ErrNotRegistered, 258: fmt.Errorf("so: %w", ErrForeign), 260: ErrStale, 261: ErrUnproven} {
		if got, text := failure(err); got != want || text != err.Error() {
			t.Errorf("%v became %d %q", err, got, text)
		}
	}
}
