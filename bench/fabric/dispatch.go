package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// dispatchTarget is what a post and a poll may cost, beside cgo.
const dispatchTarget = 0.8

// A dispatch is what one post and one poll over stub operations cost by one way
// of calling C, beside cgo doing the same in the same run.
type dispatch struct {
	Route string  `json:"route"`
	NS    float64 `json:"cpu_ns"`
	Ratio float64 `json:"ratio"` // to cgo; 0 for cgo itself
}

// row is the route beside cgo, which took so many nanoseconds. cgo itself has no
// target.
func (d *dispatch) row(cgo float64) beside.Row {
	r := beside.Row{What: "ibverbs, post and poll over stubs, " + d.Route, Beside: "cgo", Ours: d.NS, Theirs: cgo, Ratio: d.Ratio, Unit: "CPU ns"}
	if d.Ratio > 0 {
		r.Judge(beside.AtMost(dispatchTarget))
	}
	return r
}

// dispatch runs the benchmark that the bindings have of it.
func (b *bench) dispatch(ctx context.Context) ([]dispatch, error) {
	fmt.Fprintln(os.Stderr, "dispatch: a post and a poll over stubs, beside cgo")
	cmd := exec.CommandContext(ctx, "go", "test", "-tags", "cgobench", "-run", "^$", "-bench", "^BenchmarkPostAndPollInTurns$",
		"-benchtime", "3x", "./rdma/ibverbs/internal/verbs")
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("go test: %w: %s", err, host.Tail(string(out)))
	}
	return parseDispatch(string(out))
}

// parseDispatch reads the metrics "ROUTE-ns" and "ROUTE/cgo" of a benchmark.
func parseDispatch(out string) ([]dispatch, error) {
	var list []dispatch
	ratios := map[string]float64{}
	for l := range strings.Lines(out) {
		fields := strings.Fields(l)
		if len(fields) == 0 || !strings.HasPrefix(fields[0], "BenchmarkPostAndPollInTurns") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("dispatch: %q: %w", l, err)
			}
			if route, ok := strings.CutSuffix(fields[i+1], "-ns"); ok {
				list = append(list, dispatch{Route: route, NS: v})
			} else if route, _, ok := strings.Cut(fields[i+1], "/"); ok {
				ratios[route] = v
			}
		}
	}
	if len(list) < 2 {
		return nil, fmt.Errorf("dispatch: no result in %s", host.Tail(out))
	}
	for i := range list {
		list[i].Ratio = ratios[list[i].Route]
	}
	return list, nil
}
