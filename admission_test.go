package verbena

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
)

// An address has half of the places and takes further ones from itself alone.
func TestAdmission(t *testing.T) {
	a := newAdmission(8, time.Second)
	var now time.Time
	enter := func(source string, after time.Duration) (h, victim *handshake, ok bool) {
		now = now.Add(after)
		h = &handshake{source: source, arrived: now}
		victim, ok = a.admit(h)
		return h, victim, ok
	}
	first, _, _ := enter("evil", 0)
	for range 3 {
		if _, victim, ok := enter("evil", 0); !ok || victim != nil {
			t.Fatal("no room for half of all", victim, ok)
		}
	}
	if _, _, ok := enter("evil", time.Second/2); ok {
		t.Error("one that has just come gave way")
	}
	other, victim, ok := enter("good", 0)
	if !ok || victim != nil {
		t.Error("an address with none has no room", victim, ok)
	}
	if _, victim, ok := enter("evil", time.Second); !ok || victim != first {
		t.Error("the oldest of its own did not give way", ok)
	}
	// Many addresses: who has more gives way at once.
	for _, source := range []string{"b", "b", "b"} {
		enter(source, 0)
	}
	if a.total != 8 {
		t.Fatalf("%d of 8", a.total)
	}
	if _, victim, ok := enter("c", 0); !ok || victim == nil || victim.source != "evil" {
		t.Error("a new address has no room", ok)
	}
	// What is complete gives way to nobody.
	for h := a.waiting.first(); h != nil; h = a.waiting.first() {
		a.settle(h)
	}
	if _, _, ok := enter("d", time.Hour); ok {
		t.Error("a complete one gave way")
	}
	a.leave(other)
	a.leave(other) // twice does not matter
	if _, _, ok := enter("d", 0); !ok || a.total != 8 {
		t.Error("the place of one that left is not free")
	}
	total := 0
	for _, s := range a.sources {
		total += s.total
	}
	if total != 8 {
		t.Errorf("sources count %d", total)
	}
}

// A flood from one address leaves the others alone: their dials are served while
// it lasts.
func TestFloodLeavesOthersAlone(t *testing.T) {
	p := worlds[0].pair(t, Config{}, ListenConfig{MaxHandshakes: 16, HelloTimeout: time.Hour})
	addr := p.listener.Addr().String()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		var open []net.Conn
		for {
			select {
			case <-stop:
				for _, c := range open {
					c.Close()
				}
				return
			default:
			}
			if c, err := from.Dial("tcp", addr); err == nil {
				c.Write(hello.Magic[:])
				open = append(open, c)
			}
			if len(open) > 100 {
				open[0].Close()
				open = open[1:]
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for range 20 {
		a, b := p.connect(t, "")
		a.Close()
		b.Close()
	}
}

// Who has said a whole hello passes those of its own address that have not, and
// nobody else. Those that wait for something after their hello are left alone for a
// while, and longer than the silent ones.
func TestWholeHelloPassesSilentOnes(t *testing.T) {
	a := newAdmission(8, time.Second)
	var now time.Time
	enter := func(source string, spoken bool) (h, victim *handshake, ok bool) {
		now = now.Add(time.Millisecond)
		h = &handshake{source: source, arrived: now, spoken: spoken}
		victim, ok = a.admit(h)
		return h, victim, ok
	}
	heard, _, _ := enter("here", false)
	a.hear(heard)
	first, _, _ := enter("here", false)
	second, _, _ := enter("here", false)
	late, _, _ := enter("here", false)
	a.hear(late)
	if _, _, ok := enter("here", false); ok {
		t.Error("a silent one passed another")
	}
	for i, want := range []*handshake{first, second, nil} {
		_, victim, ok := enter("here", true)
		if ok != (want != nil) || victim != want {
			t.Errorf("whole hello %d: %t, and the one that gave way is %p of %p", i, ok, victim, want)
		}
	}
	// Those of other addresses do not give way to it.
	for range 4 {
		enter("there", false)
	}
	if _, victim, ok := enter("here", true); ok {
		t.Error("it passed", victim.source)
	}
	if _, victim, ok := enter("elsewhere", true); !ok || victim.source != "there" {
		t.Error("an address that has none finds no room")
	}
	// After a while the oldest gives way, a silent one first.
	now = now.Add(time.Second)
	enter("there", false)
	if _, victim, ok := enter("there", false); !ok || victim.spoken {
		t.Error("no silent one gave way")
	}
	if _, victim, ok := enter("here", false); !ok || victim != heard {
		t.Error("the oldest one did not give way")
	}
}

func full(l *Listener, n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.admission.total == n
}

// A dial from an address that fills all its places with silence is served at once,
// whatever the silent ones have said of a hello.
func TestSilenceFromTheOwnAddress(t *testing.T) {
	for _, first := range []string{"", "\x89V", string(hello.Magic[:]), string(hello.Magic[:]) + "\x00\x00"} {
		p := worlds[0].pair(t, Config{}, ListenConfig{MaxHandshakes: 8, HelloTimeout: time.Hour})
		p.listener.mu.Lock()
		p.listener.admission.patience, p.listener.admission.outside = time.Hour, time.Hour
		p.listener.mu.Unlock()
		for range 4 {
			silentClient(t, p.listener.Addr().String(), first)
		}
		for ctx := testContext(t); ctx.Err() == nil && !full(p.listener, 4); runtime.Gosched() {
		}
		for range 6 { // more than there are silent ones
			a, b := p.connect(t, "")
			a.Close()
			b.Close()
		}
	}
}

// A peer for which there is no room is told so.
func TestBusyIsTold(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{}, ListenConfig{MaxHandshakes: 2, HelloTimeout: time.Hour})
	whole, err := (&hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Host: p.client.host[:], Candidates: []hello.Candidate{{Name: w.name}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	p.listener.mu.Lock()
	p.listener.admission.patience, p.listener.admission.outside = time.Hour, time.Hour
	p.listener.mu.Unlock()
	addr := p.listener.Addr().String()
	if _, answer, err := exchange(t, addr, whole); err != nil || answer.Accept == nil { // and waits for the peer to connect
		t.Fatal(answer, err)
	}
	conn, answer, err := exchange(t, addr, whole)
	for ctx := testContext(t); err != nil && ctx.Err() == nil; { // its hello came later than the server waits for one
		conn, answer, err = exchange(t, addr, whole)
	}
	if err != nil || answer.Refusal == nil || answer.Refusal.Code != hello.CodeBusy {
		t.Fatalf("no room: %+v, %v", answer, err)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after the refusal: %v", err)
	}
}

// A dial that waits for its transport when the listener closes learns that the
// server closes.
func TestClosingIsTold(t *testing.T) {
	var w world
	for _, w = range worlds {
		if w.name == "fakeband" {
			break
		}
	}
	p := w.pair(t, Config{}, ListenConfig{HelloTimeout: time.Hour})
	first, err := (&hello.Hello{Least: 1, Greatest: 1, Service: "test/1", Host: p.client.host[:], Candidates: []hello.Candidate{{Name: w.name}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	conn, answer, err := exchange(t, p.listener.Addr().String(), first)
	if err != nil || answer.Accept == nil {
		t.Fatal(answer, err)
	}
	if err := p.listener.Close(); err != nil {
		t.Fatal(err)
	}
	answer, err = hello.ReadAnswer(conn)
	if err != nil || answer.Refusal == nil || answer.Refusal.Code != hello.CodeClosing {
		t.Errorf("got %+v, %v", answer, err)
	}
}
