package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/plot"
)

// rows are the comparisons of the parts that were measured in this run.
func (r *results) rows(parts []string) []beside.Row {
	var rows []beside.Row
	add := func(part string, verdicts []verdict) {
		if !slices.Contains(parts, part) {
			return
		}
		for i := range verdicts {
			rows = append(rows, verdicts[i].row())
		}
	}
	add("compare", r.Compare)
	if slices.Contains(parts, "dispatch") {
		cgo := 0.0
		for _, d := range r.Dispatch {
			if d.Ratio == 0 {
				cgo = d.NS
			}
		}
		for _, d := range r.Dispatch {
			if d.Ratio > 0 {
				rows = append(rows, d.row(cgo))
			}
		}
	}
	add("lab", r.Lab)
	return rows
}

// write puts the raw figures, the plots and the page into the output directory.
func (b *bench) write(r *results) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.out, "fabric.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	plots, err := b.plots(r.Growth)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, "fabric.md"), []byte(page(r, plots, b.skipped)), 0o644)
}

// page is docs/benchmarks/fabric.md.
func page(r *results, plots []figure, skipped []string) string {
	var s strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&s, format+"\n", args...) }
	p("# The fabric beside its peers\n")
	p("Made by `go -C bench run ./fabric`, which does everything again; the raw figures are in [fabric.json](fabric.json).\n")
	p("Where a target is missed, the reason and what was tried stand in [shm.md](shm.md), [iwarp.md](iwarp.md) and [ibverbs.md](ibverbs.md).\n")
	for _, text := range skipped {
		p("Left as it was before, or out: %s\n", text)
	}
	if len(r.Compare) > 0 {
		p("## Beside peers on this host\n")
		measured(p, r.Runs["compare"])
		p("Ours is `verbena perf` at the level of verbs (but for the line that says runtime), two processes, each bound to its processor, as the peers are.")
		p("Receives are posted and posted again, keys are checked, completions are taken at both ends: in latency tests every Send is signalled, as ib_send_lat does, in streams one in 64.")
		p("A round is ours and theirs, in turns first; rounds go around all lines, so that what disturbs the machine for a while meets all of them.")
		p("The distance is what a cache line takes between the two processors, one way, probed before, between and after. Rounds in which it changed by more than %.0f %%, and rounds at the other of near (below 120 ns) and far, do not count.", (beside.Alike-1)*100)
		p("The ratio is that of the medians; in brackets, the least and the greatest of a single round.\n")
		table(p, r.Compare)
	}
	if len(r.Dispatch) > 0 {
		p("## One post and one poll into C\n")
		measured(p, r.Runs["dispatch"])
		p("Processor time of a post and a poll over stub operations, by the way C is entered, medians of 41 turns in one run (`BenchmarkPostAndPollInTurns` of rdma/ibverbs/internal/verbs). Target: at most %.1f of cgo. Most drivers are entered the non-blocking way; rxe, siw, cxgb4 and any driver that is not known with a non-blocking poll; bnxt_re and hns, whose polls may wait, the blocking way.\n", dispatchTarget)
		p("| route | CPU ns | beside cgo | |")
		p("|---|---:|---:|---|")
		for _, d := range r.Dispatch {
			ratio, r := "", d.row(0)
			if d.Ratio > 0 {
				ratio = fmt.Sprintf("%.2f", d.Ratio)
			}
			p("| %s | %.1f | %s | %s |", d.Route, d.NS, ratio, r.Mark())
		}
		p("")
	}
	if len(r.Lab) > 0 {
		p("## ibverbs beside perftest, on the kernel's Soft-RoCE\n")
		measured(p, r.Runs["lab"])
		p("In the lab's virtual machine, all in one boot, between the rxe devices of the two ends of a veth pair, with the same inline setting, receives posted again before the answer, medians of each round one way; that the messages crossed the pair is checked by its packet counts. Latencies there say nothing about hardware.\n")
		table(p, r.Lab)
	}
	if g := r.Growth; g != nil {
		growthPage(p, g, r.Runs["growth"], plots)
	}
	return s.String()
}

// measured tells when and on what a part was measured.
func measured(p func(string, ...any), m host.Machine) {
	if m.Short {
		p("**A short run, to try the path: its figures mean little.**\n")
	}
	p("%s, commit %s%s. %s, %d processors, %s, %s. UCX %s, libfabric %s, perftest %s of Debian. Load average at the start %.1f.%s\n",
		m.Date, orUnknown(m.Commit), map[bool]string{true: " with changes"}[m.Changed], orUnknown(m.Processor), m.Processors, m.OS, m.Go,
		orUnknown(m.Peers["UCX"]), orUnknown(m.Peers["libfabric"]), orUnknown(m.Peers["perftest"]), m.Load, more(m.Label))
}

