package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// Blocks of which the stages are told.
const (
	stagedSize  = 64 << 20 // bytes
	stagedFiles = 8        // of one block and one replica each, one after the other
)

// stages are nanoseconds by the DataNodes' names for what they are spent on.
type stages map[string]float64

// stageNames are what the table shows, in order: the DataNode's time, whose stages follow each
// other.
var stageNames = []string{"communication", "processing", "io", "namenode"}

// What a block takes of processor time: of client and DataNodes, of one process that does the
// same without anything in between, and what the former take beyond the latter, which is
// communication.
const (
	endsCPU       = "cpu of both ends"
	aloneCPU      = "cpu without a transport"
	communicating = "cpu of communication"
)

func stagesCommand(b *bench) *cobra.Command {
	return &cobra.Command{
		Use:   "stages",
		Short: "Where the time of writing a block goes, a column for each transport",
		Long: `Write files of one block of 64 MiB and one replica over each transport, and tell the
milliseconds that DataNodes have spent on communication, processing and I/O of a block: the medians
of the rounds. It is the second table of the HDFS paper. Communication is what nothing else hides
there. Below stands the processor time of both ends, that of one process which does the same
without a transport, and the difference: what communication takes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), b.splitUp) },
	}
}

// splitUp is the command. The columns take turns: the host is faster at one time than at another.
func (b *bench) splitUp(ctx context.Context) (err error) {
	var all []*contender
	defer func() {
		for _, at := range all {
			err = errors.Join(err, at.client.Stop(), at.system.stop())
		}
	}()
	for _, col := range columnsHere(ctx, theProviders(), os.Stderr) {
		s, err := col.start(ctx, b)
		if err != nil {
			return err
		}
		c, err := col.client(ctx, b, s, 0)
		if err != nil {
			return errors.Join(err, s.stop())
		}
		all = append(all, &contender{client: c, reads: col.name, system: s})
	}
	took := map[string][]stages{}
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for _, at := range all {
			f, err := b.splitUpOnce(ctx, at)
			if err != nil {
				return err
			}
			if round >= 0 {
				took[at.reads] = append(took[at.reads], f)
				fmt.Fprintf(os.Stderr, "round %d of %d: %s: communication %.1f ms of processor time\n", round+1, b.rounds, at.reads, f[communicating]/1e6)
			}
		}
	}
	text := beside.Ran(b.machine) + fmt.Sprintf(". Medians of %d rounds of %d blocks, in turns, in milliseconds.\n\n", b.rounds, stagedFiles) + stagesTable(took)
	return publish(b, os.Stdout, "stages", text, stageRows(took), func(r *results) { r.Stages = &stageResults{b.conditions(), took} })
}

// A stageRow is what a block has taken over one transport, round by round.
type stageRow struct {
	Transport string   `json:"transport"`
	Rounds    []stages `json:"block_ns"`
}

func stageRows(took map[string][]stages) (rows []stageRow) {
	for _, col := range staged(took) {
		rows = append(rows, stageRow{col.name, took[col.name]})
	}
	return rows
}

// staged are the columns that were measured.
func staged(took map[string][]stages) []column {
	return columnsWith(func(name string) bool { return len(took[name]) > 0 })
}

// splitUpOnce is a turn of a column.
func (b *bench) splitUpOnce(ctx context.Context, at *contender) (stages, error) {
	i := slices.IndexFunc(operations, func(op operation) bool { return op.name == "block" })
	f, err := b.measure(ctx, at, operations[i])
	if err == nil {
		_, err = at.ask("delete", directory(at.reads))
	}
	if err == nil {
		err = at.system.settle(ctx)
	}
	return f.stages, err
}

// stagesTable shows the medians, a row for each stage.
func stagesTable(took map[string][]stages) string {
	var s strings.Builder
	columns := staged(took)
	fmt.Fprint(&s, "| |")
	for _, c := range columns {
		fmt.Fprintf(&s, " %s |", c.name)
	}
	fmt.Fprintf(&s, "\n|---|%s\n", strings.Repeat("---:|", len(columns)))
	total := make([]float64, len(columns))
	for _, stage := range stageNames {
		fmt.Fprintf(&s, "| %s |", stage)
		for i, c := range columns {
			ms := stageMedian(took[c.name], stage)
			total[i] += ms
			fmt.Fprintf(&s, " %.1f |", ms)
		}
		fmt.Fprintln(&s)
	}
	fmt.Fprint(&s, "| all |")
	for _, ms := range total {
		fmt.Fprintf(&s, " %.1f |", ms)
	}
	for _, row := range []struct{ name, stage string }{
		{"processor time, client and DataNodes", endsCPU}, {"the same work in one process", aloneCPU}, {"CPU of communication", communicating},
	} {
		fmt.Fprintf(&s, "\n| %s |", row.name)
		for _, c := range columns {
			fmt.Fprintf(&s, " %.1f |", stageMedian(took[c.name], row.stage))
		}
	}
	return s.String() + "\n"
}

// stageMedian is that of rounds, in milliseconds.
func stageMedian(rounds []stages, stage string) float64 {
	var all []float64
	for _, of := range rounds {
		all = append(all, of[stage])
	}
	return beside.Middle(all) / 1e6
}

// bothEnds is the processor time of a contender and its DataNodes. The NameNode has no bytes
// of blocks.
func (at *contender) bothEnds() (time.Duration, error) {
	nodes := system{servers: at.system.servers[1:]}
	return nodes.cpu(at)
}

// measureBlocks is measure of the operation that writes blocks. DataNodes write over the files of
// removed blocks where they have some, and the process without a transport over its own. New pages
// cost about as much as all communication, and which of the two gets more of them would decide.
func (b *bench) measureBlocks(ctx context.Context, at *contender, args []any) (f figure, err error) {
	alone, err := b.alone(at)
	if err != nil {
		return f, err
	}
	if err := b.spareBlocks(ctx, at, args); err != nil {
		return f, err
	}
	written, err := at.system.written(ctx)
	if err != nil {
		return f, err
	}
	before, err := at.bothEnds()
	if err != nil {
		return f, err
	}
	if f.numbers, err = at.ask(args...); err != nil {
		return f, err
	}
	after, err := at.bothEnds()
	if err != nil {
		return f, err
	}
	f.cpu = float64(after - before)
	if f.stages, err = at.system.since(ctx, written); err == nil {
		f.stages.beyond((after-before)/stagedFiles, alone)
	}
	return f, err
}

// spareBlocks has each DataNode remove as many blocks as args, those of the operation, have the client
// write, so that it has a file for each that it may get.
func (b *bench) spareBlocks(ctx context.Context, at *contender, args []any) error {
	stored, err := at.system.stored()
	if err != nil {
		return err
	}
	replicated := slices.Clone(args)
	replicated[len(args)-1] = dataNodes
	if _, err := at.ask(replicated...); err != nil {
		return err
	}
	if _, err := at.ask("delete", args[1]); err != nil {
		return err
	}
	return at.system.settleTo(ctx, stored)
}

// beyond adds what a block has taken of both ends' processor time, and what the same work takes
// in one process.
func (s stages) beyond(ends, alone time.Duration) {
	s[endsCPU], s[aloneCPU], s[communicating] = float64(ends), float64(alone), float64(ends-alone)
}

// alone is the processor time of a block's work where nothing lies between client and DataNode.
// The client does it in the DataNodes' file system, and the first time makes the files that are
// written over. The least of three times counts: what disturbs it makes it longer, and then
// communication would seem to take less.
func (b *bench) alone(at *contender) (least time.Duration, err error) {
	dir := filepath.Join(b.work, "alone")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var took [3]time.Duration
	for i := -1; i < len(took); i++ {
		before, err := at.CPU()
		if err != nil {
			return 0, err
		}
		if _, err := at.ask("alone", dir, stagedFiles, stagedSize); err != nil {
			return 0, err
		}
		after, err := at.CPU()
		if err != nil {
			return 0, err
		}
		if i >= 0 {
			took[i] = (after - before) / stagedFiles
		}
	}
	return slices.Min(took[:]), nil
}

// wrote is what DataNodes tell of the blocks that they have written.
type wrote struct {
	blocks, over float64 // their number, and how many were written over removed ones
	spent        stages  // nanoseconds of all of them
}

// written asks the DataNodes.
func (s *system) written(ctx context.Context) (wrote, error) {
	w := wrote{spent: stages{}}
	for _, address := range s.metrics {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
		if err != nil {
			return w, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return w, err
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return w, fmt.Errorf("metrics of a DataNode: %w", err)
		}
		for _, m := range families["verbena_hdfs_datanode_blocks_written_total"].GetMetric() {
			w.blocks += m.GetCounter().GetValue()
		}
		for _, m := range families["verbena_hdfs_datanode_spares_reused_total"].GetMetric() {
			w.over += m.GetCounter().GetValue()
		}
		for _, m := range families["verbena_hdfs_datanode_write_seconds_total"].GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "stage" {
					w.spent[l.GetValue()] += m.GetCounter().GetValue() * 1e9
				}
			}
		}
	}
	return w, nil
}

// since tells what one block has cost since an earlier call of written.
func (s *system) since(ctx context.Context, before wrote) (stages, error) {
	now, err := s.written(ctx)
	if err != nil {
		return nil, err
	}
	blocks := now.blocks - before.blocks
	if blocks == 0 {
		return nil, errors.New("DataNodes tell of no block that was written")
	}
	if over := now.over - before.over; over < blocks {
		fmt.Fprintf(os.Stderr, "%.0f of %.0f blocks over %s got new memory, and communication seems to take more for it: DataNodes keep removed blocks only while %s and the machine have memory to spare\n",
			blocks-over, blocks, s.name, s.data)
	}
	for stage := range now.spent {
		now.spent[stage] = (now.spent[stage] - before.spent[stage]) / blocks
	}
	return now.spent, nil
}
