package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/processes"
)

const (
	callsService = "soak-calls"
	callsControl = "soak-calls-control"
)

// Methods that servers have; their numbers follow one another.
const (
	callEcho  uint32 = 1 + iota // short, idempotent
	callOnce                    // short, must not be carried out twice
	callSlow                    // long, takes a while, must not be carried out twice
	callReply                   // long, idempotent

	callMethods = int(callReply)
)

// callsState is what a server says of itself.
type callsState struct {
	serverState
	Carried, Twice uint64
}

// A callsServer is a server process and the way to it.
type callsServer struct {
	name, self, dir string
	listen          string // where; after the first start the same port
	inside          string // a network namespace, or empty

	mu      sync.Mutex
	at      string
	process *processes.Process

	rt      *verbena.Runtime
	control *verbena.Endpoint
	carried uint64
}

func (s *callsServer) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// book is the file of the calls that the server has carried out.
func (s *callsServer) book() string { return filepath.Join(s.dir, s.name+".book") }

// start starts the server, each time at the same address.
func (s *callsServer) start(ctx context.Context) error {
	file := filepath.Join(s.dir, s.name+".address")
	executable, args := s.self, []string{"calls-server", file, s.listen, s.book()}
	if s.inside != "" {
		executable, args = "ip", append([]string{"netns", "exec", s.inside, s.self}, append(args, "--remote")...)
	}
	p, err := processes.Start(ctx, s.name+" server", file, executable, args...)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process, s.at, s.listen = p, p.Address, p.Address
	return nil
}

// connect opens the way over which the server tells of itself.
func (s *callsServer) connect(ctx context.Context, rt *verbena.Runtime) (err error) {
	dctx, cancel := context.WithTimeout(ctx, callsPatience)
	defer cancel()
	s.rt = rt
	s.control, err = rt.Dial(dctx, s.address(), callsControl, verbena.DialConfig{Transport: verbena.TransportTCP})
	return err
}

func (s *callsServer) disconnect() { _ = s.control.Close() } // nothing is on its way

func (s *callsServer) ask(ctx context.Context) (state callsState, err error) {
	ctx, cancel := context.WithTimeout(ctx, callsPatience)
	defer cancel()
	if s.control.Err() != nil { // of a server that was killed
		s.disconnect()
		if err := s.connect(ctx, s.rt); err != nil {
			return state, err
		}
	}
	if err := s.control.Send(ctx, 1, nil); err != nil {
		return state, err
	}
	m, err := s.control.Receive(ctx)
	if err != nil {
		return state, fmt.Errorf("the %s server's own account: %w\n%s", s.name, err, s.process.Log())
	}
	defer m.Release()
	return state, json.Unmarshal(m.Bytes(), &state)
}

// settles waits until the server has what it had first.
func (s *callsServer) settles(ctx context.Context, first callsState) error {
	began := time.Now()
	for {
		now, err := s.ask(ctx)
		if err != nil {
			return err
		}
		if now.Twice > 0 {
			return fmt.Errorf("the %s server carried %d calls out twice", s.name, now.Twice)
		}
		kept := now.kept(first.serverState, false)
		if kept == nil {
			s.carried = now.Carried // by all servers at this address, one after the other
			return nil
		}
		if time.Since(began) > callsPatience {
			return fmt.Errorf("%s server, %v after the last call: %w", s.name, callsPatience, kept)
		}
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

// callsBook is a file with the numbers of calls that must not be carried out twice, eight
// bytes big-endian each. What a server has written outlives it, so that the next one at
// its address goes on with its book.
type callsBook struct {
	file *os.File

	mu      sync.Mutex
	numbers map[uint64]struct{} // those that are in the file
	twice   uint64
}

// openCallsBook opens a book, or begins one.
func openCallsBook(name string) (*callsBook, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	before, err := io.ReadAll(f)
	if err == nil && len(before)%8 != 0 {
		err = fmt.Errorf("%s has %d bytes, which is no number of calls", name, len(before))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	b := &callsBook{file: f, numbers: map[uint64]struct{}{}}
	for ; len(before) > 0; before = before[8:] {
		b.note(binary.BigEndian.Uint64(before))
	}
	return b, nil
}

// note counts a call. mu is held, or nobody else knows of the book.
func (b *callsBook) note(number uint64) {
	if _, there := b.numbers[number]; there {
		b.twice++
	}
	b.numbers[number] = struct{}{}
}

// enter writes a call into the book before it is answered.
func (b *callsBook) enter(q verbena.Request) {
	number := q.Payload()[:8]
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := b.file.Write(number); err != nil { // at once, behind those of others
		panic(err)
	}
	b.note(binary.BigEndian.Uint64(number))
}

func (b *callsBook) mux() *verbena.Mux {
	mux := verbena.NewMux(verbena.MuxConfig{})
	echo := func(q verbena.Request) { _ = q.Reply(q.Payload()) } // the endpoint's end tells
	mux.Short(callEcho, echo)
	mux.Short(callOnce, func(q verbena.Request) {
		b.enter(q)
		echo(q)
	})
	mux.Long(callSlow, func(q verbena.Request) {
		b.enter(q)
		pause := time.NewTimer(time.Duration(binary.BigEndian.Uint64(q.Payload()[8:])) * time.Microsecond)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-q.Context().Done():
		}
		echo(q)
	})
	mux.Long(callReply, echo)
	return mux
}

func callsServerCommand() *cobra.Command {
	var remote bool
	cmd := &cobra.Command{
		Use:    "calls-server ADDRESS-FILE LISTEN BOOK",
		Hidden: true,
		Args:   cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			ctx := cmd.Context()
			list, err := attackProviders(remote)
			if err != nil {
				return err
			}
			rt, err := verbena.New(verbena.Config{Providers: list})
			if err != nil {
				return err
			}
			book, err := openCallsBook(args[2])
			if err != nil {
				return errors.Join(err, rt.Close())
			}
			mux := book.mux()
			defer func() {
				err = errors.Join(err, rt.Close())
				mux.Close()
				err = errors.Join(err, book.file.Close())
			}()
			l, err := rt.Listen(ctx, args[1], verbena.ListenConfig{Services: []string{callsService}})
			if err != nil {
				return err
			}
			control, err := l.Service(callsControl, verbena.ServiceConfig{})
			if err != nil {
				return err
			}
			go serveEach(ctx, l.Accept, func(ep *verbena.Endpoint) { _ = mux.Serve(ep) }) // callers are told
			go serveEach(ctx, control.Accept, func(ep *verbena.Endpoint) { book.account(ctx, rt, ep) })
			if err := writeAddress(args[0], l.Addr()); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		},
	}
	cmd.Flags().BoolVar(&remote, "remote", false, "serve other hosts")
	return cmd
}

// account tells what the server holds, whenever it is asked.
func (b *callsBook) account(ctx context.Context, rt *verbena.Runtime, ep *verbena.Endpoint) {
	defer ep.Close()
	for {
		m, err := ep.Receive(ctx)
		if err != nil {
			return
		}
		m.Release()
		runtime.GC()
		debug.FreeOSMemory()
		state, err := stateOf(rt)
		if err != nil {
			return
		}
		all := callsState{serverState: state}
		b.mu.Lock()
		all.Carried, all.Twice = uint64(len(b.numbers)), b.twice
		b.mu.Unlock()
		out, err := json.Marshal(all)
		if err != nil || ep.Send(ctx, 1, out) != nil {
			return
		}
	}
}
