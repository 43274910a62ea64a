package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// write puts the raw figures, the plots and the page into the output directory.
func (b *bench) write(r *results) error {
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.out, "rpc.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	for _, s := range b.sweeps() {
		g, ok := r.Growth[s.name]
		if !ok {
			continue
		}
		for _, c := range s.charts {
			if err := b.plot(&s, &c, &g); err != nil {
				return fmt.Errorf("%s: %w", c.file, err)
			}
		}
	}
	return os.WriteFile(filepath.Join(b.out, "rpc.md"), []byte(b.page(r)), 0o644)
}

func (b *bench) plot(s *sweep, c *chart, g *growth) error {
	p := s.draw(c, g)
	if len(p.Series) == 0 {
		return nil // nothing of it was measured
	}
	file, err := os.Create(filepath.Join(b.out, c.file))
	if err != nil {
		return err
	}
	err = p.Write(file)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// page is docs/benchmarks/rpc.md.
func (b *bench) page(r *results) string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	p("# Calls and Hadoop RPC beside their peers\n")
	p("Made by `go -C bench run ./rpc`, which measures everything again, or with `--row REGEXP` some of it; the raw figures are in [rpc.json](rpc.json).")
	p("How the runtime's latency has come about stands in [runtime.md](runtime.md).\n")
	p("## In one run\n")
	p("Client and server are two processes on this host, each bound to a processor of its own, ours as the peers, where a row does not say otherwise. Ours is `verbena perf`, or for Hadoop RPC on TCP the same client program as the peers'. Hadoop RPC, gRPC and net/rpc each share one connection among all callers and echo a protobuf message with one field of bytes (net/rpc: the same by gob). Hadoop RPC's method is registered as short where a row does not say otherwise.")
	p("gRPC's and net/rpc's latencies are medians of the second half of the calls of one caller.")
	p("For the Get and its memcpy a process on the other processor writes to every line of the 4 KiB (of the MiB, for the relay beside it) before each; the time of reading the clock is subtracted from both. The flood comes from the client, for 200 us before each call, so that no third program wants one of the two processors; without the flood the client waits as long. A notification takes the server 2 us, so a budget of 16 takes 32 us, and up to 256 of them wait there when a call comes.")
	p("Each row is of one run, which its last column names. The rows together are of the runs below, on several hosts, so rows of different runs are not to be compared with each other. Some targets that are met here are missed on a host whose lines take longer and whose sockets wake sooner, of Intel's family 6, model 207: calls of 1 KiB (1/40) and Hadoop RPC of 1 KiB over shm (0.16): [its figures](runtime.md#near-and-far).")
	p("A round is ours and theirs, in turns first. The ratio is that of the medians over the rounds; in brackets the least and the greatest of a round. Near is a distance below 120 ns, for a cache line from one processor to the other; where near and far are told apart, rounds in which the processors moved do not count, and are measured again, three times at most. The levels of a runtime message take turns of a tenth of a second within a round ([why](runtime.md#near-and-far)).\n")
	table(p, r.Rows)
	p("## How the cost grows\n")
	p("One measurement each. The command above a table measures it anew, with `--quick` for a few rows of it, and draws its plots; `--line REGEXP` beside it measures the columns of some systems, such as `'^shm$'`.\n")
	for _, sweep := range b.sweeps() {
		if g, ok := r.Growth[sweep.name]; ok {
			sweep.page(p, &g)
		}
	}
	return s.String()
}

