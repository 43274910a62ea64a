package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

// software goes into hellos, for the logs of the other side.
const software = "verbena"

// Dial asks the server at addr ("host:port", TCP) for a service and sets up an
// endpoint over the best transport that both ends have. It fails with a
// [*LegacyPeerError] if the server does not speak Verbena, with a
// [*RefusedError] if it says no, and with a [*SelectionError] if no transport
// can be had, or not the one asked for.
//
// The deadline of ctx is for all attempts together; it does not concern the
// endpoint later.
func (r *Runtime) Dial(ctx context.Context, addr, service string, cfg DialConfig) (*Endpoint, error) {
	d := dialer{r: r, addr: addr, service: service, wanted: cfg.Transport}
	e, err := d.dial(ctx)
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Explain tells which transport a dial to addr would choose now, and why, as
// far as that is known without connecting it.
func (r *Runtime) Explain(ctx context.Context, addr string) (Selection, error) {
	d := dialer{r: r, addr: addr, service: "probe", probe: true}
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return d.selection, d.error(err)
	}
	defer end()
	if err := d.propose(); err != nil {
		return d.selection, err
	}
	defer d.hangUp()
	answer, err := d.ask(ctx)
	if err != nil {
		return d.selection, err
	}
	if answer.Refusal != nil {
		return d.selection, refused(addr, d.service, answer.Refusal)
	}
	d.selection.choose(answer.Accept.Name, d.taken(answer.Accept.Name))
	return d.selection, nil
}

// Forget drops what is known about addr, so that the next dial tries it.
func (r *Runtime) Forget(addr string) { r.peers.forget(addr) }

// A dialer is one Dial. Candidates that turn out not to work are left out of
// the next hello, on the same connection if that is still clean.
type dialer struct {
	r             *Runtime
	addr, service string
	wanted        string
	probe         bool

	conn      net.Conn // where the next hello goes, nil to make one
	used      bool     // a hello has been answered on conn
	selection Selection
	offers    []hello.Candidate
	failed    []hello.Verdict
}

func (d *dialer) dial(ctx context.Context) (*Endpoint, error) {
	ctx, end, err := d.r.begin(ctx)
	if err != nil {
		return nil, d.error(err)
	}
	defer end()
	if until, ok := d.r.peers.legacy(d.addr); ok {
		return nil, &LegacyPeerError{Addr: d.addr, Until: until}
	}
	if err := d.propose(); err != nil {
		return nil, err
	}
	defer d.hangUp()
	for len(d.offers) > 0 {
		answer, err := d.ask(ctx)
		if err != nil {
			return nil, err
		}
		if answer.Refusal != nil {
			if answer.Refusal.Code == hello.CodeNoTransport {
				break
			}
			return nil, refused(d.addr, d.service, answer.Refusal)
		}
		e, err := d.connect(ctx, answer.Accept)
		if err == nil {
			return e, nil
		}
		if ctx.Err() != nil {
			return nil, d.error(fmt.Errorf("%s: %w", answer.Accept.Name, errors.Join(context.Cause(ctx), err)))
		}
		d.drop(answer.Accept.Name, err)
	}
	return nil, &SelectionError{Service: d.service, Wanted: d.wanted, Selection: d.selection}
}

func (d *dialer) error(err error) error {
	return fmt.Errorf("verbena: dial %s at %s: %w", d.service, d.addr, err)
}

// propose lists the candidates of this side.
func (d *dialer) propose() error {
	d.selection = Selection{Peer: d.addr}
	auto := d.wanted == "" || d.wanted == TransportAuto
	add := func(name string, unavailable error, addresses []string) {
		c := Candidate{Transport: name}
		switch {
		case !auto && d.wanted != name:
			c.Reason = "not asked for"
		case unavailable != nil:
			c.Reason = "not on this side: " + unavailable.Error()
		default:
			d.offers = append(d.offers, hello.Candidate{Name: name, Parameters: hello.EncodeAddresses(addresses)})
		}
		d.selection.Candidates = append(d.selection.Candidates, c)
	}
	for _, t := range d.r.transports {
		add(t.name, t.usable(), t.addresses())
	}
	add(TransportTCP, nil, nil)
	if len(d.offers) > 0 {
		return nil
	}
	if d.selection.candidate(d.wanted) == nil {
		d.selection.Candidates = append(d.selection.Candidates, Candidate{Transport: d.wanted, Reason: "no such provider in this runtime"})
	}
	return &SelectionError{Service: d.service, Wanted: d.wanted, Selection: d.selection}
}

