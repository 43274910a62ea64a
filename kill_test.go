package verbena

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test binary is its own peer process when this is set to the name of a
// world.
const peerVariable = "VERBENA_TEST_PEER"

// listenVariable is where the peer process listens, if not at any port.
const listenVariable = "VERBENA_TEST_LISTEN"

// silenceVariable is after how long a silent host is lost; iwarp goes between hosts then.
const silenceVariable = "VERBENA_TEST_SILENCE"

func silence() time.Duration {
	d, _ := time.ParseDuration(os.Getenv(silenceVariable)) // 0, the default, without one
	return d
}

// servePeer is the peer process: it takes what it is sent until it is killed.
func servePeer(name string) {
	for _, w := range worlds {
		if w.name != name {
			continue
		}
		config, inPlace := Config{PeerTimeout: silence()}, false
		_, config.Providers = w.providers(nil)
		if role := os.Getenv(relayVariable); role != "" {
			way, sink, relays := strings.Cut(role, " ")
			config.Tuning, inPlace = relayTuning(w, way), strings.HasPrefix(way, "in-place")
			if relays {
				if err := serveRelay(w, config, way, sink); err != nil {
					panic(err)
				}
				os.Exit(0)
			}
		}
		r, err := New(config)
		if err != nil {
			panic(err)
		}
		ctx := context.Background()
		l, err := r.Listen(ctx, cmp.Or(os.Getenv(listenVariable), w.anyPort()), ListenConfig{InPlace: inPlace})
		// The system may have given the port of one that was killed to a connection meanwhile.
		for began := time.Now(); errors.Is(err, syscall.EADDRINUSE) && time.Since(began) < 20*time.Second; {
			time.Sleep(10 * time.Millisecond)
			l, err = r.Listen(ctx, os.Getenv(listenVariable), ListenConfig{InPlace: inPlace})
		}
		if err != nil {
			panic(err)
		}
		fmt.Println(l.Addr())
		for {
			e, err := l.Accept(ctx)
			if err != nil {
				panic(err)
			}
			go func() {
				switch e.Service() {
				case "deaf/1":
					return // receives nothing
				case "calls/1":
					serveCalls(e)
					return
				}
				for {
					m, err := e.Receive(ctx)
					if err != nil {
						return
					}
					tag := m.Tag
					if inPlace {
						touch(m.Bytes())
					}
					m.Release()
					if e.Service() == "answer/1" && tag == lastTag {
						_ = e.Send(ctx, tag, nil) // the source would notice
					}
				}
			}()
		}
	}
	panic("no such world: " + name)
}

// peerCommand starts this binary again as a peer in a world, with more variables of the
// environment.
func peerCommand(w world, more ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), peerVariable+"="+w.name), more...)
	cmd.Stderr = os.Stderr
	return cmd
}

// startPeer starts a peerCommand, and ends it with the test. addr is where it listens.
func startPeer(t testing.TB, w world, more ...string) (cmd *exec.Cmd, addr string) {
	t.Helper()
	cmd = peerCommand(w, more...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, awaitPeer(t, cmd, out)
}

// awaitPeer returns where a peer listens that has been started, and ends it with the test.
func awaitPeer(t testing.TB, cmd *exec.Cmd, out io.Reader) (addr string) {
	t.Helper()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the peer said %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

// When a peer is killed in the middle every wait ends, with an error that names
// it and what was being done.
func TestPeerIsKilled(t *testing.T) {
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue // a network within one process
		}
		t.Run(w.name, func(t *testing.T) {
			cmd, addr := startPeer(t, w)
			ctx := testContext(t)
			providers, _ := w.providers(t)
			r := newRuntime(t, Config{}, providers)
			errs := make(chan error, 100)
			waits := 0
			wait := func(service, op string, f func(*Endpoint) error) {
				e, err := r.Dial(ctx, addr, service, DialConfig{Transport: w.transport})
				if err != nil {
					t.Fatal(err)
				}
				waits++
				go func() {
					err := f(e)
					for _, part := range []string{op, addr, w.transport, service} {
						if err != nil && !strings.Contains(err.Error(), part) {
							err = fmt.Errorf("%s: %q is not in %w", op, part, errors.New(err.Error()))
						}
					}
					<-e.Done()
					if err := e.Close(); err != nil {
						errs <- fmt.Errorf("close: %w", err)
						return
					}
					errs <- err
				}()
			}
			busy := make(chan struct{}, 10)
			for _, size := range []int{10, 8 << 10, 3 << 20} {
				wait("sink/1", "send", func(e *Endpoint) error {
					for i := 0; ; i++ {
						if err := e.Send(ctx, 1, make([]byte, size)); err != nil {
							return err
						}
						if i == 20 {
							busy <- struct{}{}
						}
					}
				})
				<-busy
				wait("deaf/1", "send", func(e *Endpoint) error {
					for {
						if err := e.Send(ctx, 1, make([]byte, size)); err != nil {
							return err
						}
					}
				})
			}
			wait("sink/1", "receive", func(e *Endpoint) error {
				_, err := e.Receive(ctx)
				if err == io.EOF {
					return errors.New("an end in order")
				}
				return err
			})
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			for range waits {
				if err := <-errs; !errors.Is(err, ErrPeerDied) {
					t.Errorf("got %v, want ErrPeerDied", err)
				}
			}
		})
	}
}
