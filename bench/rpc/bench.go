package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// bench is a run of the command.
type bench struct {
	quick, json bool
	rounds      int
	only        string
	out, hadoop string
	began       time.Time
}

// comparison is one row before it is measured.
type comparison struct {
	what, beside, theirs string
	ours                 string // "" for the system of that name
	unit                 string
	target               beside.Target
	measure              func(ctx context.Context, system string) (float64, error)
}

var peers = []struct{ system, name string }{
	{"grpc", "gRPC-Go on loopback"},
	{"grpcunix", "gRPC-Go over a Unix socket"},
	{"netrpc", "net/rpc on loopback"},
}

// comparisons are all rows, in the page's order.
func (b *bench) comparisons(running map[string]*server) []comparison {
	sizes, callers := []int{1, 8, 64, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20}, []int{1, 2, 4, 8, 16, 32, 64}
	iterations, limit, warm, duration := 20_000, 4*time.Second, time.Second, 3*time.Second
	if b.quick {
		sizes, callers = []int{1, 1 << 10, 64 << 10, 1 << 20}, []int{1, 16, 64}
		iterations, limit, warm, duration = 8_000, 700*time.Millisecond, 300*time.Millisecond, 800*time.Millisecond
	}
	withCaller := func(system string, f func(*server, caller) (float64, error)) (v float64, err error) {
		s := running[system]
		dial := dialHadoop
		if system != "java" {
			dial = systems[system].dial
		}
		c, err := dial(s.address)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		return f(s, c)
	}
	var all []comparison
	for _, peer := range peers {
		for _, size := range sizes {
			c := comparison{what: "Hadoop RPC on TCP, echo of " + bytes(size) + ", p50", beside: peer.name, theirs: peer.system, unit: "ns"}
			if size == 1<<10 && peer.system == "grpc" {
				c.target = beside.AtMost(0.8)
			}
			c.measure = func(ctx context.Context, system string) (float64, error) {
				return withCaller(system, func(_ *server, c caller) (float64, error) {
					return latency(ctx, c.call(payload(size)), iterations, limit)
				})
			}
			all = append(all, c)
		}
	}
	rate := func(n int, value func(throughput) float64, warm time.Duration) func(context.Context, string) (float64, error) {
		return func(ctx context.Context, system string) (float64, error) {
			return withCaller(system, func(s *server, c caller) (float64, error) {
				t, err := measureThroughput(ctx, s, c, n, 1<<10, warm, duration)
				return value(t), err
			})
		}
	}
	calls := func(t throughput) float64 { return t.rate }
	perCPU := func(t throughput) float64 { return t.perCPU }
	for _, peer := range peers {
		for _, n := range callers {
			c := comparison{what: fmt.Sprintf("Hadoop RPC on TCP, 1 KiB, callers: %d", n), beside: peer.name, theirs: peer.system, unit: "calls/s", measure: rate(n, calls, warm)}
			if n == 64 && peer.system == "grpc" {
				c.target = beside.AtLeast(2)
			}
			all = append(all, c)
		}
	}
	for _, n := range []int{1, 64} {
		all = append(all, comparison{what: fmt.Sprintf("the same with a method that handlers run, callers: %d", n), beside: "gRPC-Go on loopback",
			ours: "oursqueue", theirs: "grpc", unit: "calls/s", measure: rate(n, calls, warm)})
	}
	const sixteen = "Hadoop RPC on TCP, 1 KiB, 16 callers, calls per CPU second of the server"
	all = append(all,
		comparison{what: sixteen, beside: "gRPC-Go on loopback", theirs: "grpc", unit: "calls/CPU s", measure: rate(16, perCPU, warm)},
		comparison{what: sixteen, beside: "Hadoop's Java server, same client", theirs: "java", unit: "calls/CPU s", target: beside.AtLeast(4), measure: rate(16, perCPU, 2*warm)})
	return all
}

func (b *bench) run(ctx context.Context) (err error) {
	b.began = time.Now()
	match, err := regexp.Compile(b.only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	running := map[string]*server{}
	defer func() {
		for _, s := range running {
			err = errors.Join(err, s.stop())
		}
	}()
	for name := range systems {
		if running[name], err = startServer(name); err != nil {
			delete(running, name)
			return err
		}
	}
	why := ""
	if b.hadoop == "" {
		why = "--hadoop names no directory of jars"
	} else if _, lerr := exec.LookPath("java"); lerr != nil {
		why = "Java is not installed"
	} else if s, jerr := startJava(b.hadoop); jerr != nil {
		why = jerr.Error()
	} else {
		running["java"] = s
		if err := b.warmJava(ctx, s); err != nil {
			return err
		}
	}
	var rows []beside.Row
	for _, c := range b.comparisons(running) {
		if !match.MatchString(c.what + " " + c.beside) {
			continue
		}
		r := beside.Row{What: c.what, Beside: c.beside, Unit: c.unit}
		if running[c.theirs] == nil {
			r.Skipped = why
		} else if err := b.compare(ctx, &c, &r); err != nil {
			return fmt.Errorf("%s beside %s: %w", c.what, c.beside, err)
		}
		r.Judge(c.target)
		if !b.json {
			fmt.Fprintf(os.Stderr, "%-75s %-35s %12.0f %12.0f %6.2f\n", r.What, r.Beside, r.Ours, r.Theirs, r.Ratio)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return errors.New("--only matches nothing")
	}
	if b.json {
		return beside.Write(os.Stdout, rows)
	}
	return b.write(ctx, rows)
}

// warmJava lets Java compile what will be measured.
func (b *bench) warmJava(ctx context.Context, s *server) error {
	c, err := dialHadoop(s.address)
	if err != nil {
		return err
	}
	_, err = measureThroughput(ctx, s, c, 16, 1<<10, time.Second, 14*time.Second)
	return errors.Join(err, c.Close())
}

// compare measures both in turns; the ratio is that of the medians.
func (b *bench) compare(ctx context.Context, c *comparison, r *beside.Row) error {
	var ours, theirs, ratios []float64
	for round := range b.rounds {
		var pair [2]float64
		for turn := range 2 {
			side := (round + turn) % 2
			var err error
			if pair[side], err = c.measure(ctx, [2]string{cmp.Or(c.ours, "ours"), c.theirs}[side]); err != nil {
				return err
			}
		}
		ours, theirs, ratios = append(ours, pair[0]), append(theirs, pair[1]), append(ratios, pair[0]/pair[1])
	}
	r.Ours, r.Theirs = beside.Middle(ours), beside.Middle(theirs)
	r.Ratio, r.Low, r.High = r.Ours/r.Theirs, slices.Min(ratios), slices.Max(ratios)
	return nil
}

func bytes(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}

// write writes the page.
func (b *bench) write(ctx context.Context, rows []beside.Row) error {
	if b.out == "" {
		root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/verbena-data/verbena").Output()
		if err != nil {
			return fmt.Errorf("find the tree: %w", err)
		}
		b.out = filepath.Join(strings.TrimSpace(string(root)), "docs", "benchmarks")
	}
	raw, err := json.MarshalIndent(rows, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.out, "rpc.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, "rpc.md"), []byte(b.page(ctx, rows)), 0o644)
}
