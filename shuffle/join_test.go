package shuffle_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// members are configurations of processes that can join, all in this one.
func (w world) members(t *testing.T, size int, c shuffle.Config) []shuffle.Config {
	t.Helper()
	members := make([]shuffle.Config, size)
	addresses := make([]string, size)
	for rank := range members {
		r, err := verbena.New(verbena.Config{Providers: providers.Default()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Close() })
		ln, err := r.Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{Services: []string{}})
		if err != nil {
			t.Fatal(err)
		}
		addresses[rank] = ln.Addr().String()
		m := c
		m.Runtime, m.Listener, m.Rank, m.Size, m.Addresses, m.Transport, m.Mode = r, ln, rank, size, addresses, w.transport, w.mode
		members[rank] = m
	}
	return members
}

// joining is a Join under way.
type joining chan error

func join(ctx context.Context, c shuffle.Config) joining {
	done := make(joining, 1)
	go func() {
		x, err := shuffle.Join(ctx, c)
		if err == nil {
			// It may have met all before another one failed.
			err = x.Wait(ctx)
			_ = x.Close() // the exchange has failed
		}
		done <- err
	}()
	return done
}

// A process that cannot join says so to all others, whether they have met it or not, and they
// do not wait for it.
func TestAllHearOfWhoCannotJoin(t *testing.T) {
	for _, c := range []struct {
		name    string
		spoil   func(*shuffle.Config)
		because string
		from    int // the first rank that can be heard of: process 0 dials nobody
	}{
		{"before it meets anybody", func(c *shuffle.Config) { c.Spill = filepath.Join(c.Spill, "missing") }, "the spill directory", 0},
		{"with its configuration", func(c *shuffle.Config) { c.Memory = 1 }, "bytes of Memory", 0},
		{"with another configuration", func(c *shuffle.Config) { c.Threads = 2 }, "Threads is", 0},
		{"where its service cannot be", func(c *shuffle.Config) { _ = c.Listener.Close() }, "closed", 1},
	} {
		for rank := c.from; rank < 3; rank++ {
			t.Run(fmt.Sprintf("%s/%d", c.name, rank), func(t *testing.T) {
				// Long before that all have ended.
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				members := worlds[1].members(t, 3, shuffle.Config{Spill: t.TempDir()})
				c.spoil(&members[rank])
				var joins []joining
				for _, m := range members {
					joins = append(joins, join(ctx, m))
				}
				for other, j := range joins {
					err := <-j
					var process *shuffle.ProcessError
					switch {
					case err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.because):
						t.Errorf("process %d, while process %d cannot join: %v", other, rank, err)
					case c.name == "with another configuration": // any of two may say it first
					case other != rank && (!errors.As(err, &process) || process.Rank != rank || !errors.Is(err, shuffle.ErrAborted)):
						t.Errorf("process %d, while process %d cannot join: %v", other, rank, err)
					}
				}
			})
		}
	}
}

// Who gives up to wait says so to all, also to those for whom it has waited.
func TestAllHearOfWhoGivesUp(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	members := worlds[0].members(t, 4, shuffle.Config{})
	hasty, giveUp := context.WithCancelCause(ctx)
	joins := []joining{join(ctx, members[0]), join(ctx, members[1]), join(hasty, members[2])}
	giveUp(errors.New("enough"))
	joins = append(joins, join(ctx, members[3]))
	for rank, j := range joins {
		if err := <-j; err == nil || !strings.Contains(err.Error(), "enough") || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("process %d: %v", rank, err)
		}
	}
}

// When a process dies that has met others, they do not wait for those that have not come yet, and
// tell those that come later.
func TestProcessDiesBeforeAllHaveJoined(t *testing.T) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			members := w.members(t, 3, shuffle.Config{})
			first := join(ctx, members[0])
			e := dialUntilServed(ctx, t, members[1], 0)
			h := shuffle.HelloOf(members[1])
			if err := e.Send(ctx, wire.TagHello, h.Append(nil)); err != nil {
				t.Fatal(err)
			}
			m, err := e.Receive(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if m.Tag != wire.TagHello { // it takes part
				t.Fatalf("tag %d in place of a hello", m.Tag)
			}
			m.Release()
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			late := join(ctx, members[2])
			for rank, j := range map[int]joining{0: first, 2: late} {
				var process *shuffle.ProcessError
				if err := <-j; !errors.As(err, &process) || process.Rank != 1 || !errors.Is(err, shuffle.ErrPeerLost) {
					t.Errorf("process %d: %v", rank, err)
				}
			}
		})
	}
}

