package iwarp

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// silentConns opens connections that say nothing.
func silentConns(t *testing.T, address string, count int) (conns []net.Conn) {
	t.Helper()
	for range count {
		conn, err := net.DialTimeout("tcp", address, within)
		if err != nil {
			t.Error(err)
			break
		}
		conns = append(conns, conn)
	}
	t.Cleanup(func() {
		for _, c := range conns {
			_ = c.Close()
		}
	})
	return conns
}

// Connections that say nothing, more than a listener has places for, keep nobody from
// connecting, be they of a user who is let in or of another.
func TestSilentConnections(t *testing.T) {
	for name, dial := range map[string]func(t *testing.T, f func()){
		"of the own user":   func(_ *testing.T, f func()) { f() },
		"of a refused user": func(t *testing.T, f func()) { asUser(t, nobody, f) },
	} {
		t.Run(name, func(t *testing.T) {
			log := &logged{wake: make(chan struct{}, 1)}
			// Their time is not over before that of the good connections.
			d := testDevice(t, Config{setupTimeout: 10 * within, lingerTimeout: 10 * within, Logger: slog.New(slog.NewTextHandler(log, nil))})
			l, err := d.Listen(bounded(t), "")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			dial(t, func() { silentConns(t, l.Address(), maxPending+3*maxRefusals) })
			connects(t, d, l)
			// Those of the other user came before.
			if places := len(l.(*listener).pending.places); name == "of a refused user" && places > 1 {
				t.Errorf("they hold %d places", places)
			}
			log.has(t, "refused a connection")
			if lines := strings.Count(log.all(), "refused a connection"); lines > maxWarnings+int(within/time.Second) {
				t.Errorf("%d lines are logged", lines)
			}
		})
	}
}

// The source with the most silent connections loses the oldest that has sent nothing.
func TestWhoGivesWay(t *testing.T) {
	p := newPending()
	var ours, theirs []net.Conn
	next := func(user uint32) *arrival {
		ca, cb := tcpPair(t)
		t.Cleanup(func() { _, _ = ca.Close(), cb.Close() })
		ours, theirs = append(ours, cb), append(theirs, ca)
		a := newArrival(cb, origin{here: true, user: user})
		a.came = a.came.Add(-requestGrace)
		if !p.admit(t.Context(), a) {
			t.Fatal("no place")
		}
		return a
	}
	few := []*arrival{next(1), next(1), next(1)}
	many := []*arrival{next(2), next(2), next(2), next(2), next(2), next(2)}
	// What has come, and has not been read, stays.
	if _, err := theirs[len(few)+1].Write([]byte("Request")); err != nil {
		t.Fatal(err)
	}
	for !many[1].unread() {
		runtime.Gosched()
	}
	for range 3 {
		p.giveWay()
	}
	for i, a := range many {
		gaveWay := p.heard(a)
		if gaveWay != (i == 0 || i == 2 || i == 3) {
			t.Errorf("connection %d of many: gave way %v", i, gaveWay)
		}
		if !gaveWay {
			continue
		}
		if _, err := a.conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d of many is read on: %v", i, err)
		}
	}
	for _, a := range few {
		if p.heard(a) {
			t.Error("a connection of another source gave way")
		}
	}
	if len(p.silent) != 0 {
		t.Errorf("%d sources are left", len(p.silent))
	}
	p.giveWay() // nobody can
}

// A connection that has come just now does not give way, unless its source has very many.
func TestGraceOfRequests(t *testing.T) {
	p := newPending()
	next := func() *arrival {
		a := newArrival(deadlines{}, origin{here: true, user: 1})
		if !p.admit(t.Context(), a) {
			t.Fatal("no place")
		}
		return a
	}
	old, fresh := next(), next()
	old.came = old.came.Add(-requestGrace)
	fresh.came = fresh.came.Add(time.Hour)
	p.giveWay()
	p.giveWay()
	if !p.heard(old) || p.heard(fresh) {
		t.Error("not the old connection alone gave way")
	}
	for range silentFlood + 3 {
		fresh = next()
		fresh.came = fresh.came.Add(time.Hour)
	}
	for range 10 {
		p.giveWay()
	}
	if left := len(p.silent[fresh.from]); left != silentFlood {
		t.Errorf("of a flood %d are left, want %d", left, silentFlood)
	}
}

// deadlines are those of a connection that nobody reads.
type deadlines struct{ net.Conn }

func (deadlines) SetDeadline(time.Time) error { return nil }

// Networks of IPv6, and addresses of IPv4, are sources.
func TestNetworks(t *testing.T) {
	for address, want := range map[string]string{
		"10.1.2.3:5":          "10.1.2.3/32",
		"[::ffff:10.1.2.3]:5": "10.1.2.3/32",
		"[2001:db8::7]:5":     "2001:db8::/64",
		"[fe80::7%lo]:5":      "fe80::/64",
	} {
		if got := network(addressed{remote: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}); got.String() != want {
			t.Errorf("%s: network %s, want %s", address, got, want)
		}
	}
}

// A peer that causes a line each time fills no log.
func TestWarnings(t *testing.T) {
	var w warnings
	now := time.Now()
	allowed := func(at time.Time, times int) (lines, omitted int) {
		for range times {
			if n, ok := w.allow(at); ok {
				lines, omitted = lines+1, omitted+n
			}
		}
		return lines, omitted
	}
	if lines, omitted := allowed(now, 100); lines != maxWarnings || omitted != 0 {
		t.Errorf("at first %d lines, %d omitted", lines, omitted)
	}
	if lines, omitted := allowed(now.Add(2*time.Second), 100); lines != 2 || omitted != 100-maxWarnings {
		t.Errorf("2 s later %d lines, %d omitted", lines, omitted)
	}
	if lines, _ := allowed(now.Add(time.Hour), 100); lines != maxWarnings {
		t.Errorf("an hour later %d lines", lines)
	}
}
