package rdmanet

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// Close returns when the peer's process has everything, although nobody reads
// there; and what it has can be read when this process is gone.
func TestCloseWaitsForThePeersProcess(t *testing.T) {
	for _, closer := range []string{"dialer", "listener"} {
		t.Run(closer, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := memoryRig(t, Config{})
				defer r.close()
				a, b := r.mustPair(t)
				if closer == "listener" {
					a, b = b, a
				}
				exchange(t, a, b)
				const writes = 3 * memoryWindow // more than there are credits
				for range writes {
					must[int](t)(a.Write([]byte("verbena")))
				}
				start := time.Now()
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				if d := time.Since(start); d > 3*watchAfter {
					t.Errorf("Close took %v", d)
				}
				a.s.ep.(*memoryEndpoint).kill()
				synctest.Wait()
				if got := must[[]byte](t)(io.ReadAll(b)); len(got) != writes*7 {
					t.Errorf("%d bytes arrived of %d", len(got), writes*7)
				}
				b.Close()
			})
		})
	}
}

// A peer of an older release does not answer a CLOSE until its application closes.
// Close does not wait for ever, and says what it does not know.
func TestCloseWithoutAnAnswer(t *testing.T) {
	for _, test := range []struct {
		name   string
		writes bool
		linger int
		wait   time.Duration
		answer kind
		takes  time.Duration
		want   error
	}{
		{"nothing was written", false, -1, 0, 0, 0, nil},
		{"no answer", true, -1, 0, 0, closePatience, verbena.ErrNotDelivered},
		{"no answer, and more patience", true, 3, 0, 0, 3 * time.Second, verbena.ErrNotDelivered},
		{"abortive", true, 0, 0, 0, 0, nil},
		{"STOP", true, -1, 0, kindStop, 0, nil},
		{"CLOSE", true, -1, 0, kindClose, 0, nil},
		{"no answer, and a dialer that waits 2 s", true, -1, 2 * time.Second, 0, 2 * time.Second, verbena.ErrNotDelivered},
		{"no answer, and a dialer that does not wait", true, -1, -1, 0, 0, nil},
		{"no answer, and patience in spite of the dialer", true, 3, -1, 0, 3 * time.Second, verbena.ErrNotDelivered},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newMemoryNetwork(t)
				d := &Dialer{connect: n.dial, CloseWait: test.wait}
				defer d.Close()
				peer := make(chan *memoryEndpoint, 1)
				go func() { peer <- <-n.endpoints }()
				c := must[net.Conn](t)(d.Dial("tcp", "peer:1")).(*Conn)
				raw := <-peer
				if test.writes {
					must[int](t)(c.Write([]byte("verbena")))
				}
				if test.answer != 0 {
					raw.Send(t.Context(), tagOf(test.answer, 1), nil)
				}
				c.SetLinger(test.linger)
				start := time.Now()
				err := c.Close()
				if d := time.Since(start); d != test.takes || !errors.Is(err, test.want) || (err != nil) != (test.want != nil) {
					t.Errorf("Close took %s and returned %v", d, err)
				}
				raw.kill()
				drain(raw)
			})
		})
	}
}

// Close tells of an endpoint that broke under data which nobody has confirmed.
func TestCloseOfABrokenEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := memoryRig(t, Config{})
		defer r.close()
		a, b := r.mustPair(t)
		must[int](t)(a.Write([]byte("verbena")))
		a.s.ep.(*memoryEndpoint).kill()
		synctest.Wait()
		wantError(t, a.Close(), verbena.ErrNotDelivered)
		b.Close()
	})
}

// writerProcess has the transport and the address to which this binary, started
// again, writes before it closes and exits.
const writerProcess = "RDMANET_TEST_WRITER"

const writerWrites, writerSize = 2, 400 << 10

func writeAndExit(transport, address string) {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err == nil {
		var c net.Conn
		if c, err = (&Dialer{Runtime: rt, Transport: transport}).Dial("tcp", address); err == nil {
			for range writerWrites {
				if err == nil {
					_, err = c.Write(make([]byte, writerSize))
				}
			}
			if err == nil {
				err = c.Close()
			}
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// A process writes, closes its connection and is gone. The other one, which did
// not read until then, gets everything.
func TestWriterExits(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		l, err := Listen(t.Context(), newRuntime(t), "127.0.0.1:0", Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		for range 3 {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), writerProcess+"="+transport+" "+l.Addr().String())
			exited := make(chan error, 1)
			go func() {
				out, err := cmd.Output()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
				}
				exited <- err
			}()
			c := must[net.Conn](t)(l.Accept())
			if err := <-exited; err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(c); len(got) != writerWrites*writerSize {
				t.Errorf("%d bytes arrived of %d: %v", len(got), writerWrites*writerSize, err)
			}
			c.Close()
		}
	})
}