func table(p func(string, ...any), verdicts []verdict) {
	p("| what | beside | ours | theirs | ours / theirs | target | | rounds | distance |")
	p("|---|---|---:|---:|---:|---:|---|---:|---:|")
	var notes []string
	for i := range verdicts {
		v := &verdicts[i]
		if v.Unmeasured != "" || v.Counted == 0 {
			p("| %s | %s | | | | %s | not measured | | |", v.Name, v.Beside, v.target())
			notes = append(notes, fmt.Sprintf("%s, beside %s: %s", v.Name, v.Beside, v.Unmeasured))
			continue
		}
		r := v.row()
		if v.Note != "" {
			notes = append(notes, fmt.Sprintf("%s, beside %s: %s", v.Name, v.Beside, v.Note))
		}
		p("| %s | %s | %s | %s | %.2f (%.2f–%.2f) | %s | %s | %d of %d | %.0f ns |", v.Name, v.Beside, beside.Show(v.Ours, v.Unit), beside.Show(v.Theirs, v.Unit),
			v.Ratio, v.Low, v.High, r.Target, r.Mark(), v.Counted, len(v.Rounds), v.Distance)
	}
	p("")
	for _, n := range notes {
		p("- %s", n)
	}
	if len(notes) > 0 {
		p("")
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "(unknown)"
	}
	return s
}

func more(label string) string {
	if label == "" {
		return ""
	}
	return " " + label
}

// growthPage is the part about how the cost grows.
func growthPage(p func(string, ...any), g *growth, run host.Machine, plots []figure) {
	pictures := func(prefix string) {
		for _, f := range plots {
			if strings.HasPrefix(f.file, prefix) {
				p("![%s](%s)\n", f.chart.Title, f.file)
			}
		}
	}
	p("## How the cost grows\n")
	measured(p, run)
	p("One measurement each, ours alone.\n")
	for _, f := range g.Failed {
		p("- not measured: %s", f)
	}
	if len(g.Failed) > 0 {
		p("")
	}
	p("### With connections\n")
	p("64 B Sends, one posting goroutine, 16 outstanding and 32 receives on each connection. Registered is what the measurement itself registers, at both ends; resident is what both processes grew by since one connection, provider's rings and queues included. Latency is that of one message at a time, on each connection in turn, both ends sleeping in between, as programs with many connections do.\n")
	p("| transport | connections | messages/s | one way, median | p99 | registered per connection | resident per connection |")
	p("|---|---:|---:|---:|---:|---:|---:|")
	first := map[string]row{}
	for _, r := range g.Connections {
		if r.Mode != "rate" {
			continue
		}
		if r.Connections == 1 {
			first[r.Transport] = r
		}
		lat := row{}
		for _, l := range g.Connections {
			if l.Mode == "lat" && l.Transport == r.Transport && l.Connections == r.Connections {
				lat = l
			}
		}
		resident := ""
		if one := first[r.Transport]; r.Connections > one.Connections {
			resident = beside.Bytes(max(float64(r.Resident-one.Resident), 0) / float64(r.Connections-one.Connections))
		}
		p("| %s | %d | %s | %s | %s | %s | %s |", r.Transport, r.Connections, beside.Decimal(r.OpsPerS)+"/s", beside.Show(lat.P50, nanoseconds), beside.Show(lat.P99, nanoseconds),
			beside.Bytes(float64(r.Registered)/float64(r.Connections)), resident)
	}
	p("")
	pictures("fabric-connections")
	p("### With the size of messages\n")
	p("Sends, spinning; latency one way, bandwidth streaming.\n")
	head, rule := "| size |", "|---:|"
	for _, t := range networks {
		head += fmt.Sprintf(" %s median | %s p99 | %s p99.99 | %s bandwidth |", t, t, t, t)
		rule += "---:|---:|---:|---:|"
	}
	p("%s\n%s", head, rule)
	for _, size := range sizesOf(g.Latency) {
		line := "| " + beside.Bytes(float64(size)) + " |"
		for _, t := range networks {
			l, okL := find(g.Latency, t, size)
			w, okW := find(g.Bandwidth, t, size)
			if !okL || !okW {
				line += " | | | |"
				continue
			}
			line += fmt.Sprintf(" %s | %s | %s | %s |", beside.Show(l.P50, nanoseconds), beside.Show(l.P99, nanoseconds), beside.Show(l.P9999, nanoseconds), beside.Show(w.BytesPerS, bandwidth))
		}
		p("%s", line)
	}
	p("")
	pictures("fabric-size")
	p("### With posting goroutines\n")
	p("64 B Sends, 16 outstanding for each goroutine, on one processor for each end; all on one connection, or each on its own. The receiver has one goroutine for each completion queue.\n")
	p("| transport | goroutines | messages/s, one connection | messages/s, each its own | CPU us per 1,000 messages, one connection | each its own |")
	p("|---|---:|---:|---:|---:|---:|")
	for _, t := range networks {
		for n := 1; n <= 64; n *= 2 {
			shared, own := row{}, row{}
			for _, r := range g.Posters {
				if r.Transport != t || r.Posters != n {
					continue
				}
				if r.Connections == 1 {
					shared = r
				}
				if r.Connections == n {
					own = r
				}
			}
			p("| %s | %d | %s | %s | %.0f | %.0f |", t, n, beside.Decimal(shared.OpsPerS)+"/s", beside.Decimal(own.OpsPerS)+"/s", perThousand(shared), perThousand(own))
		}
	}
	p("")
	pictures("fabric-posters")
}

