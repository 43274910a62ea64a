package verbena

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

// propose lists the candidates of this side.
func (d *dialer) propose() error {
	d.selection = Selection{Peer: d.addr}
	auto := d.auto()
	network, _ := splitAddress(d.addr)
	add := func(name string, unavailable error, tcpOnly bool, addresses []string) {
		c := Candidate{Transport: name}
		failure, until, failed := d.r.peers.failed(d.addr, name)
		switch {
		case !auto && d.wanted != name:
			c.Reason = "not asked for"
		case unavailable != nil:
			// A device that was there may come back.
			t := d.r.transport(name)
			c.Reason, c.Passing, c.later = "not on this side: "+unavailable.Error(), passing(unavailable), len(t.devices()) > 0
		case tcpOnly && network != "tcp":
			c.Reason = "it needs a TCP connection"
		case auto && failed:
			c.Reason, c.later = fmt.Sprintf("failed lately, is tried again after %s: %s", until.Format(time.TimeOnly), failure), true
		case slices.Contains(d.avoid, name):
			c.Reason, c.Passing = "failed lately, is tried in the background", true
		default:
			d.offers = append(d.offers, hello.Candidate{Name: name, Parameters: hello.EncodeAddresses(addresses)})
		}
		d.selection.Candidates = append(d.selection.Candidates, c)
	}
	order, left := d.rule.order(d.r.cfg.transports())
	for _, name := range order {
		if t := d.r.transport(name); t != nil {
			if auto || d.wanted == name {
				d.r.want(t)
			}
			add(name, t.usable(), t.streams(), t.addresses())
		} else {
			add(name, nil, false, nil)
		}
	}
	if d.rule != nil {
		d.selection.Rule = d.rule.String()
	}
	for _, name := range left {
		d.selection.Candidates = append(d.selection.Candidates, Candidate{Transport: name, Reason: "rule " + d.rule.Name + " does not allow it"})
	}
	if len(d.offers) > 0 {
		return nil
	}
	if d.selection.candidate(d.wanted) == nil {
		d.selection.Candidates = append(d.selection.Candidates, Candidate{Transport: d.wanted, Reason: "no such provider in this runtime"})
	}
	return &SelectionError{Service: d.service, Wanted: d.wanted, Selection: d.selection}
}

// share is what a candidate may take of the time that is left, when others are
// still to be tried after it.
func (d *dialer) share(ctx context.Context, name string) time.Duration {
	most := d.r.cfg.ConnectTimeout
	if deadline, ok := ctx.Deadline(); ok {
		left := len(d.offers) - d.offered(name)
		most = min(most, max(time.Until(deadline)/time.Duration(left), time.Millisecond))
	}
	return most
}

func (d *dialer) connect(ctx context.Context, accept *hello.Accept) (*Endpoint, error) {
	if d.trying != accept.Name {
		d.trying, d.until, d.refused = accept.Name, time.Now().Add(d.share(ctx, accept.Name)), 0
	}
	ctx, cancel := context.WithDeadline(ctx, d.until)
	defer cancel()
	selection := d.selection
	selection.Candidates = append([]Candidate(nil), d.selection.Candidates...)
	selection.choose(accept.Name, d.taken(accept.Name))
	e := d.group.newEndpoint(d.tuning, d.service, d.conn.LocalAddr(), d.conn.RemoteAddr(), selection)
	e.origin, e.trusted, e.inPlace = originOf(d.conn, true), d.trusted, d.inPlace
	e.features, e.dialled = features(d.r.features&d.features), true
	e.openLane = func(ctx context.Context) (net.Conn, error) { return d.r.dialLane(ctx, d.addr) }
	conn := d.conn
	var err error
	switch t := d.r.transport(accept.Name); {
	case t == nil: // TransportTCP
		d.conn = nil
		err = newStream(ctx, e, conn)
	case t.streams():
		d.conn = nil
		err = d.group.connectStream(ctx, t.devices()[0], e, conn)
	default:
		var dev *device
		if dev, err = t.reaching(accept.Address); err == nil {
			err = d.group.connectAddress(ctx, dev, e, accept.Address, accept.Token)
		}
	}
	if err != nil {
		if d.conn == nil {
			_ = conn.Close() // of no use any more
		}
		return nil, err
	}
	e.identify(conn)
	if err := d.r.adopt(e, d.group); err != nil {
		d.r.discard(e)
		return nil, err
	}
	d.r.peers.connected(d.addr, accept.Name)
	return e, nil
}

func (d *dialer) taken(name string) string {
	if d.wanted == name {
		return "asked for"
	}
	t := d.r.transport(name)
	switch {
	case d.rule != nil && slices.Contains(d.rule.Prefer, name):
		return "rule " + d.rule.Name + " prefers it"
	case d.rule != nil:
		return "the best that rule " + d.rule.Name + " allows"
	case t == nil:
		return "always there, and nothing better is"
	case !t.crossesHosts():
		return "both ends are on one host"
	}
	return "the best that both ends have"
}

// offered returns the place of a candidate among the offers, or -1.
func (d *dialer) offered(name string) int {
	for i, c := range d.offers {
		if c.Name == name {
			return i
		}
	}
	return -1
}

// drop takes a candidate that failed out of the offers. The peer is told why in
// other words than this side.
func (d *dialer) drop(name string, err error) {
	d.selection.note(name, "could not be connected: "+err.Error())
	if c := d.selection.candidate(name); c != nil {
		c.later = true
	}
	if passing(err) {
		d.selection.pass(name)
	} else if d.auto() && !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
		// What this side ended says nothing of the peer.
		d.r.peers.fail(d.addr, name, err.Error())
	}
	d.failed = append(d.failed, hello.Verdict{Name: name, Text: "could not be connected: " + publicReason(err)})
	if i := d.offered(name); i >= 0 {
		d.offers = append(d.offers[:i:i], d.offers[i+1:]...)
	}
}
