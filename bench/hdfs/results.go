package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/plot"
)

// results are the raw figures, docs/benchmarks/hdfs.json. What a run does not measure stays.
type results struct {
	Rows    *rowResults    `json:"rows,omitempty"`
	Packets *packetResults `json:"packets,omitempty"`
	Stages  *stageResults  `json:"stages,omitempty"`
	DFSIO   *dfsioResults  `json:"dfsio,omitempty"`
}

// conditions are those of a part's run.
type conditions struct {
	Measured host.Machine `json:"measured"`
	Rounds   int          `json:"rounds"`
}

type rowResults struct {
	conditions
	Size int64        `json:"file_mib"`
	Rows []beside.Row `json:"rows"`
}

type packetResults struct {
	conditions
	Files []packetResult `json:"files"`
}

// packetResult is what files of one length and size of packets have taken, round by round.
type packetResult struct {
	File      int64     `json:"file_gib"`
	Packet    int       `json:"packet_bytes"`
	Transport string    `json:"transport"`
	Seconds   []float64 `json:"seconds"`
	CPU       []float64 `json:"cpu_seconds"`
}

type stageResults struct {
	conditions
	Transports map[string][]stages `json:"block_ns"` // round by round, by transport
}

type dfsioResults struct {
	conditions
	Files  int        `json:"files"`
	Tasks  int        `json:"tasks"`
	Packet int        `json:"packet_bytes,omitempty"` // each client's default, if it is not there
	Runs   []dfsioRun `json:"runs"`
}

// dfsioRun is what one client has done with files of so many MiB together, round by round.
type dfsioRun struct {
	Size   int64   `json:"all_files_mib"`
	Read   bool    `json:"read"`
	Client string  `json:"client"`
	Rates  []rates `json:"rates"`
}

func (b *bench) conditions() conditions { return conditions{b.machine, b.rounds} }

func readResults(dir string) (r results, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, "hdfs.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &r)
	}
	if err != nil {
		return r, fmt.Errorf("the results that are there: %w: remove the file to begin anew", err)
	}
	return r, nil
}

// save puts what set sets beside what was measured before, and draws all of it.
func (b *bench) save(set func(*results)) error {
	r, err := readResults(b.out)
	if err != nil {
		return err
	}
	set(&r)
	raw, err := json.MarshalIndent(&r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.out, "hdfs.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return r.draw(b.out)
}

func drawCommand(b *bench) *cobra.Command {
	return &cobra.Command{
		Use:   "draw",
		Short: "Draw the plots of hdfs.json, which is beside the page, and measure nothing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := b.locate(cmd.Context()); err != nil {
				return err
			}
			r, err := readResults(b.out)
			if err != nil {
				return err
			}
			return r.draw(b.out)
		},
	}
}

