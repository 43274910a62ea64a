package names

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// seen is a call as a NameNode gets it.
type seen struct {
	at     string // address
	client rpc.ClientID
	id     int32
	retry  int32
	when   time.Time
}

// nameNode answers calls as its test says.
type nameNode struct {
	address string
	rpc     *rpc.Server
	down    bool // nobody listens
	silent  bool // connections are taken, and nothing is ever answered
	gone    bool // no dial is ever answered

	// answer is what becomes of a call; lose ends the connection once it has run.
	answer func() (err error, lose bool)
}

// nameNodes are NameNodes that are reached by pipes in memory.
type nameNodes struct {
	timeouts int // of the clients

	t *testing.T

	mu    sync.Mutex
	all   map[string]*nameNode
	calls []seen
	dials []time.Time
	conns map[*nameNode][]net.Conn
}

// standby refuses as a NameNode that is not active.
func standby() (error, bool) {
	return exception.New(exception.Standby, "Operation category WRITE is not supported in state standby"), false
}

// serves carries the call out.
func serves() (error, bool) { return nil, false }

func start(t *testing.T, nodes ...*nameNode) *nameNodes {
	c := &nameNodes{t: t, all: map[string]*nameNode{}, conns: map[*nameNode][]net.Conn{}}
	for _, n := range nodes {
		c.all[n.address] = n
		n.rpc = rpc.NewServer(rpc.Config{Logger: slog.New(slog.DiscardHandler)})
		take := func(ctx context.Context) error {
			call := rpc.FromContext(ctx)
			c.mu.Lock()
			c.calls = append(c.calls, seen{n.address, call.ClientID, call.CallID, call.RetryCount, time.Now()})
			answer := n.answer
			c.mu.Unlock()
			err, lose := answer()
			if lose {
				c.mu.Lock()
				for _, nc := range c.conns[n] {
					nc.Close()
				}
				c.mu.Unlock()
			}
			return err
		}
		n.rpc.Register(Protocol, 1, rpc.Methods{
			"mkdirs": rpc.Handle(func(ctx context.Context, _ *hdfspb.MkdirsRequestProto) (*hdfspb.MkdirsResponseProto, error) {
				yes := true
				return &hdfspb.MkdirsResponseProto{Result: &yes}, take(ctx)
			}),
			"delete": rpc.Handle(func(ctx context.Context, _ *hdfspb.DeleteRequestProto) (*hdfspb.DeleteResponseProto, error) {
				yes := true
				return &hdfspb.DeleteResponseProto{Result: &yes}, take(ctx)
			}),
			"createSymlink": rpc.Handle(func(ctx context.Context, _ *hdfspb.MkdirsRequestProto) (*hdfspb.MkdirsResponseProto, error) {
				yes := true
				return &hdfspb.MkdirsResponseProto{Result: &yes}, take(ctx)
			}),
		})
	}
	return c
}

func (c *nameNodes) dial(ctx context.Context, address string) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dials = append(c.dials, time.Now())
	n := c.all[address]
	if n.gone {
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	}
	if n.down {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	c.conns[n] = append(c.conns[n], there)
	if n.silent {
		go io.Copy(io.Discard, there) // until the other end closes
	} else {
		go n.rpc.ServeConn(there)
	}
	return here, nil
}

// client calls the NameNodes at addresses, in this order. The function ends all.
func (c *nameNodes) client(patience time.Duration, addresses ...string) (*NameNodes, func()) {
	calls := rpc.NewClient(rpc.ClientConfig{Dial: c.dial, MaxBackoff: time.Second})
	return New(calls, addresses, "ada", "", rpc.FailoverConfig{Patience: patience, Timeouts: c.timeouts}), func() {
		calls.Close()
		for _, n := range c.all {
			n.rpc.Close()
		}
	}
}