// ask sends a hello and returns the answer, if there is a Verbena server.
func (d *dialer) ask(ctx context.Context) (hello.Answer, error) {
	for {
		fresh := d.conn == nil
		if fresh {
			var nd net.Dialer
			nd.KeepAliveConfig = keepAlive
			conn, err := nd.DialContext(ctx, "tcp", d.addr)
			if err != nil {
				return hello.Answer{}, d.error(err)
			}
			d.conn, d.used = conn, false
		}
		answer, err := d.exchange(ctx)
		if err == nil {
			d.r.peers.remember(d.addr, false, verbenaExpiry)
			d.selection.SameHost = string(answer.Host) == string(d.r.host[:])
			for _, v := range answer.Verdicts {
				if c := d.selection.candidate(v.Name); c != nil && c.Reason == "" {
					c.Reason = "the server: " + v.Text
				}
			}
			if answer.Accept != nil && !d.offered(answer.Accept.Name) {
				return answer, d.error(fmt.Errorf("%w: it accepted %q, which was not offered", ErrProtocol, answer.Accept.Name))
			}
			return answer, nil
		}
		d.hangUp()
		if !fresh && ctx.Err() == nil {
			continue // the connection was no longer clean; a new one tells
		}
		return hello.Answer{}, d.judge(ctx, err)
	}
}

func (d *dialer) exchange(ctx context.Context) (hello.Answer, error) {
	out, err := (&hello.Hello{
		Least: hello.LeastVersion, Greatest: hello.Version, Service: d.service, Probe: d.probe,
		Host: d.r.host[:], Candidates: d.offers, Failed: d.failed, Software: software,
	}).Encode()
	if err != nil {
		return hello.Answer{}, err
	}
	timeout := d.r.cfg.HelloTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(deadline)/3, time.Millisecond))
	}
	stop, err := bindContext(ctx, d.conn, time.Now().Add(timeout))
	if err != nil {
		return hello.Answer{}, err
	}
	var answer hello.Answer
	if _, err = d.conn.Write(out); err == nil {
		answer, err = hello.ReadAnswer(d.conn)
	}
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	return answer, err
}

// judge decides what a failed exchange on a fresh connection says about the
// server.
func (d *dialer) judge(ctx context.Context, err error) error {
	silent := errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case ctx.Err() != nil:
		return d.error(fmt.Errorf("waiting for the answer to the hello: %w", context.Cause(ctx)))
	case errors.Is(err, hello.ErrNotHello):
	case d.r.peers.verbena(d.addr):
		return d.error(fmt.Errorf("a server that has spoken Verbena before did not answer the hello: %w", err))
	case silent:
		err = errors.New("it did not answer the hello in time")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		err = errors.New("it closed the connection at the hello")
	default:
		return d.error(err)
	}
	until := d.r.peers.remember(d.addr, true, d.r.cfg.LegacyExpiry)
	return &LegacyPeerError{Addr: d.addr, Until: until, Err: err}
}

func (d *dialer) connect(ctx context.Context, accept *hello.Accept) (*Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, d.r.cfg.ConnectTimeout)
	defer cancel()
	selection := d.selection
	selection.Candidates = append([]Candidate(nil), d.selection.Candidates...)
	selection.choose(accept.Name, d.taken(accept.Name))
	e := newEndpoint(d.r, d.service, d.conn.LocalAddr(), d.conn.RemoteAddr(), selection)
	conn := d.conn
	var err error
	switch t := d.r.transport(accept.Name); {
	case t == nil: // TransportTCP
		d.conn = nil
		err = newStream(ctx, e, conn)
	case t.streams():
		d.conn = nil
		err = t.devices[0].connectStream(ctx, e, conn)
	default:
		var dev *device
		if dev, err = t.reaching(accept.Address); err == nil {
			err = dev.connectAddress(ctx, e, accept.Address, accept.Token)
		}
	}
	if err != nil {
		if d.conn == nil {
			_ = conn.Close() // of no use any more
		}
		return nil, err
	}
	if err := d.r.adopt(e); err != nil {
		d.r.discard(e)
		return nil, err
	}
	return e, nil
}

func (d *dialer) taken(name string) string {
	if d.wanted == name {
		return "asked for"
	}
	t := d.r.transport(name)
	switch {
	case t == nil:
		return "always there, and nothing better is"
	case !t.crossesHosts():
		return "both ends are on one host"
	}
	return "the best that both ends have"
}

func (d *dialer) offered(name string) bool {
	for _, c := range d.offers {
		if c.Name == name {
			return true
		}
	}
	return false
}

// drop takes a candidate that failed out of the offers.
func (d *dialer) drop(name string, err error) {
	reason := "could not be connected: " + err.Error()
	d.selection.note(name, reason)
	d.failed = append(d.failed, hello.Verdict{Name: name, Text: reason})
	for i, c := range d.offers {
		if c.Name == name {
			d.offers = append(d.offers[:i:i], d.offers[i+1:]...)
			return
		}
	}
}

func (d *dialer) hangUp() {
	if d.conn != nil {
		_ = d.conn.Close() // nothing is on its way
		d.conn = nil
	}
}

// keepAlive notices within about half a minute that a peer's host is gone; the
// kernel does it, so an idle connection costs this process nothing.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}