// draw writes the plots into a folder.
func (r *results) draw(dir string) error {
	for name, p := range r.plots() {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(p.Write(file), file.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

type drawing interface{ Write(io.Writer) error }

// plots are what can be drawn of the results, by name of the file.
func (r *results) plots() map[string]drawing {
	out := map[string]drawing{}
	if r.Rows != nil {
		if p := r.Rows.plot(); len(p.Groups) > 0 {
			out["hdfs-rows.svg"] = p
		}
	}
	if r.Packets != nil {
		out["hdfs-packets.svg"] = r.Packets.plot()
	}
	if r.Stages != nil {
		out["hdfs-stages.svg"] = r.Stages.plot()
	}
	if r.DFSIO != nil {
		out["hdfs-dfsio-write.svg"], out["hdfs-dfsio-read.svg"] = r.DFSIO.plot(false), r.DFSIO.plot(true)
	}
	return out
}

// plot shows the rows that have a target: those first that shall be less than it.
func (r *rowResults) plot() *plot.Bars {
	groups := []plot.Group{{Name: "Less is better: at most the target"}, {Name: "More is better: at least the target"}}
	for _, row := range r.Rows {
		if row.Met == nil {
			continue
		}
		t, ok := beside.ParseTarget(row.Target)
		if !ok {
			continue
		}
		what, quantity := row.What, ""
		if i := strings.LastIndex(row.What, ", "); i >= 0 {
			what, quantity = row.What[:i], row.What[i+2:]+", "
		}
		bar := plot.Bar{Name: what, Note: quantity + "beside " + row.Beside, Parts: []float64{row.Ratio, 0}, Low: row.Low, High: row.High, Target: t.Limit()}
		if !*row.Met {
			bar.Parts = []float64{0, row.Ratio}
		}
		group := &groups[0]
		if t.Least() {
			group = &groups[1]
		}
		group.Bars = append(group.Bars, bar)
	}
	return &plot.Bars{
		Title: "Ours beside others, and what is asked", Subtitle: beside.Ran(r.Measured), Ratios: true,
		Label:  "ours / theirs, medians; the thin line is from the least to the greatest ratio of a round",
		Format: func(v float64) string { return fmt.Sprintf("%.3g", v) }, Parts: []string{"met", "missed"},
		Groups: slices.DeleteFunc(groups, func(g plot.Group) bool { return len(g.Bars) == 0 }),
	}
}

// plot shows the shortest files.
func (r *packetResults) plot() *plot.Chart {
	least := slices.MinFunc(r.Files, func(a, b packetResult) int { return cmp.Compare(a.File, b.File) }).File
	p := &plot.Chart{
		Title: fmt.Sprintf("Writing %d GiB, 3 replicas", least), Subtitle: beside.Ran(r.Measured),
		XLabel: "bytes of a packet", YLabel: "seconds", FormatX: beside.Bytes,
	}
	for _, col := range columns {
		s := plot.Series{Name: col.name}
		for _, f := range r.Files {
			if f.File == least && f.Transport == col.name {
				s.Points = append(s.Points, spread(float64(f.Packet), f.Seconds))
			}
		}
		if len(s.Points) > 0 {
			p.Series = append(p.Series, s)
		}
	}
	return p
}

// spread is a point at the median of rounds.
func spread(x float64, rounds []float64) plot.Point {
	return plot.Point{X: x, Y: beside.Middle(rounds), Low: slices.Min(rounds), High: slices.Max(rounds)}
}

func (r *stageResults) plot() *plot.Bars {
	p := &plot.Bars{
		Title: "Where the time of writing a block goes", Subtitle: beside.Ran(r.Measured), Parts: stageNames,
		Label:  fmt.Sprintf("milliseconds of a DataNode for a block of %d MiB, one replica", stagedSize>>20),
		Format: func(v float64) string { return fmt.Sprintf("%.3g", v) }, Groups: []plot.Group{{}},
	}
	for _, col := range staged(r.Transports) {
		b := plot.Bar{Name: col.name}
		for _, stage := range stageNames {
			b.Parts = append(b.Parts, stageMedian(r.Transports[col.name], stage))
		}
		p.Groups[0].Bars = append(p.Groups[0].Bars, b)
	}
	return p
}

func (r *dfsioResults) plot(read bool) *plot.Chart {
	how := map[bool]string{false: "writes", true: "reads"}[read]
	p := &plot.Chart{
		Title: fmt.Sprintf("TestDFSIO: %s of %d files, %d at a time", how, r.Files, r.Tasks), Subtitle: beside.Ran(r.Measured),
		XLabel: "all files together", YLabel: "throughput, MiB/s", FormatX: beside.Bytes,
	}
	for _, run := range r.Runs {
		if run.Read != read {
			continue
		}
		name := strings.Replace(run.Client, "TestDFSIO.java on ", "Java, ", 1) // the title tells what it runs
		i := slices.IndexFunc(p.Series, func(s plot.Series) bool { return s.Name == name })
		if i < 0 {
			i = len(p.Series)
			p.Series = append(p.Series, plot.Series{Name: name})
		}
		var throughputs []float64
		for _, v := range run.Rates {
			throughputs = append(throughputs, v.Throughput)
		}
		p.Series[i].Points = append(p.Series[i].Points, spread(float64(run.Size<<20), throughputs))
	}
	return p
}
