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

func (d *dialer) hangUp() {
	if d.conn != nil {
		_ = d.conn.Close() // nothing is on its way
		d.conn, d.hellos = nil, 0
	}
}
