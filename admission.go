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

	total    int
	sources  map[string]*source
	waiting  waiting
	refusals list.List // of net.Conn: those for which there is no room yet, oldest first
	// outside is how long a connection for which there is no room may take to say its
	// hello.
	outside time.Duration
}

// waiting are the handshakes that may give way, of *handshake, oldest first: those
// whose hello has not arrived whole, and those that wait for something else.
type waiting struct {
	silent, spoken list.List
}

func (w *waiting) of(h *handshake) *list.List {
	if h.spoken {
		return &w.spoken
	}
	return &w.silent
}

// first is the oldest, of the silent ones if there are some.
func (w *waiting) first() *handshake {
	if h := front(&w.silent); h != nil {
		return h
	}
	return front(&w.spoken)
}

// A source is what has come from one address.
type source struct {
	total   int
	waiting waiting
}

func newAdmission(limit int, patience time.Duration) admission {
	return admission{limit: limit, share: max((limit+1)/2, 1), patience: patience, outside: patienceBusy, sources: map[string]*source{}}
}

// admit takes h in. If somebody has to give way for it, that is the victim,
// which has been taken out and is to be ended. It reports false if there is no
// room for h.
func (a *admission) admit(h *handshake) (victim *handshake, ok bool) {
	s := a.sources[h.source]
	if s == nil {
		s = &source{}
	}
	if s.total >= a.share || a.total >= a.limit {
		if victim = a.victim(h, s); victim == nil {
			return nil, false
		}
		a.leave(victim)
	}
	a.sources[h.source] = s // after leave, which may have dropped it
	a.total++
	s.total++
	h.counted = true
	a.enter(h)
	return victim, true
}

// victim is who gives way to h, which came from s.
func (a *admission) victim(h *handshake, s *source) *handshake {
	// A whole hello does not wait behind those of its own address that say nothing.
	if v := front(&s.waiting.silent); v != nil && h.spoken {
		return v
	}
	w, full := &a.waiting, s.total >= a.share
	if full {
		w = &s.waiting
	}
	for _, l := range []*list.List{&w.silent, &w.spoken} {
		v := front(l)
		// Somebody who has more gives way at once.
		if v != nil && (h.arrived.Sub(v.arrived) >= a.patience || !full && a.sources[v.source].total > s.total+1) {
			return v
		}
	}
	return nil
}

func front(l *list.List) *handshake {
	if e := l.Front(); e != nil {
		return e.Value.(*handshake)
	}
	return nil
}

// enter puts h among those that may give way.
func (a *admission) enter(h *handshake) {
	h.place, h.sourcePlace = a.waiting.of(h).PushBack(h), a.sources[h.source].waiting.of(h).PushBack(h)
}

// hear notes that the hello of h has arrived whole.
func (a *admission) hear(h *handshake) {
	if h.place != nil && !h.spoken {
		a.settle(h)
		h.spoken = true
		a.enter(h)
	}
}

// settle notes that h waits for nothing but this side: it gives way to nobody.
func (a *admission) settle(h *handshake) {
	if h.place != nil {
		a.waiting.of(h).Remove(h.place)
		a.sources[h.source].waiting.of(h).Remove(h.sourcePlace)
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
	if h := a.waiting.first(); h != nil {
		a.leave(h)
		h.end(code)
	}
}

// endAll ends everybody who waits for a peer.
func (a *admission) endAll(code hello.Code) {
	for _, l := range []*list.List{&a.waiting.silent, &a.waiting.spoken} {
		for e := l.Front(); e != nil; e = e.Next() {
			e.Value.(*handshake).end(code)
		}
	}
}

// refuse makes room to hear a connection out that is not let in, at the cost of
// the one whose hello has been awaited for longest. refused gives it back.
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
