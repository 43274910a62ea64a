package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
	"github.com/verbena-data/verbena/internal/hello"
)

// software goes into hellos, for the logs of the other side.
const software = "verbena"

// DialConfig configures one dial.
type DialConfig struct {
	// Transport asks for one: the name of a provider, or [TransportTCP]. Empty
	// or [TransportAuto] lets the runtime choose.
	Transport string
	// Group is that of the endpoint. Default: the runtime's own.
	Group *Group
	// Tuning overrides the group's for this endpoint.
	Tuning TuningTable
	// Trusted says that the peer may read what other peers of the group have sent,
	// so that a long message or a buffer of any of them can be sent to it from where
	// it lies. The group has to be one with Relay.
	Trusted bool
	// Intent is what the endpoint is for, as rules see it.
	Intent Intent
	// Rules come before the runtime's.
	Rules Rules
}

// Dial asks the server at addr for a service and sets up an endpoint over the
// best transport that both ends have. The address is "host:port" for TCP, or
// "unix:/path" or "unix:@name" for a Unix socket. It fails with a
// [*LegacyPeerError] if the server does not speak Verbena, with a
// [*RefusedError] if it says no, and with a [*SelectionError] if no transport
// can be had, or not the one asked for.
//
// The deadline of ctx is for all attempts together, and what is left of it is
// shared out evenly among the transports that are still to be tried; it does not
// concern the endpoint later. A server that is busy is asked again until then.
func (r *Runtime) Dial(ctx context.Context, addr, service string, cfg DialConfig) (*Endpoint, error) {
	d, err := r.newDialer(addr, service, cfg)
	if err != nil {
		return nil, d.error(err)
	}
	d.judgeBy(slices.Concat(cfg.Rules, r.cfg.Rules), cfg.Intent)
	return d.run(ctx)
}

// newDialer returns a dialer by no rules.
func (r *Runtime) newDialer(addr, service string, cfg DialConfig) (dialer, error) {
	d := dialer{r: r, addr: addr, service: service, wanted: cfg.Transport, tuning: cfg.Tuning, trusted: cfg.Trusted}
	var err error
	if d.group, err = r.group(cfg.Group); err == nil {
		err = d.group.check(cfg.Tuning, cfg.Trusted)
	}
	if err == nil {
		err = cfg.Rules.Check(r.cfg.transports())
	}
	return d, err
}

// judgeBy finds the rule that decides, unless a transport was asked for.
func (d *dialer) judgeBy(rules Rules, intent Intent) {
	if !d.auto() {
		return
	}
	if i := rules.decide(d.addr, d.service, intent); i >= 0 {
		d.rule = rules.named(i)
	}
}

func (d *dialer) auto() bool { return d.wanted == "" || d.wanted == TransportAuto }

