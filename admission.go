package verbena

import (
	"container/list"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

// An admission is the connections of a listener whose handshake is not over. It
// bounds them, in all and for each address they come from, and says which of
// them gives way to a new one. The listener's mu guards it.
type admission struct {
	limit, share int
	// patience is how long a connection is left alone when its equals want its
	// place: a handshake in a storm of dials has to get its turn of a processor.
	patience time.Duration

	total      int
	sources    map[string]*source
	incomplete list.List // of *handshake: all that may give way, oldest first
	refusals   list.List // of net.Conn: those that are only told to go, oldest first
}

// A source is what has come from one address.
type source struct {
	total      int
	incomplete list.List // as above
}

func newAdmission(limit int, patience time.Duration) admission {
	return admission{limit: limit, share: max((limit+1)/2, 1), patience: patience, sources: map[string]*source{}}
}

// admit takes h in. If somebody has to give way for it, that is the victim,
// which has been taken out and is to be ended. It reports false if there is no
// room for h.
func (a *admission) admit(h *handshake) (victim *handshake, ok bool) {
	s := a.sources[h.source]
	if s == nil {
		s = &source{}
	}
	switch {
	case s.total >= a.share:
		victim = front(&s.incomplete)
		if victim == nil || h.arrived.Sub(victim.arrived) < a.patience {
			return nil, false
		}
	case a.total >= a.limit:
		victim = front(&a.incomplete)
		if victim == nil {
			return nil, false
		}
		// Somebody who has more gives way at once.
		if a.sources[victim.source].total <= s.total+1 && h.arrived.Sub(victim.arrived) < a.patience {
			return nil, false
		}
	}
	if victim != nil {
		a.leave(victim)
	}
	a.sources[h.source] = s // after leave, which may have dropped it
	a.total++
	s.total++
	h.counted = true
	h.place, h.sourcePlace = a.incomplete.PushBack(h), s.incomplete.PushBack(h)
	return victim, true
}

func front(l *list.List) *handshake {
	if e := l.Front(); e != nil {
		return e.Value.(*handshake)
	}
	return nil
}

// settle notes that h waits for nothing but this side: it gives way to nobody.
func (a *admission) settle(h *handshake) {
	if h.place != nil {
		a.incomplete.Remove(h.place)
		a.sources[h.source].incomplete.Remove(h.sourcePlace)
		h.place, h.sourcePlace = nil, nil
	}
}

// leave takes h out, once.
func (a *admission) leave(h *handshake) {
	if !h.counted {
		return
	}
	a.settle(h)
	h.counted = false
	a.total--
	s := a.sources[h.source]
	if s.total--; s.total == 0 {
		delete(a.sources, h.source)
	}
}

// endOldest frees the descriptor of the oldest one that may give way.
func (a *admission) endOldest(code hello.Code) {
	if h := front(&a.incomplete); h != nil {
		a.leave(h)
		h.end(code)
	}
}

// endAll ends everybody who waits for a peer.
func (a *admission) endAll(code hello.Code) {
	for e := a.incomplete.Front(); e != nil; e = e.Next() {
		e.Value.(*handshake).end(code)
	}
}

// refuse makes room to say no to a connection that is not let in, at the cost of
// the one that has been waiting for its hello for longest. refused gives it back.
func (a *admission) refuse(conn net.Conn) (place *list.Element) {
	if a.refusals.Len() >= a.limit/8+8 {
		oldest := a.refusals.Front()
		_ = oldest.Value.(net.Conn).Close() // ends the wait
		a.refusals.Remove(oldest)
	}
	return a.refusals.PushBack(conn)
}

func (a *admission) refused(place *list.Element) { a.refusals.Remove(place) }

// sourceOf names where a connection comes from: an address of IPv4, a network of
// IPv6 (whoever has one address there has all of it), a user of this host.
func sourceOf(conn net.Conn) string {
	if who, ok := socketCredentials(conn); ok {
		return "user " + strconv.FormatUint(uint64(who.UID), 10)
	}
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return ""
	}
	ip := tcp.AddrPort().Addr().Unmap()
	if ip.Is6() && !ip.IsLoopback() {
		return netip.PrefixFrom(ip, 64).Masked().String()
	}
	return ip.String()
}
