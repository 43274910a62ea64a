package pressure

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestParseOwn(t *testing.T) {
	for text, want := range map[string]Own{
		"": {},
		"Name:\tx\nVmRSS:\t    3000 kB\nRssAnon:\t    1000 kB\nRssFile:\t    1500 kB\nRssShmem:\t     500 kB\nHugetlbPages:\t    2048 kB\n": {Resident: 1000 << 10, Shared: 500 << 10, Huge: 2 << 20},
		"VmRSS: 3000 kB\n": {Resident: 3000 << 10},
		"VmRSS: -1 kB\nRssAnon: 5\nHugetlbPages: x kB\nVmRSS: 99999999999999999999 kB\n": {},
	} {
		if got := parseOwn([]byte(text)); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
	if goMemory() < 1<<20 {
		t.Errorf("Go has %d bytes", goMemory())
	}
}

// What a process has registered counts whether it has been touched or not, and once.
func TestExpect(t *testing.T) {
	for _, c := range []struct {
		what             string
		used             int64
		own              Own
		registered, want int64 // want is due
	}{
		{"nothing registered", 50, Own{Resident: 30, Heap: 40}, 0, 0},
		{"nothing touched", 50, Own{Resident: 30, Heap: 30}, 60, 60},
		{"all touched", 110, Own{Resident: 90, Heap: 30}, 60, 0},
		{"half of it touched", 80, Own{Resident: 60, Heap: 30}, 60, 30},
		{"Go's memory not touched either", 40, Own{Resident: 20, Heap: 30}, 60, 70},
		{"huge pages, which are not counted", 50, Own{Resident: 30, Huge: 64, Heap: 30}, 60, 0},
		{"what is resident is not known", 50, Own{Heap: 30}, 60, 40},
		{"registered memory that is shared", 50, Own{Resident: 10, Shared: 20, Heap: 30}, 60, 60},
		{"peers' memory that is mapped", 110, Own{Resident: 10, Shared: 500, Heap: 30}, 60, 20},
		{"more is resident than used", 50, Own{Resident: 70, Heap: 30}, 60, 40},
	} {
		s := Sample{Scopes: []Scope{{Used: c.used, Limit: 200, High: unlimited}}, Own: c.own}
		s.expect(c.registered)
		if got := s.Scopes[0].Due; got != c.want || s.Scopes[0].room() != 200-c.used-c.want {
			t.Errorf("%s: %d are due, want %d; room %d", c.what, got, c.want, s.Scopes[0].room())
		}
	}
}

// A process that registers more than its cgroup has room for hears of it before it has
// touched any of that, and those that take memory at the same time are counted.
func TestRegisteredMemoryIsPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched()
		const size = 64 << 20
		w.sample = func() Sample {
			return Sample{At: time.Now(), Scopes: []Scope{{Name: "/c", Limit: size, High: unlimited, Used: 4 << 20}}, Own: Own{Resident: 4 << 20, Heap: 4 << 20}}
		}
		registered, last := int64(0), Reading{}
		defer w.Subscribe(func(r Reading) { last = r }, func() int64 { return registered })()
		for last.Level == Calm && registered < 2*size {
			registered += 1 << 20 // by many at once: the use does not follow
			w.Take(1 << 20)
		}
		if most := int64(size - 4<<20); registered > most || registered < most/2 || !strings.Contains(last.Why, "registered") {
			t.Errorf("%d bytes of %d were registered when it was %s: %s", registered, most, last.Level, last.Why)
		}
		w.mu.Lock() // under which both are called
		registered = 0
		w.mu.Unlock()
		time.Sleep(time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		if last.Level != Calm {
			t.Errorf("it stays %s: %s", last.Level, last.Why)
		}
	})
}
