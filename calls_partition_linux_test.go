package verbena

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/testnet"
)

// cutVariable makes a process the client of TestCallsAreCutOff: transport and address.
const cutVariable = "VERBENA_TEST_CUT"

// The network of two hosts is cut in the middle of thousands of calls, for longer than a host
// may be silent. Each caller gets its own answer or one clear error by its deadline; both
// ends of all endpoints end; nothing is left in either process; and when the network is back,
// calls go through again.
func TestCallsAreCutOff(t *testing.T) {
	if transport, addr, client := strings.Cut(os.Getenv(cutVariable), " "); client {
		callsThroughACut(t, worldOf(t, transport), addr)
		return
	}
	for _, name := range []string{TransportTCP, "iwarp"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !hasWorld(name) {
				t.Skip("the tests do not run over " + name + " here")
			}
			w := worldOf(t, name)
			cable := testnet.New(t)
			silence := silenceVariable + "=1500ms"
			server := peerCommand(w, silence, listenVariable+"="+cable.B.Address+":0")
			out, err := server.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cable.B.Do(func() { err = server.Start() })
			if err != nil {
				t.Fatal(err)
			}
			addr := awaitPeer(t, server, out)

			client := exec.Command(os.Args[0], "-test.run", "^TestCallsAreCutOff$", "-test.timeout", "2m")
			client.Env = append(os.Environ(), silence, cutVariable+"="+name+" "+addr)
			var told lockedBuffer
			client.Stderr = &told
			said, err := client.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			hear, err := client.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			cable.A.Do(func() { err = client.Start() })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Process.Kill() }) // it has ended, if all is well
			lines := bufio.NewScanner(said)
			for lines.Scan() {
				fmt.Fprintln(&told, lines.Text())
				switch lines.Text() {
				case "busy":
					cable.Cut()
					fmt.Fprintln(hear, "cut")
				case "over":
					cable.Heal()
					fmt.Fprintln(hear, "healed")
				}
			}
			if err := client.Wait(); err != nil {
				t.Errorf("the client: %v\n%s", err, told.String())
			}
		})
	}
}

func hasWorld(name string) bool {
	for _, w := range worlds {
		if w.name == name {
			return true
		}
	}
	return false
}

// callsThroughACut is the client: 2,048 callers on four endpoints, of which a quarter get no
// answer before the cut.
func callsThroughACut(t *testing.T, w world, addr string) {
	const endpoints, callers = 4, 512
	hear := bufio.NewScanner(os.Stdin)
	providers, _ := w.providers(t)
	before, err := openDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	r := newRuntime(t, Config{Linger: 100 * time.Millisecond, PeerTimeout: silence()}, providers)
	ctx := testContext(t)
	dial := func() *Caller {
		e, err := r.Dial(ctx, addr, "calls/1", DialConfig{Transport: w.transport})
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewCaller(e, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := dial()
	goroutines, descriptors := resourcesOf(ctx, t, first)
	_ = first.Close()

	var cut atomic.Bool
	var answered, under atomic.Int64
	var all sync.WaitGroup
	var list []*Caller
	for i := range endpoints {
		c := dial()
		list = append(list, c)
		for j := range callers {
			all.Go(func() {
				// A fourth has no deadline of its own; those of the others come before and after
				// the peer is lost.
				timeout := time.Duration(100+j*10) * time.Millisecond
				if j%4 == 1 {
					timeout = 0
				}
				payload := bytes.Clone(pattern(64+j*8, j))
				for n := uint64(0); ; n++ {
					mine := ctx
					var cancel context.CancelFunc = func() {}
					if timeout > 0 {
						mine, cancel = context.WithTimeout(ctx, timeout)
					}
					method := uint32(methodEcho)
					if j%4 == 0 {
						method = methodBlock
					}
					binary.BigEndian.PutUint64(payload, uint64(i)<<48|uint64(j)<<32|n)
					under.Add(1)
					m, err := c.Call(mine, method, payload)
					under.Add(-1)
					if limit, ok := mine.Deadline(); ok && time.Since(limit) > 10*time.Second {
						t.Errorf("a caller heard %v after its deadline: %v", time.Since(limit), err)
					}
					cancel()
					if err == nil {
						if !bytes.Equal(m.Bytes(), payload) {
							t.Error("the answer to another call")
						}
						m.Release()
						answered.Add(1)
						continue
					}
					lost := errors.Is(err, ErrPeerDied)
					if wrong := wrongOutcome(err, timeout > 0); wrong != "" {
						t.Errorf("%s: %v", wrong, err)
					}
					if lost && !cut.Load() {
						t.Errorf("an endpoint was lost before the cut: %v", err)
					}
					if lost || method == methodBlock || t.Failed() {
						return
					}
				}
			})
		}
	}
	for answered.Load() < 4000 || under.Load() < 1000 {
		if ctx.Err() != nil || t.Failed() {
			t.Fatalf("%d calls were answered, and %d are under way", answered.Load(), under.Load())
		}
		runtime.Gosched()
	}
	cut.Store(true)
	fmt.Println("busy")
	hear.Scan()
	all.Wait() // each has lost its endpoint
	for _, c := range list {
		if err := c.Endpoint().Err(); !errors.Is(err, ErrPeerDied) {
			t.Errorf("an endpoint ended with %v", err)
		}
		_ = c.Close() // the peer takes nothing any more
		if s, ok := c.Endpoint().carrier.(*shell); ok {
			s.mu.Lock()
			held := s.held
			s.mu.Unlock()
			if held != 0 {
				t.Errorf("%d messages are held", held)
			}
		}
	}
	fmt.Println("over")
	hear.Scan()

	again := dial()
	for {
		g, d := resourcesOf(ctx, t, again)
		if g <= goroutines && d <= descriptors {
			break
		}
		if ctx.Err() != nil || t.Failed() {
			t.Fatalf("the server has %d goroutines and %d descriptors, and had %d and %d", g, d, goroutines, descriptors)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	domain := r.firstDomain(w.transport)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if domain != nil {
		for _, pool := range domain.pools() {
			if pool.Registered != 0 {
				t.Errorf("registered memory is left: %+v", pool)
			}
		}
	}
	if after, err := openDescriptors(); after > before || err != nil {
		t.Errorf("%d descriptors, and %d before: %v", after, before, err)
	}
}

// wrongOutcome tells what is wrong with the error of a call through a cut, or returns nothing.
// limited says that the call had a deadline of its own.
func wrongOutcome(err error, limited bool) string {
	var told *CallError
	unsent, unknown, theirs := errors.Is(err, ErrNotSent), errors.Is(err, ErrOutcomeUnknown), errors.As(err, &told)
	over, lost := errors.Is(err, context.DeadlineExceeded), errors.Is(err, ErrPeerDied)
	switch {
	case theirs && told.Code == CodeLate && limited:
	case theirs || unsent == unknown:
		return "an error that does not say what became of the call"
	case !over && !lost:
		return "an error that does not say why"
	case !limited && !lost:
		return "a caller that has time"
	}
	return ""
}

func resourcesOf(ctx context.Context, t *testing.T, c *Caller) (goroutines, descriptors uint64) {
	m, err := c.Call(ctx, methodResources, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Release()
	return binary.BigEndian.Uint64(m.Bytes()), binary.BigEndian.Uint64(m.Bytes()[8:])
}
