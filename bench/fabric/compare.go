package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

type measure = beside.Measure

const (
	nanoseconds = beside.Nanoseconds
	perSecond   = beside.PerSecond
	bandwidth   = beside.Bandwidth
)

// A comparison is a line of the table. Target 0 is none.
type comparison struct {
	Name, Beside string
	Unit         string
	Target       float64
	AtLeast      bool // the ratio is to be at least Target; else at most
	Note         string
	ours, theirs measure
}

// comparisons are all lines, in the table's order.
func (b *bench) comparisons() []comparison {
	var list []comparison
	sizes := []struct {
		name string
		size int
		n    int // iterations of a peer that is as slow as memory
	}{{"8 B", 8, 2_000_000}, {"1 KiB", 1 << 10, 1_500_000}, {"64 KiB", 64 << 10, 120_000}}
	shm := func(more ...string) []string { return append([]string{"--transport", "shm"}, more...) }
	iwarp := func(more ...string) []string { return append([]string{"--transport", "iwarp"}, more...) }
	for _, s := range sizes {
		size := strconv.Itoa(s.size)
		list = append(list, comparison{
			Name: "shm, Send, one way, " + s.name + ", spinning", Beside: "ucp_am_lat, posix", Unit: nanoseconds, Target: 0.8,
			ours: b.ours(p50, shm("--size", size)...), theirs: b.ucx(ucxMedian, "posix", "ucp_am_lat", s.size, s.n),
		})
	}
	for _, s := range sizes {
		size := strconv.Itoa(s.size)
		list = append(list, comparison{
			Name: "shm, Send, one way, " + s.name + ", every line read", Beside: "ucp_am_lat, posix (payload not read)", Unit: nanoseconds, Target: 1.0,
			ours: b.ours(p50, shm("--size", size, "--read-payload")...), theirs: b.ucx(ucxMedian, "posix", "ucp_am_lat", s.size, s.n),
		})
	}
	for _, s := range sizes {
		size := strconv.Itoa(s.size)
		list = append(list, comparison{
			Name: "shm, Write, one way, " + s.name + ", flag polled", Beside: "ucp_put_lat, posix", Unit: nanoseconds, Target: 1.15,
			ours: b.ours(p50, shm("--test", "write", "--size", size)...), theirs: b.ucx(ucxMedian, "posix", "ucp_put_lat", s.size, 2*s.n),
		})
	}
	for _, s := range sizes[:2] {
		size := strconv.Itoa(s.size)
		list = append(list, comparison{
			Name: "shm, Send, rate, " + s.name, Beside: "ucp_am_bw, posix", Unit: perSecond, Target: 2, AtLeast: true,
			ours: b.ours(opsPerS, shm("--mode", "rate", "--size", size)...), theirs: b.ucx(ucxRate, "posix", "ucp_am_bw", s.size, 4*s.n),
		})
	}
	list = append(list,
		comparison{
			Name: "shm, Send, bandwidth, 64 KiB", Beside: "ucp_am_bw, posix", Unit: bandwidth, Target: 2, AtLeast: true,
			ours: b.ours(bytesPerS, shm("--mode", "bw", "--size", "64K")...), theirs: b.ucx(ucxBytes, "posix", "ucp_am_bw", 64<<10, 250_000),
		},
		comparison{
			Name: "shm, Send, one way, 1 KiB, event mode", Beside: "bare futex hand-over, two processes", Unit: nanoseconds, Target: 1.3,
			ours: b.ours(p50, shm("--size", "1K", "--wait", "event")...),
			theirs: func(ctx context.Context) (float64, error) {
				return host.Number(ctx, "bare", "futex", "--duration", b.duration().String())
			},
		},
		comparison{
			Name: "iwarp, Write, streaming, 1 MiB, CRC on", Beside: "bare Go TCP stream, 1 MiB", Unit: bandwidth, Target: 0.9, AtLeast: true,
			ours: b.ours(bytesPerS, iwarp("--test", "write", "--mode", "bw", "--size", "1M")...),
			theirs: func(ctx context.Context) (float64, error) {
				return host.Number(ctx, "bare", "stream", "--bytes", "1048576", "--duration", b.duration().String())
			},
		},
		comparison{
			Name: "iwarp, Send, one way, 1 KiB, spinning", Beside: "ucp_am_lat, tcp", Unit: nanoseconds, Target: 1.15,
			ours: b.ours(p50, iwarp("--size", "1K")...), theirs: b.ucx(ucxMedian, "tcp", "ucp_am_lat", 1<<10, 70_000),
		},
		comparison{
			Name: "iwarp, Send, one way, 1 KiB, spinning", Beside: "bare Go ping-pong over TCP, spinning", Unit: nanoseconds, Target: 1.15,
			ours: b.ours(p50, iwarp("--size", "1K")...),
			theirs: func(ctx context.Context) (float64, error) {
				return host.Number(ctx, "bare", "pingpong", "--bytes", "1024", "--duration", b.duration().String())
			},
		},
		comparison{
			Name: "iwarp, Send, bandwidth, 64 KiB", Beside: "ucp_am_bw, tcp", Unit: bandwidth, Target: 1.5, AtLeast: true,
			ours: b.ours(bytesPerS, iwarp("--mode", "bw", "--size", "64K")...), theirs: b.ucx(ucxBytes, "tcp", "ucp_am_bw", 64<<10, 20_000),
		},
		comparison{
			Name: "shm, Send, one way, 1 KiB, spinning", Beside: "fi_pingpong, shm (its mean)", Unit: nanoseconds,
			ours: b.ours(p50, shm("--size", "1K")...), theirs: b.libfabric("shm", "rdm", 1<<10, 100_000),
		},
		comparison{
			Name: "iwarp, Send, one way, 1 KiB, spinning", Beside: "fi_pingpong, tcp (its mean)", Unit: nanoseconds,
			ours: b.ours(p50, iwarp("--size", "1K")...), theirs: b.libfabric("tcp", "msg", 1<<10, 20_000),
		},
		comparison{
			Name: "runtime over shm, one way, 1 KiB, spinning", Beside: "ucp_am_lat, posix", Unit: nanoseconds,
			ours: b.ours(p50, shm("--level", "runtime", "--size", "1K")...), theirs: b.ucx(ucxMedian, "posix", "ucp_am_lat", 1<<10, 1_500_000),
		},
	)
	return list
}

