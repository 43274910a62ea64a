package verbena

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// GroupConfig configures a group. Zero values stand for the runtime's.
type GroupConfig struct {
	// Name stands in metrics and logs. It must be there, and no other group of the
	// runtime may have it.
	Name string
	// ReceiveMemory, SendMemory, Workers: see [Config].
	ReceiveMemory, SendMemory int64
	Workers                   int
	// Tuning overrides the runtime's for the group.
	Tuning TuningTable
	// Relay lets trusted endpoints of the group (see [DialConfig].Trusted) send long
	// messages on without a copy. A key opens a whole region, and a region holds
	// messages of several peers: so a peer that is trusted can read what other peers
	// of the group have sent. One that is not trusted gets no key to any of that.
	// Messages that endpoints receive in place ([DialConfig].InPlace) are among those.
	Relay bool
}

// A Group is services that trust each other. On each device it has a protection
// domain of its own, with memory, receives and keys: a peer of one group reaches
// nothing of another, whatever key it holds, and the memory that one group uses up
// is not missing in another. Devices and ports are shared. All methods may be
// called concurrently.
//
// A runtime has a group for the endpoints of which no other is told.
type Group struct {
	cfg        GroupConfig
	env        *environment
	tables     []TuningTable // the runtime's and the group's
	transports []string      // that tables may name
	maxMessage int
	ignore     bool               // the memory's pressure
	leave      func() []*Endpoint // takes the group out of its runtime, and its endpoints
	gone       func()             // the runtime need not wait for the group any more

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done chan struct{} // the first Close is through

	mu      sync.Mutex
	closed  bool
	domains map[*device]*domain
}

// newEndpoint returns an endpoint of the group that has no carrier yet.
func (g *Group) newEndpoint(table TuningTable, service string, local, remote net.Addr, selection Selection) *Endpoint {
	return newEndpoint(g.env, g.tuning(selection.Transport, table), service, local, remote, selection)
}

// Name is what the configuration said.
func (g *Group) Name() string { return g.cfg.Name }

// Tuning is that of a transport for endpoints of the group.
func (g *Group) Tuning(transport string) Tuning { return g.tuning(transport, nil) }

// check judges what a dial or a listener asks for, and its tuning. The receives are the group's,
// and as long as its tuning says.
func (g *Group) check(table TuningTable, trusted bool) error {
	if trusted && !g.cfg.Relay {
		return fmt.Errorf("verbena: endpoints of group %q cannot be trusted: it does not relay", g.cfg.Name)
	}
	if err := table.check(g.transports); err != nil {
		return err
	}
	for transport, t := range table {
		if most := g.Tuning(transport).Eager; t.Eager > most {
			return fmt.Errorf("verbena: tuning %s.eager is %d, above that of the group, which is %d: raise it there", transport, t.Eager, most)
		}
	}
	return nil
}

func (g *Group) tuning(transport string, table TuningTable) Tuning {
	return tune(transport, g.tables[0], g.tables[1], table)
}

// on returns the group's domain on a device. It opens it when it is needed first;
// a device that cannot be opened is tried again the next time, since the reason may
// pass.
func (g *Group) on(d *device) (*domain, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, ErrClosed
	}
	if domain := g.domains[d]; domain != nil {
		return domain, nil
	}
	domain, err := openDomain(d.dev, domainConfig{
		group: g.cfg.Name, receiveMemory: g.cfg.ReceiveMemory, sendMemory: g.cfg.SendMemory, workers: g.cfg.Workers,
		maxMessage: g.maxMessage, ignorePressure: g.ignore, relay: g.cfg.Relay, tuning: g.tuning(d.transport, nil), onEvent: d.event, log: d.log,
	})
	if err != nil {
		return nil, err
	}
	g.domains[d] = domain
	d.mu.Lock()
	d.domains[domain] = struct{}{}
	d.mu.Unlock()
	return domain, nil
}

// Close closes the group's endpoints, as their own Close does, and gives its
// memory back. Listeners of the group stay open and refuse dials. Messages that are
// still held stay as they are; the Release of the last one gives back the rest.
func (g *Group) Close() error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		<-g.done
		return nil
	}
	g.closed = true
	g.mu.Unlock()
	defer g.gone()
	defer close(g.done)
	g.stop()
	errs := closeAll(g.leave())
	for d, domain := range g.domains {
		d.mu.Lock()
		delete(d.domains, domain)
		d.mu.Unlock()
		errs = append(errs, domain.close())
	}
	return errors.Join(errs...)
}

// within ends ctx with the group.
func (g *Group) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.ctx, func() { cancel(ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// closeAll closes endpoints at the same time.
func closeAll(endpoints []*Endpoint) []error {
	errs := make([]error, len(endpoints))
	var wg sync.WaitGroup
	for i, e := range endpoints {
		wg.Go(func() { errs[i] = e.Close() })
	}
	wg.Wait()
	return errs
}