// Who has been accepted, and says hello when this process has heard elsewhere that another one cannot
// join, is told of that, too.
func TestWhoSaysHelloLateIsTold(t *testing.T) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			members := w.members(t, 3, shuffle.Config{})
			second := join(ctx, members[1])
			e := dialUntilServed(ctx, t, members[2], 1)
			defer e.Close()
			heard := dialledBy(ctx, t, members[0])
			a := wire.Abort{Rank: 0, Kind: wire.AbortedByProgram, Reason: "no disk"}
			if err := heard.Send(ctx, wire.TagAbort, a.Append(nil)); err != nil {
				t.Fatal(err)
			}
			// It tells those that it has met, this one too, when it no longer waits for a hello.
			for said := wire.TagHello; said != wire.TagAbort; {
				m, err := heard.Receive(ctx)
				if err != nil {
					t.Fatal(err)
				}
				said = m.Tag
				m.Release()
			}
			h := shuffle.HelloOf(members[2])
			if err := e.Send(ctx, wire.TagHello, h.Append(nil)); err != nil {
				t.Errorf("the endpoint was closed before it said anything: %v", err)
			}
			m, err := e.Receive(ctx)
			if err != nil {
				t.Fatalf("told nothing: %v", err)
			}
			defer m.Release()
			told, err := wire.ParseAbort(m.Bytes())
			if m.Tag != wire.TagAbort || err != nil || told.Rank != 0 || !strings.Contains(told.Reason, "no disk") {
				t.Errorf("tag %d, %+v, %v", m.Tag, told, err)
			}
			var process *shuffle.ProcessError
			if err := <-second; !errors.As(err, &process) || process.Rank != 0 {
				t.Errorf("process 1: %v", err)
			}
		})
	}
}

// dialledBy is the endpoint of the next process that dials a member that does not join.
func dialledBy(ctx context.Context, t *testing.T, c shuffle.Config) *verbena.Endpoint {
	t.Helper()
	service, err := c.Listener.Service(wire.Service, verbena.ServiceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Close() })
	e, err := service.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// Who is met when the others have just been told of a failure, and before this process has stopped to meet others, is told, too:
// it would take the end of the endpoint for a process that was lost.
func TestWhoIsMetLateIsTold(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	members := worlds[0].members(t, 2, shuffle.Config{})
	service, err := members[0].Listener.Service(wire.Service, verbena.ServiceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	failed := make(chan error, 1)
	go func() {
		e, err := service.Accept(ctx)
		if err == nil {
			err = shuffle.LateMeeting(members[0], e, 1, errors.New("no disk"))
		}
		failed <- err
	}()
	e := dialUntilServed(ctx, t, members[1], 0)
	defer e.Close()
	m, err := e.Receive(ctx)
	if err != nil {
		t.Fatal(err)
	}
	a, err := wire.ParseAbort(m.Bytes())
	if err != nil || m.Tag != wire.TagAbort || a.Rank != 0 || !strings.Contains(a.Reason, "no disk") {
		t.Errorf("tag %d: %+v, %v", m.Tag, a, err)
	}
	m.Release()
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// Endpoints that say nothing keep nobody from joining, and more of them than may be waited for only until they leave, or have had their
// time.
func TestSilentEndpoints(t *testing.T) {
	for name, limit := range map[string]time.Duration{"one": time.Hour, "too many that leave": time.Hour, "until their time is over": time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			defer shuffle.SetHelloLimit(limit)()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			members := worlds[0].members(t, 2, shuffle.Config{Logger: slog.New(slog.DiscardHandler)}) // each is logged
			stranger := worlds[0].members(t, 1, shuffle.Config{})[0]
			stranger.Addresses = members[0].Addresses
			var exchanges [2]*shuffle.Exchange
			var errs [2]error
			var all sync.WaitGroup
			join := func(rank int) { all.Go(func() { exchanges[rank], errs[rank] = shuffle.Join(ctx, members[rank]) }) }
			join(0)
			silent := []*verbena.Endpoint{dialUntilServed(ctx, t, stranger, 0)}
			for name == "too many that leave" && len(silent) < shuffle.Strangers+4 {
				silent = append(silent, dialUntilServed(ctx, t, stranger, 0))
			}
			if name == "until their time is over" {
				<-silent[0].Done()
			}
			if name == "too many that leave" {
				for _, e := range silent {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				}
			}
			join(1)
			all.Wait()
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatal(err)
			}
			<-silent[0].Done()
			for _, x := range exchanges {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// dialUntilServed dials the exchange of another process as c's.
func dialUntilServed(ctx context.Context, t *testing.T, c shuffle.Config, rank int) *verbena.Endpoint {
	t.Helper()
	for ctx.Err() == nil {
		e, err := c.Runtime.Dial(ctx, c.Addresses[rank], wire.Service, verbena.DialConfig{Transport: c.Transport})
		if err == nil {
			return e
		}
		c.Runtime.Forget(c.Addresses[rank])
	}
	t.Fatal("nobody answers")
	return nil
}
