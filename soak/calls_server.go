package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

// start starts the server, each time at the same address.
func (s *callsServer) start(ctx context.Context) error {
	file := filepath.Join(s.dir, s.name+".address")
	executable, args := s.self, []string{"calls-server", file, s.listen}
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
			s.carried += now.Carried
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

// callsBook has the numbers of calls that must not be carried out twice.
type callsBook struct {
	mu      sync.Mutex
	numbers map[uint64]struct{}
	twice   uint64
}

func (b *callsBook) enter(q verbena.Request) {
	number := binary.BigEndian.Uint64(q.Payload())
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, there := b.numbers[number]; there {
		b.twice++
	}
	b.numbers[number] = struct{}{}
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
		Use:    "calls-server ADDRESS-FILE LISTEN",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
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
			book := &callsBook{numbers: map[uint64]struct{}{}}
			mux := book.mux()
			defer func() {
				err = errors.Join(err, rt.Close())
				mux.Close()
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
