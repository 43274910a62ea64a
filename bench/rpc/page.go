package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// page is docs/benchmarks/rpc.md.
func (b *bench) page(ctx context.Context, rows []beside.Row) string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	p("# Hadoop RPC beside its peers\n")
	how := "go -C bench run ./rpc"
	if b.quick {
		how += " --quick"
	}
	p("Made by `%s`, which measures everything again; the raw figures are in [rpc.json](rpc.json).\n", how)
	p("%s UTC, commit %s. %s, %d processors, %s.\n", b.began.UTC().Format("2006-01-02 15:04"), commit(ctx), processor(), runtime.NumCPU(), runtime.Version())
	p("Client and server are two processes on this host. Each echoes a protobuf message with one field of bytes (net/rpc: the same by gob).")
	p("Ours shares one connection among all callers, as gRPC and net/rpc do. Its method is registered as short, where a row does not say otherwise.")
	p("A latency is the median of the second half of the calls of one caller. A round is ours and theirs, in turns first; the ratio is that of the medians of %d rounds, in brackets the least and the greatest of a round.\n", b.rounds)
	p("| what | beside | ours | theirs | ours / theirs | target | |")
	p("|---|---|---:|---:|---:|---|---|")
	var notes []string
	for _, r := range rows {
		if r.Skipped != "" {
			p("| %s | %s | | | | %s | %s |", r.What, r.Beside, r.Target, r.Mark())
			notes = append(notes, fmt.Sprintf("%s, beside %s: %s.", r.What, r.Beside, r.Skipped))
			continue
		}
		p("| %s | %s | %s | %s | %.2f (%.2f–%.2f) | %s | %s |", r.What, r.Beside, show(r.Ours, r.Unit), show(r.Theirs, r.Unit), r.Ratio, r.Low, r.High, r.Target, r.Mark())
	}
	for _, n := range notes {
		p("\nNot measured: %s", n)
	}
	return s.String()
}

func show(v float64, unit string) string {
	if unit == "ns" {
		return fmt.Sprintf("%.1f us", v/1000)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
