package pressure

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// a sample in which a cgroup of 1,024 bytes has so much left.
func sampleWith(room int64) Sample {
	return Sample{Scopes: []Scope{
		{Name: machine, Limit: 1 << 40, High: unlimited, Used: 0},
		{Name: "/inner", Limit: unlimited, High: unlimited, Used: 1024 - room},
		{Name: "/outer", Limit: 1024, High: unlimited, Used: 1024 - room},
	}}
}

func TestLevels(t *testing.T) {
	start := time.Unix(1, 0)
	at := func(s Sample, seconds int) Sample {
		s.At = start.Add(time.Duration(seconds) * time.Second)
		return s
	}
	calm := at(sampleWith(1000), 0)
	stalls := func(own bool, available int64, some, full time.Duration) Sample {
		s := at(sampleWith(1000), 5)
		s.Stalled, s.Machine, s.Stalls = true, !own, Stalls{some, full}
		s.Scopes[0].Used = s.Scopes[0].Limit - available
		return s
	}
	high := sampleWith(500)
	high.Scopes[1].High = 400
	killed := sampleWith(1000)
	killed.Kills = 1
	for _, test := range []struct {
		what     string
		now      Sample
		reported bool
		want     Level
	}{
		{"room", at(sampleWith(128), 5), false, Calm},
		{"less than an eighth", at(sampleWith(127), 5), false, Tight},
		{"less than a thirty-second", at(sampleWith(31), 5), false, Critical},
		{"more than all", at(sampleWith(-5), 5), false, Critical},
		{"above memory.high", at(high, 5), false, Tight},
		{"killed", at(killed, 5), false, Critical},
		{"few stalls", stalls(true, 1<<40, 499*time.Millisecond, 0), false, Calm},
		{"few stalls, reported", stalls(true, 1<<40, 499*time.Millisecond, 0), true, Tight},
		{"some stalls", stalls(true, 1<<40, 500*time.Millisecond, 499*time.Millisecond), false, Tight},
		{"full stalls", stalls(true, 1<<40, time.Second, 500*time.Millisecond), false, Critical},
		{"the machine's stalls, which has memory", stalls(false, 1<<39, 5*time.Second, 5*time.Second), true, Calm},
		{"the machine's stalls, which is short", stalls(false, 1<<37-1, 500*time.Millisecond, 0), false, Tight},
		{"a full machine", stalls(true, 1<<36-1, 0, 0), false, Tight},
		{"a machine that is quite full", stalls(true, 1<<34-1, 0, 0), false, Critical},
	} {
		base := calm
		base.Stalled, base.Machine = test.now.Stalled, test.now.Machine
		if level, why := judge(base, test.now, test.reported); level != test.want || (why == "") != (level == Calm) {
			t.Errorf("%s: %s, %q; want %s", test.what, level, why, test.want)
		}
	}
}

// A watched system of which the test says what is left.
type watched struct {
	*Watcher
	room  int64
	looks int
}

func newWatched() *watched {
	w := &watched{room: 1000}
	w.Watcher = newWatcher(func() Sample {
		w.looks++
		s := sampleWith(w.room)
		s.At = time.Now()
		return s
	}, func() waiter { return newSleeper() })
	return w
}

// leave says what is left from now on.
func (w *watched) leave(room int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room = room
}

// looked is how often it has looked.
func (w *watched) looked() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.looks
}

// Subscribers hear of pressure while it lasts, and once when it is over; nobody
// looks before the first has come or after the last has gone.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched()
		var told []Level
		tell := func(r Reading) { told = append(told, r.Level) }
		heard := func(want ...Level) {
			t.Helper()
			w.mu.Lock() // under which tell is called
			defer w.mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("told %v, want %v", told, want)
			}
			told = nil
		}
		time.Sleep(time.Hour)
		if w.looked() != 0 {
			t.Error("it looks for nobody")
		}
		stop := w.Subscribe(tell, nil)
		time.Sleep(time.Minute + time.Millisecond)
		if heard(); w.looked() != 13 {
			t.Errorf("%d looks in a calm minute", w.looked())
		}
		w.leave(100)
		time.Sleep(calmInterval)
		heard(Tight)
		w.leave(20)
		time.Sleep(2 * tightInterval)
		heard(Critical, Critical)
		// One who comes later hears of it at once.
		var late Level
		stopLate := w.Subscribe(func(r Reading) { late = r.Level }, nil)
		if late != Critical {
			t.Errorf("told %s", late)
		}
		stopLate()
		w.leave(1000)
		time.Sleep(5 * tightInterval)
		heard(Critical, Critical, Critical, Calm) // it lasts for another 3 s
		stop()
		stop()
		looks := w.looked()
		time.Sleep(time.Hour)
		if w.looked() != looks {
			t.Error("it looks for nobody")
		}
		stop = w.Subscribe(tell, nil)
		stop()
	})
}

// Who takes much is stopped by a look before it has all.
func TestTakeLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched()
		const size = 64 << 20 // in place of 1,024
		w.sample = func() Sample {
			w.looks++
			return Sample{At: time.Now(), Scopes: []Scope{{Name: "/c", Limit: size, High: unlimited, Used: size - w.room}}}
		}
		w.room = size
		level := Calm
		defer w.Subscribe(func(r Reading) { level = r.Level }, nil)()
		const piece = 128 << 10
		for range 10 * size / piece {
			w.Take(piece)
			if level > Tight {
				break
			}
			w.room -= piece
		}
		if w.room < size/32-2*piece || w.room > size/32 || level != Critical {
			t.Errorf("%d of %d bytes were left when the level was %s", w.room, size, level)
		}
		if w.looks > 40 {
			t.Errorf("%d looks", w.looks)
		}
	})
}

// There is room as long as what may be taken until the next look, and the request, leave
// more than what is critical.
func TestHasRoom(t *testing.T) {
	w := newWatched()
	if !w.HasRoom(1 << 40) {
		t.Error("nothing is known, and there is no room")
	}
	for _, test := range []struct{ room, least int64 }{{1000, 718}, {400, 268}, {100, 43}, {40, -2}, {0, -32}} {
		w.leave(test.room)
		w.mu.Lock()
		w.look(false)
		w.mu.Unlock()
		if !w.HasRoom(test.least) || w.HasRoom(test.least+1) {
			t.Errorf("of %d bytes of 1,024 left: %d %t, %d %t", test.room, test.least, w.HasRoom(test.least), test.least+1, w.HasRoom(test.least+1))
		}
	}
}