func (d *dialer) run(ctx context.Context) (*Endpoint, error) {
	e, err := d.dial(ctx)
	if err != nil && d.group.ctx.Err() != nil && !errors.Is(err, ErrClosed) {
		err = d.error(fmt.Errorf("%w: %w", ErrClosed, err)) // the group ended it
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Explain tells which transport a dial to addr would choose now, and why, as
// far as that is known without connecting it. Rules are asked by cfg's Intent, whose
// Operation should not be empty.
func (r *Runtime) Explain(ctx context.Context, addr string, cfg DialConfig) (Selection, error) {
	d, err := r.newDialer(addr, "probe", cfg)
	if err != nil {
		return d.selection, d.error(err)
	}
	d.probe = true
	d.judgeBy(slices.Concat(cfg.Rules, r.cfg.Rules), cfg.Intent)
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

// Forget drops what is known about addr, so that the next dial tries it and every
// transport.
func (r *Runtime) Forget(addr string) { r.peers.forget(addr) }

// lookAgain asks a silent peer in the background whether it speaks Verbena after
// all, with the whole deadline. It ends with the runtime.
func (r *Runtime) lookAgain(addr string) {
	if !r.peers.look(addr, r.cfg.LegacyExpiry) {
		return
	}
	ctx, end, err := r.begin(context.Background())
	if err != nil {
		r.peers.looked(addr)
		return
	}
	go func() {
		defer end()
		defer r.peers.looked(addr)
		d := dialer{r: r, addr: addr, service: "probe", probe: true}
		if d.propose() != nil {
			return
		}
		defer d.hangUp()
		_, err := d.ask(ctx) // what it found out is remembered
		r.cfg.Logger.Debug("looked again at a silent peer", "peer", addr, "error", err)
	}()
}

// A dialer is one Dial. Candidates that turn out not to work are left out of
// the next hello, on the same connection if that is still clean.
type dialer struct {
	r             *Runtime
	addr, service string
	wanted        string
	group         *Group
	tuning        TuningTable
	trusted       bool
	probe         bool
	rule          *Rule    // that decides, or nil
	avoid         []string // transports that somebody else is after

	conn      net.Conn // where the next hello goes, nil to make one
	hellos    int      // that have gone there
	selection Selection
	features  hello.Features // of the server
	offers    []hello.Candidate
	failed    []hello.Verdict

	trying  string    // the candidate that is being connected
	until   time.Time // it has so long, over all its attempts
	refused int       // attempts that failed in a row
}

func (d *dialer) dial(ctx context.Context) (*Endpoint, error) {
	ctx, end, err := d.r.begin(ctx)
	if err != nil {
		return nil, d.error(err)
	}
	defer end()
	ctx, leave := d.group.within(ctx)
	defer leave()
	if d.group.ctx.Err() != nil {
		return nil, d.error(ErrClosed)
	}
	if until, silent, ok := d.r.peers.legacy(d.addr); ok {
		if silent {
			d.r.lookAgain(d.addr)
		}
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
		if worthRepeating(err) && d.pause(ctx, d.until) {
			continue // with a new token
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

// mostHangUps is how often a server that has spoken Verbena before may hang up at
// the hello. One that is flooded does, without a word, to those for whom it has no
// room at all.
const mostHangUps = 8

// ask sends a hello and returns the answer, if there is a Verbena server. One that
// is busy is asked again while there is time.
func (d *dialer) ask(ctx context.Context) (hello.Answer, error) {
	limit, ok := ctx.Deadline()
	if !ok {
		limit = time.Now().Add(d.r.cfg.ConnectTimeout)
	}
	var busy *hello.Answer
	for hangUps := 0; ; {
		answer, err := d.askOnce(ctx)
		switch {
		case busy != nil && cutShort(ctx, err):
			return *busy, nil // it was asked again until then
		case err != nil && hangUps < mostHangUps && hungUpBy(err) && d.r.peers.verbena(d.addr) && d.pause(ctx, limit):
			hangUps++
			continue
		case err != nil || answer.Refusal == nil:
			return answer, err
		}
		d.hangUp() // the server does, too
		busy = &answer
		if answer.Refusal.Code != hello.CodeBusy || !d.pause(ctx, limit) {
			return answer, nil
		}
	}
}

// cutShort tells whether something failed because its time ran out.
func cutShort(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, os.ErrDeadlineExceeded))
}

// pause waits before something is tried again. It reports false if there is no
// time for that before limit.
func (d *dialer) pause(ctx context.Context, limit time.Time) bool {
	d.refused++
	pause := busyPauses.Pause(d.refused)
	return time.Until(limit) > pause && backoff.Sleep(ctx, pause, nil)
}

// busyPauses are those between attempts at something that is busy. They stay short, or
// those who were refused often would wait longest, and newcomers would pass them.
var busyPauses = backoff.Policy{First: 4 * time.Millisecond, Most: 100 * time.Millisecond}

func (d *dialer) askOnce(ctx context.Context) (hello.Answer, error) {
	for {
		began, known := time.Now(), d.r.peers.verbena(d.addr)
		if d.hellos == hello.MaxCandidates {
			d.hangUp() // the server reads one more, and then no other
		}
		fresh := d.conn == nil
		if fresh {
			if err := d.open(ctx); err != nil {
				return hello.Answer{}, d.error(err)
			}
		}
		timeout, whole := d.helloTimeout(ctx, known)
		answer, err := d.exchange(ctx, timeout)
		if err == nil {
			return answer, d.note(answer)
		}
		d.hangUp()
		if ctx.Err() == nil && (!fresh || !known && !errors.Is(err, hello.ErrNotHello) && d.r.peers.verbena(d.addr)) {
			// The connection was no longer clean, or another dial has found out
			// meanwhile that the server is only slow.
			continue
		}
		return hello.Answer{}, d.judge(ctx, err, began, whole)
	}
}

// open connects to the port.
func (d *dialer) open(ctx context.Context) error {
	network, address := splitAddress(d.addr)
	limit, ok := ctx.Deadline()
	if !ok {
		limit = time.Now().Add(d.r.cfg.ConnectTimeout)
	}
	for {
		conn, err := d.r.cfg.Connect(ctx, network, address)
		if err == nil {
			d.conn, d.hellos = conn, 0
			return nil
		}
		// A Unix socket says so when its queue is full; TCP waits.
		if network != "unix" || !errors.Is(err, syscall.EAGAIN) || !d.pause(ctx, limit) {
			return err
		}
	}
}

// helloTimeout is how long an answer to a hello may take, and whether that is the
// whole deadline of this side's own.
func (d *dialer) helloTimeout(ctx context.Context, known bool) (timeout time.Duration, whole bool) {
	timeout, share := d.r.cfg.HelloTimeout, time.Duration(3)
	if known {
		timeout, share = max(timeout, d.r.cfg.ConnectTimeout), 2
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		return timeout, true
	}
	left := max(time.Until(deadline)/share, time.Millisecond)
	return min(timeout, left), left >= timeout
}

// note remembers what an answer tells.
func (d *dialer) note(answer hello.Answer) error {
	d.r.peers.answered(d.addr)
	d.features = answer.Features
	d.selection.SameHost = string(answer.Host) == string(d.r.host[:])
	for _, v := range answer.Verdicts {
		if c := d.selection.candidate(v.Name); c != nil && c.Reason == "" {
			c.Reason, c.later = "the server: "+v.Text, !slices.Contains(lastingVerdicts, v.Text)
		}
	}
	for _, name := range answer.Passing {
		d.selection.pass(name)
	}
	if answer.Accept != nil && d.offered(answer.Accept.Name) < 0 {
		return d.error(fmt.Errorf("%w: it accepted %q, which was not offered", ErrProtocol, answer.Accept.Name))
	}
	return nil
}

func (d *dialer) exchange(ctx context.Context, timeout time.Duration) (hello.Answer, error) {
	out, err := (&hello.Hello{
		Least: hello.LeastVersion, Greatest: hello.Version, Service: d.service, Probe: d.probe,
		Host: d.r.host[:], Network: d.r.network, Candidates: d.offers, Failed: d.failed, Software: software,
		Features: d.r.features,
	}).Encode()
	if err != nil {
		return hello.Answer{}, err
	}
	stop, err := bindContext(ctx, d.conn, time.Now().Add(timeout))
	if err != nil {
		return hello.Answer{}, err
	}
	d.hellos++
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
// server. Only an answer in another protocol tells for certain: who hangs up or
// stays silent may be starting, stopping, stopped or overrun. The caller may dial
// plainly all the same.
func (d *dialer) judge(ctx context.Context, err error, began time.Time, whole bool) error {
	silent, closed := errors.Is(err, os.ErrDeadlineExceeded), hungUpBy(err)
	switch {
	case ctx.Err() != nil:
		return d.error(fmt.Errorf("waiting for the answer to the hello: %w", context.Cause(ctx)))
	case errors.Is(err, hello.ErrNotHello):
		return &LegacyPeerError{Addr: d.addr, Until: d.r.peers.foreign(d.addr, d.r.cfg.LegacyExpiry), Err: err}
	case !silent && !closed:
		return d.error(err)
	case d.r.peers.verbena(d.addr):
		return d.error(fmt.Errorf("a server that has spoken Verbena before did not answer the hello: %w", err))
	}
	legacy := &LegacyPeerError{Addr: d.addr, Err: errors.New("it did not answer the hello in time")}
	if closed {
		legacy.Err = errors.New("it closed the connection at the hello")
	}
	if whole || closed {
		legacy.Until, _ = d.r.peers.silence(d.addr, began, d.r.cfg.HelloTimeout, d.r.cfg.LegacyExpiry)
	} else if !d.probe {
		d.r.lookAgain(d.addr) // with the time that it takes
	}
	return legacy
}

// hungUpBy tells whether err means that the peer closed or reset the connection.
func hungUpBy(err error) bool {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
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

// dialLane connects to a server again, for the lane of an endpoint.
func (r *Runtime) dialLane(ctx context.Context, addr string) (net.Conn, error) {
	ctx, end, err := r.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	d := dialer{r: r, addr: addr, service: laneService, wanted: TransportTCP, group: r.own}
	if err := d.propose(); err != nil {
		return nil, err
	}
	answer, err := d.ask(ctx)
	if err == nil && answer.Refusal != nil {
		err = refused(addr, laneService, answer.Refusal)
	}
	if err != nil {
		d.hangUp()
		return nil, err
	}
	return d.conn, nil
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
	e.origin, e.trusted = originOf(d.conn, true), d.trusted
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

func (d *dialer) hangUp() {
	if d.conn != nil {
		_ = d.conn.Close() // nothing is on its way
		d.conn, d.hellos = nil, 0
	}
}
