package namenode

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pulse has a thread on each processor, ahead of all other programs, that sleeps for a
// millisecond at a time. Where it wakes up late, its processor ran no program at all: the host of a
// virtual machine had taken it, or the kernel had work of its own. It belongs into a process
// without other work, whose scheduler and collector it would tell of otherwise.
type pulse struct {
	mu      sync.Mutex
	gaps    []gap
	samples []sample
	stop    chan struct{}
	wg      sync.WaitGroup
}

// A sample is what the threads of a process, by their ids, and all programs had of the processors by a time.
type sample struct {
	at      time.Duration // on the system's monotonic clock
	threads map[string]turns
	idle    time.Duration // of all processors, since the system's start, to 10 ms
}

// turns are how long a thread ran, and how long it wanted to and had to wait for a processor.
type turns struct{ ran, waited time.Duration }

// sampleEvery is the pause between two samples, mostSamples how many are kept.
const (
	sampleEvery = 5 * time.Millisecond
	mostSamples = 4000
)

// A gap is a time in which a processor ran no program.
type gap struct {
	processor int
	from, to  time.Duration // on the system's monotonic clock
}

// leastGap is how late a thread must wake up to be noted.
const leastGap = 2 * time.Millisecond

// watch takes samples of a process until close.
func (p *pulse) watch(pid int) {
	p.wg.Go(func() {
		tick := time.NewTicker(sampleEvery)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				return
			case <-tick.C:
			}
			s := sampleOf(pid)
			p.mu.Lock()
			p.samples = append(p.samples[max(0, len(p.samples)+1-mostSamples):], s)
			p.mu.Unlock()
		}
	})
}

func sampleOf(pid int) sample {
	s := sample{at: monotonic(), threads: make(map[string]turns)}
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) // the pattern is good
	for _, name := range files {
		var t turns
		text, err := os.ReadFile(name)
		if err == nil { // else the thread has ended
			_, err = fmt.Sscan(string(text), &t.ran, &t.waited)
		}
		if err == nil {
			s.threads[name] = t
		}
	}
	if text, err := os.ReadFile("/proc/stat"); err == nil {
		var name string
		var user, nice, system, idle int64
		if _, err := fmt.Sscan(string(text), &name, &user, &nice, &system, &idle); err == nil {
			s.idle = time.Duration(idle) * 10 * time.Millisecond
		}
	}
	return s
}

// A share is what the threads of the watched process had, all together, and for how long the one that
// waited most had to.
type share struct{ ran, waited, longest, idle time.Duration }

// between returns that from the last sample before a time to the first one after another, or
// false if there are none.
func (p *pulse) between(from, to time.Duration) (out share, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first, last *sample
	for i := range p.samples {
		s := &p.samples[i]
		if s.at <= from {
			first = s
		}
		if s.at >= to && last == nil {
			last = s
		}
	}
	if first == nil || last == nil {
		return out, false
	}
	for id, t := range last.threads {
		was := first.threads[id]
		out.ran += t.ran - was.ran
		out.waited += t.waited - was.waited
		out.longest = max(out.longest, t.waited-was.waited)
	}
	out.idle = last.idle - first.idle
	return out, true
}

// tell prints what is known of a time.
func (p *pulse) tell(from, to time.Duration) {
	round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	sum, longest := p.within(from, to)
	fmt.Printf("SCALE     processors ran no program for %v of it, for %v at a time\n", round(sum), round(longest))
	if s, ok := p.between(from, to); ok {
		fmt.Printf("SCALE     around it the server's threads had %v of the processors and waited %v for one, one of them %v; processors were idle for %v\n",
			round(s.ran), round(s.waited), round(s.longest), s.idle)
	}
}

func (p *pulse) close() {
	close(p.stop)
	p.wg.Wait()
}

// within returns for how long processors stood still between two times, all together and the
// longest of them at a time.
func (p *pulse) within(from, to time.Duration) (sum, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.gaps {
		if both := min(g.to, to) - max(g.from, from); both > 0 {
			sum += both
			longest = max(longest, both)
		}
	}
	return sum, longest
}

// monotonic is the time since the machine's start, which all processes share.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // the clock exists
	}
	return time.Duration(now.Nano())
}

func TestPulseWithin(t *testing.T) {
	p := &pulse{gaps: []gap{{0, 10, 20}, {1, 15, 40}, {0, 50, 60}}}
	for _, c := range []struct{ from, to, sum, longest time.Duration }{
		{0, 10, 0, 0}, {0, 12, 2, 2}, {18, 30, 14, 12}, {0, 100, 45, 25}, {40, 50, 0, 0},
	} {
		if sum, longest := p.within(c.from, c.to); sum != c.sum || longest != c.longest {
			t.Errorf("%d to %d: %d and %d, want %d and %d", c.from, c.to, sum, longest, c.sum, c.longest)
		}
	}
}

func TestPulseBetween(t *testing.T) {
	at := func(at time.Duration, ran, waited time.Duration, idle time.Duration) sample {
		return sample{at: at, threads: map[string]turns{"1": {ran, waited}, "2": {2 * ran, 0}}, idle: idle}
	}
	p := &pulse{samples: []sample{at(10, 1, 0, 5), at(20, 2, 3, 6), at(30, 5, 13, 7), at(40, 9, 14, 9)}}
	p.samples[2].threads["3"] = turns{1, 2} // begun meanwhile
	if got, ok := p.between(22, 28); !ok || got != (share{ran: 10, waited: 12, longest: 10, idle: 1}) {
		t.Errorf("%+v, %v", got, ok)
	}
	if _, ok := p.between(5, 15); ok {
		t.Error("there is no sample before 5")
	}
	if _, ok := p.between(35, 45); ok {
		t.Error("there is no sample after 45")
	}
	if s := sampleOf(os.Getpid()); runtime.GOOS == "linux" && (len(s.threads) == 0 || s.idle == 0) {
		t.Errorf("of this process: %+v", s)
	}
}