// came are the calls that came, in order.
func (c *nameNodes) came() []seen {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

func (c *nameNodes) set(address string, f func(n *nameNode)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(c.all[address])
}

func mkdir(ctx context.Context, n *NameNodes) error {
	name, mode := "/dir", uint32(0o755)
	return n.Call(ctx, "mkdirs", &hdfspb.MkdirsRequestProto{Src: &name, Masked: &hdfspb.FsPermissionProto{Perm: &mode}, CreateParent: new(bool)}, &hdfspb.MkdirsResponseProto{})
}

func remove(ctx context.Context, n *NameNodes) error {
	name := "/file"
	return n.Call(ctx, "delete", &hdfspb.DeleteRequestProto{Src: &name, Recursive: new(bool)}, &hdfspb.DeleteResponseProto{})
}

// symlink is none of the methods that may be repeated.
func symlink(ctx context.Context, n *NameNodes) error {
	name, mode := "/dir", uint32(0o755)
	return n.Call(ctx, "createSymlink", &hdfspb.MkdirsRequestProto{Src: &name, Masked: &hdfspb.FsPermissionProto{Perm: &mode}, CreateParent: new(bool)}, &hdfspb.MkdirsResponseProto{})
}

// A NameNode that stands by sends calls to the next one, which is asked first from then
// on.
func TestCallsFindTheActiveNameNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", answer: standby}, &nameNode{address: "b:1", answer: standby}, &nameNode{address: "c:1", answer: serves})
		n, end := c.client(0, "a:1", "b:1", "c:1")
		defer end()
		began := time.Now()
		for range 3 {
			if err := mkdir(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		calls := c.came()
		var asked []string
		for _, s := range calls {
			asked = append(asked, s.at)
		}
		if got := strings.Join(asked, " "); got != "a:1 b:1 c:1 c:1 c:1" {
			t.Fatalf("asked %s", got)
		}
		if n.Active() != "c:1" {
			t.Errorf("the active one is said to be %s", n.Active())
		}
		if waited := time.Since(began); waited != 0 {
			t.Errorf("a NameNode that stands by cost a pause of %v", waited)
		}
		for i := 1; i < 3; i++ {
			if calls[i].id != calls[0].id || calls[i].client != calls[0].client || calls[i].retry != int32(i) {
				t.Errorf("attempt %d has another number: %+v, the first %+v", i, calls[i], calls[0])
			}
		}
		if calls[3].id == calls[2].id {
			t.Error("another call has the same number")
		}
	})
}

// While none is active the client asks again, a second apart on average at most.
func TestCallsWaitForAnActiveNameNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", answer: standby}, &nameNode{address: "b:1", answer: standby})
		n, end := c.client(time.Minute, "a:1", "b:1")
		defer end()
		began := time.Now()
		const takesOver = 20 * time.Second
		time.AfterFunc(takesOver, func() { c.set("b:1", func(n *nameNode) { n.answer = serves }) })
		if err := mkdir(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if late := time.Since(began) - takesOver; late < 0 || late > maxPause*3/2 {
			t.Errorf("it is %v late", late)
		}
		if rounds := len(c.came()) / 2; rounds < 15 || rounds > 45 {
			t.Errorf("%d rounds in %v", rounds, takesOver)
		}
	})
}

// The patience of a client ends, and the error tells what it has asked for and where.
func TestCallsGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", down: true}, &nameNode{address: "b:1", down: true})
		n, end := c.client(30*time.Second, "a:1", "b:1")
		defer end()
		began := time.Now()
		err := mkdir(t.Context(), n)
		if err == nil || !strings.Contains(err.Error(), "mkdirs") || !strings.Contains(err.Error(), ":1") || !strings.Contains(err.Error(), "connection refused") || !errors.Is(err, ErrUnanswered) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took < 30*time.Second || took > 35*time.Second {
			t.Errorf("it took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began = time.Now()
		if err := mkdir(ctx, n); err == nil {
			t.Error("a call of nobody succeeds")
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("it took %v, its context allowed 3 s", took)
		}
		c.set("b:1", func(n *nameNode) { n.down, n.answer = false, serves })
		if err := mkdir(t.Context(), n); err != nil {
			t.Error(err)
		}
	})
}

