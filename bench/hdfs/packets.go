package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// packetSizes are the bytes of packets that are tried: round ones, and those that are in use.
var packetSizes = sizesInUse([]int{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20})

// sizesInUse adds to sizes what suits each column.
func sizesInUse(sizes []int) []int {
	for _, c := range columns {
		sizes = append(sizes, c.suits())
	}
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

func packetsCommand(b *bench) *cobra.Command {
	var files []int64
	cmd := &cobra.Command{
		Use:   "packets",
		Short: "Time to write files by size of packets, a column for each transport",
		Long: `Write files with three replicas, with packets of 64 KiB to 1 MiB over each transport, and
tell the seconds, and the processor seconds of all processes: the medians of the rounds, the best
size bold, and the one that the transport has by itself marked (†). Adapters (ibverbs) have a column
where there are any. It draws a plot of the first size of files.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				files = []int64{1, 2, 3, 4, 5}
				if b.quick {
					files = []int64{1}
				}
			}
			if least := slices.Min(files); least < 1 {
				return fmt.Errorf("--files %d: want 1 GiB or more of each file", least)
			}
			return b.run(cmd.Context(), func(ctx context.Context) error { return b.packets(ctx, files) })
		},
	}
	cmd.Flags().Int64SliceVar(&files, "files", nil, "`GiB` of each file (default: 1 to 5, with --quick 1)")
	return cmd
}

// cell is one place of the table.
type cell struct {
	file   int64
	packet int
	column string
}

// taken is what writing a file has taken, round by round: seconds, and those of processors.
type taken struct{ seconds, cpu []float64 }

func (b *bench) packets(ctx context.Context, files []int64) (err error) {
	took := map[cell]*taken{}
	for _, col := range columnsHere(ctx, theProviders(), os.Stderr) {
		if err := b.packetsOver(ctx, &col, files, took); err != nil {
			return err
		}
	}
	text := beside.Ran(b.machine) + fmt.Sprintf(". %d rounds; medians: seconds, and processor seconds; †: the size that is the transport's own.\n\n", b.rounds) + packetTable(files, took)
	rows := packetFiles(files, took)
	return publish(b, os.Stdout, "packets", text, rows, func(r *results) { r.Packets = &packetResults{b.conditions(), rows} })
}

// warmFile is how many bytes a client writes before it counts.
const warmFile = 128 << 20

// packetsOver measures one transport: all sizes in turn, round after round.
func (b *bench) packetsOver(ctx context.Context, col *column, files []int64, took map[cell]*taken) (err error) {
	s, err := col.start(ctx, b)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for round := range b.rounds {
		for _, packet := range packetSizes {
			c, err := col.client(ctx, b, s, packet)
			if err != nil {
				return err
			}
			write := func(length int64) (f figure, err error) {
				at := &contender{client: c, system: s}
				f, err = b.measure(ctx, at, operation{name: "write", path: "file", args: func(*bench) []any { return []any{length, dataNodes} }})
				if err == nil {
					_, err = c.ask("delete", directory(c.name))
				}
				if err == nil {
					err = s.settle(ctx)
				}
				return f, err
			}
			_, err = write(warmFile)
			for _, file := range files {
				var f figure
				if err == nil {
					f, err = write(file << 30)
				}
				if err != nil {
					return errors.Join(err, c.Stop())
				}
				at := cell{file, packet, col.name}
				if took[at] == nil {
					took[at] = &taken{}
				}
				took[at].seconds = append(took[at].seconds, float64(f.numbers[0])/1e9)
				took[at].cpu = append(took[at].cpu, f.cpu/1e9)
			}
			if err := c.Stop(); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "%s: round %d of %d\n", col.name, round+1, b.rounds)
	}
	return nil
}

// written are the columns that were measured.
func written(took map[cell]*taken) []column {
	return columnsWith(func(name string) bool {
		for at := range took {
			if at.column == name {
				return true
			}
		}
		return false
	})
}

// packetFiles are the cells in the table's order.
func packetFiles(files []int64, took map[cell]*taken) (out []packetResult) {
	for _, file := range files {
		for _, packet := range packetSizes {
			for _, col := range written(took) {
				t := took[cell{file, packet, col.name}]
				out = append(out, packetResult{file, packet, col.name, t.seconds, t.cpu})
			}
		}
	}
	return out
}

// packetTable shows the medians; the best of each file and transport is bold, and the seconds
// with the packets that suit it have a mark.
func packetTable(files []int64, took map[cell]*taken) string {
	var s strings.Builder
	columns := written(took)
	fmt.Fprint(&s, "| file | packets of |")
	for _, col := range columns {
		fmt.Fprintf(&s, " %s | CPU |", col.name)
	}
	fmt.Fprintf(&s, "\n|---|---|%s\n", strings.Repeat("---:|", 2*len(columns)))
	quantities := []func(*taken) []float64{func(t *taken) []float64 { return t.seconds }, func(t *taken) []float64 { return t.cpu }}
	for _, file := range files {
		for _, packet := range packetSizes {
			fmt.Fprintf(&s, "| %d GiB | %s |", file, beside.Bytes(float64(packet)))
			for _, col := range columns {
				for i, of := range quantities {
					m, best := beside.Middle(of(took[cell{file, packet, col.name}])), math.Inf(1)
					for _, other := range packetSizes {
						best = min(best, beside.Middle(of(took[cell{file, other, col.name}])))
					}
					bold := ""
					if m == best {
						bold = "**"
					}
					mark := ""
					if i == 0 && packet == col.suits() {
						mark = " †"
					}
					fmt.Fprintf(&s, " %s%.2f%s%s |", bold, m, bold, mark)
				}
			}
			fmt.Fprintln(&s)
		}
	}
	return s.String()
}
