//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import "github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"

import (
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A route is one way to post a request and poll for its completion.
type route struct {
	name string
	once func(f *fake, l *SendList) bool
}

// routes has all ways; the cgo build tag cgobench adds one.
var routes = []route{
	{quirks.CallBlocking.String(), throughBinding},
	{quirks.CallNonBlockingPoll.String(), throughBinding},
	{quirks.CallNonBlocking.String(), throughBinding},
}

func throughBinding(f *fake, l *SendList) bool {
	posted, err := f.qp.PostSend(l, 1)
	if posted != 1 || err != nil {
		return false
	}
	n, err := f.cq.Poll(f.received)
	return n == 1 && err == nil
}

func (r route) prepare(b *testing.B) (*fake, *SendList) {
	b.Helper()
	mode := quirks.CallBlocking
	for _, m := range []quirks.CallMode{quirks.CallNonBlocking, quirks.CallNonBlockingPoll} {
		if m.String() == r.name {
			mode = m
		}
	}
	f := newFake(b, mode)
	f.onCQ.Available, f.onCQ.Refill = 1, 1
	l, err := f.arena.NewSendList(1, 1)
	if err != nil {
		b.Fatal(err)
	}
	return f, l
}

// One post and one poll over the stub operations.
//
//	go test -tags cgobench -run - -bench PostAndPoll ./rdma/ibverbs/internal/verbs
func BenchmarkPostAndPoll(b *testing.B) {
	for _, r := range routes {
		b.Run(r.name, func(b *testing.B) {
			f, l := r.prepare(b)
			b.ReportAllocs()
			for b.Loop() {
				if !r.once(f, l) {
					b.Fatal("it failed")
				}
			}
		})
	}
}

// The same, all routes in turns, as ratios of the medians of processor time to
// that of cgo (or of the first route, without the tag cgobench).
func BenchmarkPostAndPollInTurns(b *testing.B) {
	const rounds, each = 41, 20000
	fakes, lists := make([]*fake, len(routes)), make([]*SendList, len(routes))
	for i, r := range routes {
		fakes[i], lists[i] = r.prepare(b)
	}
	for b.Loop() {
		cost := make([][]float64, len(routes))
		for round := range rounds {
			for turn := range routes {
				i := (round + turn) % len(routes)
				once, f, l := routes[i].once, fakes[i], lists[i]
				before := processorTime()
				for range each {
					if !once(f, l) {
						b.Fatal("it failed")
					}
				}
				cost[i] = append(cost[i], float64(processorTime()-before)/each)
			}
		}
		for _, c := range cost {
			slices.Sort(c)
		}
		last := len(routes) - 1
		for i, r := range routes {
			name := strings.ReplaceAll(r.name, " ", "-")
			b.ReportMetric(cost[i][rounds/2], name+"-ns")
			if i != last {
				b.ReportMetric(cost[i][rounds/2]/cost[last][rounds/2], name+"/"+routes[last].name)
			}
		}
	}
	b.ReportMetric(0, "ns/op") // says nothing here
}

// processorTime is what the process has used of its processors.
func processorTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
