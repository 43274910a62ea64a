//go:build linux

package verbena

import (
	"flag"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	idleFor   = flag.Duration("idle", 0, "measure idle connections for so long")
	idleCount = flag.Int("idle-connections", 1000, "how many")
)

// TestIdle measures what idle connections cost, both ends in this process:
//
//	go test . -run TestIdle -idle 30s -v
//
// It judges nothing: time is not this test's.
func TestIdle(t *testing.T) {
	if *idleFor == 0 {
		t.Skip("a measurement, run with -idle 30s")
	}
	for _, w := range worlds {
		if strings.HasPrefix(w.name, "fake") {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			before := resident(t)
			p := w.pair(t, Config{}, ListenConfig{})
			start := time.Now()
			for range *idleCount {
				a, b := p.connect(t, w.transport)
				for _, e := range []*Endpoint{a, b} {
					go func() { // as a server does
						for {
							m, err := e.Receive(t.Context())
							if err != nil {
								return
							}
							m.Release()
						}
					}()
				}
				if err := a.Send(p.ctx, 1, make([]byte, 1000)); err != nil {
					t.Fatal(err)
				}
			}
			setup := time.Since(start)
			debug.FreeOSMemory()
			time.Sleep(2 * time.Second) // so that the set-up is not measured
			cpu := cpuTime(t)
			time.Sleep(*idleFor) // it is the time that is measured
			used := cpuTime(t) - cpu
			t.Logf("%d connections, set up in %v each; idle for %v: %v of processor time, %.4f %% of a core; %d KiB resident a connection, both ends",
				*idleCount, (setup / time.Duration(*idleCount)).Round(time.Microsecond), *idleFor, used,
				100*used.Seconds()/idleFor.Seconds(), (resident(t)-before)/1024/(*idleCount))
		})
	}
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func resident(t *testing.T) int {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
