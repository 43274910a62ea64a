package main

import (
	"context"
	"errors"
	"io"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/shuffle"
)

// ours is package shuffle over a transport.
type ours struct {
	transport string
	twoSided  bool

	l       load
	rank    int
	runtime *verbena.Runtime
	ln      *verbena.Listener
	x       *shuffle.Exchange
}

func (s *ours) listen(ctx context.Context, l load, rank int) (string, error) {
	s.l, s.rank = l, rank
	var settings map[string]string
	if l.Cable { // as between hosts
		settings = map[string]string{"iwarp.remote": "true"}
	}
	all, err := providers.New(providers.Config{Settings: settings})
	if err != nil {
		return "", err
	}
	if s.runtime, err = verbena.New(verbena.Config{Providers: all}); err != nil {
		return "", err
	}
	if s.ln, err = s.runtime.Listen(ctx, l.listenOn(), verbena.ListenConfig{Services: []string{}}); err != nil {
		return "", err
	}
	return s.ln.Addr().String(), nil
}

func (s *ours) connect(ctx context.Context, addresses []string) (exchange, error) {
	c := shuffle.Config{
		Runtime: s.runtime, Listener: s.ln, Rank: s.rank, Size: s.l.Size, Addresses: addresses, Threads: s.l.Threads, Transport: s.transport,
	}
	if s.twoSided {
		c.Mode = shuffle.TwoSided
	}
	var err error
	s.x, err = shuffle.Join(ctx, c)
	return s, err
}

func (s *ours) sender(thread int) sender { return s.x.Sender(thread) }

func (s *ours) receive(thread int, f func([]byte)) error {
	r := s.x.Receiver(thread)
	for {
		record, err := r.Next(context.Background())
		if err == nil {
			f(record)
			continue
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

func (s *ours) finish() error {
	err := s.x.Wait(context.Background())
	return errors.Join(err, s.x.Close(), s.ln.Close(), s.runtime.Close())
}

func (s *ours) describe(r *result) {
	n := s.x.Stats()
	r.Stalled, r.Waited, r.Messages = n.Stalled.Seconds(), n.Waited.Seconds(), n.Messages
	r.Stalls, r.Waits = n.Stalls, n.Waits
	for _, d := range s.runtime.Stats().Devices {
		for _, p := range d.Pools { // the rings among them
			r.Registered += p.Registered
		}
	}
}