// By default a call of several NameNodes is tried for longer than HDFS's client pauses, which
// is 165 s in all, and one of a sole NameNode for 45 s. Dials and calls that time out come on
// top of it, 9 of a sole NameNode, unless the patience is set. If more are asked for, dials are.
func TestPatienceByDefault(t *testing.T) {
	hang := func() (error, bool) { time.Sleep(time.Hour); return nil, false }
	const call, dial = 2 * time.Minute, 20 * time.Second
	for name, test := range map[string]struct {
		node        nameNode
		addresses   []string
		patience    time.Duration
		timeouts    int
		least, most time.Duration
	}{
		"several that refuse":      {nameNode{down: true}, []string{"a:1", "b:1"}, 0, 0, 180 * time.Second, 185 * time.Second},
		"several that stand by":    {nameNode{answer: standby}, []string{"a:1", "b:1"}, 0, 0, 180 * time.Second, 185 * time.Second},
		"several that hang":        {nameNode{answer: hang}, []string{"a:1", "b:1"}, 0, 0, 15*call + 180*time.Second, 15*call + 180*time.Second + call*9/8 + 15*call/8},
		"one that refuses":         {nameNode{down: true}, []string{"a:1"}, 0, 0, 45 * time.Second, 50 * time.Second},
		"one that is gone":         {nameNode{gone: true}, []string{"a:1"}, 0, 0, 9*dial + 45*time.Second, 9*dial + 45*time.Second + dial + 20*time.Second},
		"one that hangs":           {nameNode{answer: hang}, []string{"a:1"}, 0, 0, 9*call + 45*time.Second, 9*call + 45*time.Second + call*9/8 + 9*call/8},
		"one that is gone, for 5s": {nameNode{gone: true}, []string{"a:1"}, 5 * time.Second, 0, dial, dial + time.Second},
		"one that hangs, for 5s":   {nameNode{answer: hang}, []string{"a:1"}, 5 * time.Second, 0, call, call * 9 / 8},
		"one that is gone, 45":     {nameNode{gone: true}, []string{"a:1"}, 0, 45, 45*dial + 45*time.Second, 45*dial + 45*time.Second + dial + 46*time.Second},
		"one that hangs, 45":       {nameNode{answer: hang}, []string{"a:1"}, 0, 45, 9*call + 45*time.Second, 9*call + 45*time.Second + call*9/8 + 9*call/8},
		"one that hangs, none":     {nameNode{answer: hang}, []string{"a:1"}, 0, -1, call, call * 9 / 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var nodes []*nameNode
				for _, address := range test.addresses {
					n := test.node
					n.address = address
					nodes = append(nodes, &n)
				}
				c := start(t, nodes...)
				c.timeouts = test.timeouts
				n, end := c.client(test.patience, test.addresses...)
				defer end()
				began := time.Now()
				if err := mkdir(t.Context(), n); err == nil {
					t.Error("a call of nobody succeeds")
				}
				if took := time.Since(began); took < test.least || took > test.most {
					t.Errorf("it took %v, want %v to %v", took, test.least, test.most)
				}
			})
		})
	}
}

// A sole NameNode that left a call without an answer is asked again.
func TestASecondTryAfterATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", answer: func() (error, bool) { time.Sleep(time.Hour); return nil, false }})
		n, end := c.client(0, "a:1")
		defer end()
		time.AfterFunc(time.Minute, func() { c.set("a:1", func(n *nameNode) { n.answer = serves }) })
		if err := mkdir(t.Context(), n); err != nil || len(c.came()) != 2 {
			t.Errorf("%v, after %d calls", err, len(c.came()))
		}
	})
}

// A NameNode that takes a call and never answers costs the time-out of a call, however
// short the patience is. Then the other one is asked, unless the call may have been
// carried out and must not be twice.
func TestSilentNameNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", answer: serves}, &nameNode{address: "b:1", answer: serves})
		n, end := c.client(10*time.Second, "a:1", "b:1")
		defer end()
		if err := mkdir(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		hung := make(chan struct{})
		hang := func() (error, bool) { <-hung; return nil, false }
		for _, may := range []struct {
			call     func(context.Context, *NameNodes) error
			repeated bool
		}{{mkdir, true}, {remove, true}, {symlink, false}} {
			for address := range c.all {
				c.set(address, func(n *nameNode) { n.answer = serves })
			}
			c.set(n.Active(), func(n *nameNode) { n.answer = hang })
			before := len(c.came())
			began := time.Now()
			err := may.call(t.Context(), n)
			if took := time.Since(began); took < 100*time.Second || took > 140*time.Second {
				t.Errorf("it took %v, a call has two minutes", took)
			}
			calls := c.came()[before:]
			if may.repeated {
				if err != nil || len(calls) != 2 || calls[0].id != calls[1].id || calls[0].at == calls[1].at || calls[1].retry != 1 {
					t.Errorf("%v, %+v", err, calls)
				}
			} else if err == nil || len(calls) != 1 {
				t.Errorf("%v, %+v", err, calls)
			}
		}
		close(hung)
	})
}