func perThousand(r row) float64 {
	if r.Iterations == 0 {
		return 0
	}
	return r.CPU * 1e9 / float64(r.Iterations)
}

func find(rows []row, transport string, size int) (row, bool) {
	for _, r := range rows {
		if r.Transport == transport && r.Size == size {
			return r, true
		}
	}
	return row{}, false
}

func sizesOf(rows []row) []int {
	seen := map[int]bool{}
	var sizes []int
	for _, r := range rows {
		if !seen[r.Size] {
			seen[r.Size] = true
			sizes = append(sizes, r.Size)
		}
	}
	sort.Ints(sizes)
	return sizes
}

// A figure is a plot and its file.
type figure struct {
	file  string
	chart plot.Chart
}

// plots draws the growth.
func (b *bench) plots(g *growth) ([]figure, error) {
	if g == nil {
		return nil, nil
	}
	var figures []figure
	for _, f := range figuresOf(g) {
		f.chart.Series = slices.DeleteFunc(f.chart.Series, func(s plot.Series) bool { return len(s.Points) == 0 })
		if len(f.chart.Series) == 0 {
			continue // nothing of it was measured
		}
		figures = append(figures, f)
		file, err := os.Create(filepath.Join(b.out, f.file))
		if err != nil {
			return nil, err
		}
		err = f.chart.Write(file)
		if closeErr := file.Close(); err == nil {
			err = closeErr
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.file, err)
		}
	}
	return figures, nil
}

func figuresOf(g *growth) []figure {
	count := func(v float64) string { return strconv.Itoa(int(v)) }
	size := func(v float64) string { return beside.Bytes(v) }
	line := func(name string, rows []row, keep func(row) bool, point func(row) plot.Point) plot.Series {
		s := plot.Series{Name: name}
		for _, r := range rows {
			if keep(r) {
				s.Points = append(s.Points, point(r))
			}
		}
		return s
	}
	rates := plot.Chart{
		Title: "Message rate and connections", Subtitle: "64 B Sends, one posting goroutine", XLabel: "connections", YLabel: "messages per second",
		FormatX: count, FormatY: func(v float64) string { return beside.Decimal(v) },
	}
	latency := plot.Chart{
		Title: "Latency and message size", Subtitle: "Send, one way, spinning; median, bars to the 99th percentile", XLabel: "message size", YLabel: "latency",
		FormatX: size, FormatY: func(v float64) string { return beside.Show(v, nanoseconds) },
	}
	width := plot.Chart{
		Title: "Bandwidth and message size", Subtitle: "Send, streaming", XLabel: "message size", YLabel: "bandwidth",
		FormatX: size, FormatY: func(v float64) string { return beside.Show(v, bandwidth) },
	}
	posters := plot.Chart{
		Title: "Message rate and posting goroutines", Subtitle: "64 B Sends, one processor for each end", XLabel: "goroutines", YLabel: "messages per second",
		FormatX: count, FormatY: func(v float64) string { return beside.Decimal(v) },
	}
	for _, t := range networks {
		rates.Series = append(rates.Series, line(t, g.Connections, func(r row) bool { return r.Transport == t && r.Mode == "rate" },
			func(r row) plot.Point { return plot.Point{X: float64(r.Connections), Y: r.OpsPerS} }))
		latency.Series = append(latency.Series, line(t, g.Latency, func(r row) bool { return r.Transport == t },
			func(r row) plot.Point { return plot.Point{X: float64(r.Size), Y: r.P50, Low: r.P50, High: r.P99} }))
		width.Series = append(width.Series, line(t, g.Bandwidth, func(r row) bool { return r.Transport == t },
			func(r row) plot.Point { return plot.Point{X: float64(r.Size), Y: r.BytesPerS} }))
		posters.Series = append(posters.Series,
			line(t+", one connection", g.Posters, func(r row) bool { return r.Transport == t && r.Connections == 1 },
				func(r row) plot.Point { return plot.Point{X: float64(r.Posters), Y: r.OpsPerS} }),
			line(t+", each its own", g.Posters, func(r row) bool { return r.Transport == t && r.Connections == r.Posters },
				func(r row) plot.Point { return plot.Point{X: float64(r.Posters), Y: r.OpsPerS} }))
	}
	return []figure{
		{"fabric-connections.svg", rates}, {"fabric-size-latency.svg", latency}, {"fabric-size-bandwidth.svg", width}, {"fabric-posters.svg", posters},
	}
}
