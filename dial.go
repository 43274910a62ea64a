package verbena

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
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
	//
	// Trust is transitive over shared memory. A peer that is trusted, and whose own group
	// relays to others, may let those read it whom it trusts itself: whole regions, in which
	// lies what any peer of this group has sent. Whom this side does not trust it shows only
	// memory with what it sends to that peer, and this the peer may pass on, as it may the
	// bytes.
	Trusted bool
	// InPlace says that long messages of the peer, requests and answers of calls among
	// them, may be handed out as they lie in its memory, where the transport reaches that:
	// over shared memory. They are not copied then. In turn
	//
	//   - the peer, if it is faulty or malicious, can change them while they are read: what
	//     is checked is copied first;
	//   - nobody here may write to them;
	//   - in a group with Relay they are sent on to a Trusted peer from where they lie, if
	//     both connections are within one user. The peer whose memory it is keeps it until the
	//     last of those has read it, and this side's Close waits for that. If it ends its
	//     endpoint before, nobody receives other bytes: the endpoints fail to which the message
	//     was sent on and that have yet to read it. Other endpoints are sent a copy;
	//   - until they are released the peer lacks the memory, and its Close waits;
	//   - they hold until this side's Close, or until the endpoint fails:
	//     [Buffer.Intact] tells.
	//
	// Up to half of the peer's offers are used so (half of its tuning's chunks), and only
	// messages of one offer, as those of [Endpoint.SendBuffer] are. The others are read.
	InPlace bool
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
	d := dialer{r: r, addr: addr, service: service, wanted: cfg.Transport, tuning: cfg.Tuning, trusted: cfg.Trusted, inPlace: cfg.InPlace}
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
	if err != nil && !errors.Is(err, ErrClosed) && (d.group.ctx.Err() != nil || !d.r.adopts(d.group)) {
		err = d.error(fmt.Errorf("%w: %w", ErrClosed, err)) // the group ended it, or the runtime
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

// Connect makes a connection as the runtime's dials do: see [Config].Connect. Whoever dials
// a peer plainly, after a [*LegacyPeerError], takes the same way with it.
func (r *Runtime) Connect(ctx context.Context, network, address string) (net.Conn, error) {
	return r.cfg.Connect(ctx, network, address)
}

// Forget drops what is known about addr, so that the next dial tries it and every
// transport.
func (r *Runtime) Forget(addr string) { r.peers.forget(addr) }

// A dialer is one Dial. Candidates that turn out not to work are left out of
// the next hello, on the same connection if that is still clean.
type dialer struct {
	r             *Runtime
	addr, service string
	wanted        string
	group         *Group
	tuning        TuningTable
	trusted       bool
	inPlace       bool
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

	none      bool      // the last attempt has failed for a reason of that moment
	shortages int       // attempts for which an end had no room
	patience  time.Time // no further one begins after that
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
		if err != nil && d.none && cutShort(ctx, err) {
			break // it waited for memory until then
		}
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
		if d.none && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			break // likewise
		}
		if ctx.Err() != nil {
			return nil, d.error(fmt.Errorf("%s: %w", answer.Accept.Name, errors.Join(context.Cause(ctx), err)))
		}
		if worthRepeating(err) && d.pause(ctx, d.until) {
			continue // with a new token
		}
		d.none = passing(err)
		if exhausted(err) && len(d.offers) == 1 && d.waitForRoom(ctx, err) {
			continue
		}
		d.drop(answer.Accept.Name, err)
	}
	return nil, &SelectionError{Service: d.service, Wanted: d.wanted, Selection: d.selection, temporary: d.none}
}

// waitForRoom waits before the last candidate is tried again, for whose endpoint an end
// had no room: others may give some back. It reports false if there is no time for that.
func (d *dialer) waitForRoom(ctx context.Context, err error) bool {
	d.selection.note(d.offers[0].Name, "could not be connected: "+err.Error())
	d.selection.pass(d.offers[0].Name)
	if d.shortages++; d.shortages == 1 {
		var ok bool
		if d.patience, ok = ctx.Deadline(); !ok {
			d.patience = time.Now().Add(d.r.cfg.ConnectTimeout)
		}
	}
	d.hangUp() // the server has no handshake open for it meanwhile
	pause := roomPauses.Pause(d.shortages)
	if time.Until(d.patience) <= pause || !backoff.Sleep(ctx, pause, nil) {
		return false
	}
	d.trying = "" // it gets its time anew
	return true
}

// roomPauses are those between attempts at a peer that has no room for an endpoint.
var roomPauses = backoff.Policy{First: 20 * time.Millisecond, Most: time.Second}

func (d *dialer) error(err error) error {
	return fmt.Errorf("verbena: dial %s at %s: %w", d.service, d.addr, err)
}