// A call that has waited for a while is told of, with the NameNode that it waits for; others are not.
func TestSlowCallsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", answer: func() (error, bool) { time.Sleep(SlowAfter - time.Second); return nil, false }})
		n, end := c.client(time.Second, "a:1")
		defer end()
		told := make(chan string, 2)
		n.Slow = func(address string) { told <- address }
		if err := mkdir(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * SlowAfter)
		synctest.Wait()
		if len(told) != 0 {
			t.Errorf("%s, though the call was answered in time", <-told)
		}
		c.set("a:1", func(n *nameNode) {
			n.answer = func() (error, bool) { time.Sleep(SlowAfter + time.Second); return nil, false }
		})
		if err := mkdir(t.Context(), n); err != nil {
			t.Fatal(err)
		}
		if address := <-told; address != "a:1" || len(told) != 0 {
			t.Errorf("told of %s and of %d more", address, len(told))
		}
	})
}

// A NameNode that takes connections and says nothing at all is passed, too.
func TestDeafNameNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", silent: true}, &nameNode{address: "b:1", answer: serves})
		n, end := c.client(10*time.Second, "a:1", "b:1")
		defer end()
		for _, call := range []func(context.Context, *NameNodes) error{mkdir, remove} {
			if err := call(t.Context(), n); err != nil {
				t.Error(err)
			}
		}
	})
}

// A call whose connection ends after it was carried out is made again elsewhere with its
// number, by which the NameNodes' retry cache knows it; one that must not be repeated is
// not, and the error says that nobody knows.
func TestLostAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1"}, &nameNode{address: "b:1"})
		n, end := c.client(10*time.Second, "a:1", "b:1")
		defer end()
		for _, call := range []func(context.Context, *NameNodes) error{mkdir, remove, symlink} {
			lost := false
			once := func() (error, bool) {
				was := lost
				lost = true
				return nil, !was
			}
			c.set("a:1", func(n *nameNode) { n.answer = once })
			c.set("b:1", func(n *nameNode) { n.answer = once })
			before := len(c.came())
			err := call(t.Context(), n)
			calls := c.came()[before:]
			if len(calls) == 1 {
				if !errors.Is(err, rpc.ErrOutcomeUnknown) {
					t.Errorf("%v", err)
				}
				continue
			}
			if err != nil || len(calls) != 2 || calls[0].at == calls[1].at || calls[0].id != calls[1].id || calls[0].client != calls[1].client || calls[1].retry != calls[0].retry+1 {
				t.Errorf("%v, %+v", err, calls)
			}
		}
		if calls := c.came(); calls[len(calls)-1].id == calls[len(calls)-2].id {
			t.Error("a call that must not be repeated was")
		}
	})
}

// Refusals reach the caller at once, but for those that pass by themselves.
func TestRefusals(t *testing.T) {
	for _, refusal := range []struct {
		err    *exception.Error
		passes bool
	}{
		{exception.New(exception.AccessControl, "Permission denied"), false},
		{exception.New(exception.FileNotFound, "File does not exist"), false},
		{exception.New(exception.SafeMode, "Name node is in safe mode.\nIt was turned on manually. Use \"hdfs dfsadmin -safemode leave\" to turn safe mode off."), false},
		{exception.New(exception.SafeMode, "Name node is in safe mode.\nThe reported blocks 0 needs additional 1 blocks. Safe mode will be turned off automatically once the thresholds have been reached."), true},
		{exception.New(exception.Retriable, "the queue is full"), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := start(t, &nameNode{address: "a:1", answer: func() (error, bool) { return refusal.err, false }})
			n, end := c.client(time.Minute, "a:1")
			defer end()
			time.AfterFunc(5*time.Second, func() { c.set("a:1", func(n *nameNode) { n.answer = serves }) })
			err := mkdir(t.Context(), n)
			var got *exception.Error
			switch {
			case refusal.passes && err != nil:
				t.Errorf("%v", err)
			case !refusal.passes && (!errors.As(err, &got) || got.Class != refusal.err.Class || errors.Is(err, ErrUnanswered) || len(c.came()) != 1):
				t.Errorf("%v after %d calls", err, len(c.came()))
			}
		})
	}
}

// A client that closes ends its calls.
func TestCloseEndsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, &nameNode{address: "a:1", answer: standby})
		n, end := c.client(time.Hour, "a:1")
		done := make(chan error)
		go func() { done <- mkdir(t.Context(), n) }()
		time.Sleep(10 * time.Second)
		end()
		if err := <-done; err == nil {
			t.Error("a call of a closed client succeeds")
		}
	})
}