func table(p func(string, ...any), rows []record) {
	runs := map[string]bool{}
	for _, r := range rows {
		if r.Skipped == "" {
			runs[ran(r.Measured)] = true
		}
	}
	one := len(runs) == 1
	for _, run := range slices.Sorted(maps.Keys(runs)) {
		p("- %s", run)
	}
	p("\n| what | beside | ours | theirs | ours / theirs | target | | rounds | distance |%s", map[bool]string{false: " commit |"}[one])
	p("|---|---|---:|---:|---:|---|---|---:|---:|%s", map[bool]string{false: "---|"}[one])
	var notes, whys []string
	for _, r := range rows {
		commit := ""
		if !one {
			commit = fmt.Sprintf(" %.9s |", r.Measured.Commit)
		}
		if r.Skipped != "" {
			p("| %s | %s | | | | %s | %s | | |%s", r.What, r.Beside, target(r.Target), r.Mark(), commit)
			notes = append(notes, fmt.Sprintf("%s, beside %s, was not measured: %s.", r.What, r.Beside, r.Skipped))
			continue
		}
		p("| %s | %s | %s | %s | %s (%s–%s) | %s | %s | %d of %d | %.0f ns |%s", r.What, r.Beside, beside.Show(r.Ours, r.Unit), beside.Show(r.Theirs, r.Unit),
			ratio(r.Ratio), ratio(r.Low), ratio(r.High), target(r.Target), r.Mark(), r.Counted, len(r.Rounds), r.Distance, commit)
		if r.Why != "" && !slices.Contains(whys, r.Why) {
			whys = append(whys, r.Why)
		}
	}
	p("")
	for _, n := range notes {
		p("- %s", n)
	}
	if len(whys) > 0 {
		p("\nWhere a target is missed:\n")
		for _, w := range whys {
			p("- %s", w)
		}
	}
	p("")
}

// ratio shows small ones to three figures.
func ratio(v float64) string {
	if v < 0.1 {
		return fmt.Sprintf("1/%.0f", 1/v)
	}
	return fmt.Sprintf("%.2f", v)
}

// target shows fractions such as 1/80 as the issue of a row gives them.
func target(t string) string {
	for _, f := range []struct{ from, to string }{{"0.0125", "1/80"}, {"0.025", "1/40"}, {"0.3333333333333333", "1/3"}, {"0.1", "1/10"}, {"0.3663003663003663", "1/2.73"}} {
		if t == "at most "+f.from {
			return "at most " + f.to
		}
	}
	return t
}

// ran tells when and on what something was measured.
func ran(m host.Machine) string {
	changed := ""
	if m.Changed {
		changed = " with changes"
	}
	return fmt.Sprintf("%s, commit %s%s. %s, %d processors, %s, %s. Load average at the start %.1f.", m.Date, m.Commit, changed, m.Processor, m.Processors, m.OS, m.Go, m.Load)
}

func (s *sweep) page(p func(string, ...any), g *growth) {
	p("### %s\n", s.title)
	p("%s %s\n", s.measuredAs(g), ran(g.Measured))
	p("    %s\n", s.command())
	head, rule := "| "+s.x+" |", "|---:|"
	var lines []line
	for _, l := range s.lines {
		if len(g.Rows[l.name]) == 0 {
			continue // told below
		}
		lines = append(lines, l)
		for _, c := range s.columns {
			head, rule = head+" "+strings.TrimSpace(l.name+" "+c.title)+" |", rule+"---:|"
		}
	}
	p("%s\n%s", head, rule)
	xs := map[int]bool{}
	for _, rows := range g.Rows {
		for x := range rows {
			xs[x] = true
		}
	}
	for _, x := range slices.Sorted(maps.Keys(xs)) {
		text := "| " + s.format(x) + " |"
		for _, l := range lines {
			r, ok := g.Rows[l.name][x]
			for _, c := range s.columns {
				if ok {
					text += " " + c.show(r)
				}
				text += " |"
			}
		}
		p("%s", text)
	}
	p("")
	missing := slices.Clone(g.Failed)
	for _, l := range s.lines {
		told := slices.ContainsFunc(g.Failed, func(f string) bool { return strings.HasPrefix(f, l.name+", "+s.x) })
		if len(g.Rows[l.name]) == 0 && !told {
			missing = append(missing, l.name+", which this run did not have")
		}
	}
	for _, m := range missing {
		p("- not measured: %s", m)
	}
	if len(missing) > 0 {
		p("")
	}
	for _, c := range s.charts {
		p("![%s](%s)\n", c.title, c.file)
	}
}