type round = beside.Round

// A verdict is a comparison's outcome. The medians are those of the rounds that
// count: alike, and at the distance at which most of them were, or all.
type verdict struct {
	Name       string  `json:"name"`
	Beside     string  `json:"beside"`
	Unit       string  `json:"unit"`
	Target     float64 `json:"target,omitempty"`
	AtLeast    bool    `json:"at_least,omitempty"`
	Ours       float64 `json:"ours"`
	Theirs     float64 `json:"theirs"`
	Ratio      float64 `json:"ratio"` // of the medians
	Low        float64 `json:"ratio_low"`
	High       float64 `json:"ratio_high"`          // of the rounds' own ratios
	AllCount   bool    `json:"all_count,omitempty"` // whatever the distance
	Counted    int     `json:"rounds_counted"`
	Distance   float64 `json:"distance_ns"` // median of the rounds that count
	Note       string  `json:"note,omitempty"`
	Rounds     []round `json:"rounds"`
	Unmeasured string  `json:"unmeasured,omitempty"` // why there is nothing
}

// target is what the ratio has to reach.
func (v *verdict) target() beside.Target {
	switch {
	case v.Target == 0:
		return beside.Target{}
	case v.AtLeast:
		return beside.AtLeast(v.Target)
	}
	return beside.AtMost(v.Target)
}

// row is the verdict as --json prints it.
func (v *verdict) row() beside.Row {
	r := beside.Row{What: v.Name, Beside: v.Beside, Unit: v.Unit}
	if v.Unmeasured != "" || v.Counted == 0 {
		r.Skipped = cmp.Or(v.Unmeasured, "no round came to an end")
	} else {
		r.Ours, r.Theirs, r.Ratio, r.Low, r.High = v.Ours, v.Theirs, v.Ratio, v.Low, v.High
	}
	r.Judge(v.target())
	return r
}

func (b *bench) compare(ctx context.Context) ([]verdict, error) {
	only, err := regexp.Compile(b.only)
	if err != nil {
		return nil, fmt.Errorf("--only: %w", err)
	}
	var list []comparison
	for _, c := range b.comparisons() {
		if only.MatchString(c.Name + " | " + c.Beside) {
			list = append(list, c)
		}
	}
	verdicts := make([]verdict, len(list))
	for i, c := range list {
		verdicts[i] = verdict{Name: c.Name, Beside: c.Beside, Unit: c.Unit, Target: c.Target, AtLeast: c.AtLeast, Note: c.Note}
	}
	// Rounds outside, comparisons inside: what disturbs the machine for a while
	// falls on all of them.
	for n := range 2 * b.rounds {
		for i := range list {
			v := &verdicts[i]
			if v.Unmeasured != "" || n >= b.rounds && (b.short || counting(v.Rounds) >= b.rounds) {
				continue // rounds beyond are for those that lack some
			}
			fmt.Fprintf(os.Stderr, "round %d: %s, beside %s\n", n+1, v.Name, v.Beside)
			r, err := beside.Pair(ctx, list[i].ours, list[i].theirs, n%2 == 0)
			if err != nil {
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
				v.Unmeasured = err.Error()
				fmt.Fprintln(os.Stderr, "  ", err)
				continue
			}
			v.Rounds = append(v.Rounds, r)
		}
	}
	for i := range verdicts {
		verdicts[i].judge()
	}
	return verdicts, nil
}

// counted are the rounds that a verdict rests on. If none was alike, all are.
func counted(rounds []round) []round {
	var nears, fars []round
	for _, r := range rounds {
		switch {
		case !r.Alike:
		case r.Near():
			nears = append(nears, r)
		default:
			fars = append(fars, r)
		}
	}
	switch {
	case len(nears) == 0 && len(fars) == 0:
		return rounds
	case len(nears) >= len(fars):
		return nears
	}
	return fars
}

func counting(rounds []round) int {
	if c := counted(rounds); len(c) > 0 && c[0].Alike {
		return len(c)
	}
	return 0
}

func (v *verdict) judge() {
	if v.Unmeasured != "" || len(v.Rounds) == 0 {
		return
	}
	rounds := v.Rounds
	if !v.AllCount {
		rounds = counted(rounds)
	}
	var ours, theirs, distances []float64
	v.Low, v.High = math.Inf(1), 0
	for _, r := range rounds {
		ours, theirs = append(ours, r.Ours), append(theirs, r.Theirs)
		distances = append(distances, r.Distances[1])
		v.Low, v.High = min(v.Low, r.Ours/r.Theirs), max(v.High, r.Ours/r.Theirs)
	}
	v.Counted = len(rounds)
	v.Ours, v.Theirs, v.Distance = beside.Middle(ours), beside.Middle(theirs), beside.Middle(distances)
	v.Ratio = v.Ours / v.Theirs
	if !v.AllCount && !rounds[0].Alike {
		v.Note += "the processors moved in every round"
	}
}
