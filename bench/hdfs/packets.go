package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/internal/plot"
)

// packetSizes are the bytes of packets that are tried.
var packetSizes = []int{64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}

func packetsCommand(b *bench) *cobra.Command {
	var files []int64
	cmd := &cobra.Command{
		Use:   "packets",
		Short: "Time to write files by size of packets, a column for each transport",
		Long: `Write files with three replicas, with packets of 64 KiB to 1 MiB over each transport, and
tell the seconds: the medians of the rounds, the best size marked. It draws a plot of the first
size of files.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(files) == 0 {
				files = []int64{1, 2, 3, 4, 5}
				if b.quick {
					files = []int64{1}
				}
			}
			return b.run(cmd.Context(), func(ctx context.Context) error { return b.packets(ctx, files) })
		},
	}
	cmd.Flags().Int64SliceVar(&files, "files", nil, "`GiB` of each file (default: 1 to 5, with --quick 1)")
	cmd.Flags().IntVar(&b.rounds, "rounds", 0, "rounds (default: 5, with --quick 2)")
	return cmd
}

// cell is one place of the table.
type cell struct {
	file      int64
	packet    int
	transport string
}

func (b *bench) packets(ctx context.Context, files []int64) (err error) {
	took := map[cell][]float64{}
	for _, transport := range transports {
		if err := b.packetsOver(ctx, transport, files, took); err != nil {
			return err
		}
	}
	text := b.ran() + fmt.Sprintf(". %d rounds; medians, in seconds.\n\n", b.rounds) + packetTable(files, took)
	fmt.Print(text)
	if b.json {
		return nil
	}
	chart := plot.Chart{
		Title: fmt.Sprintf("Writing %d GiB, 3 replicas", files[0]), Subtitle: b.ran(), XLabel: "bytes of a packet", YLabel: "seconds",
		FormatX: beside.Bytes,
	}
	for _, transport := range transports {
		s := plot.Series{Name: transport}
		for _, packet := range packetSizes {
			v := took[cell{files[0], packet, transport}]
			s.Points = append(s.Points, plot.Point{X: float64(packet), Y: beside.Middle(v), Low: slices.Min(v), High: slices.Max(v)})
		}
		chart.Series = append(chart.Series, s)
	}
	file, err := os.Create(filepath.Join(b.out, "hdfs-packets.svg"))
	if err != nil {
		return err
	}
	if err := errors.Join(chart.Write(file), file.Close()); err != nil {
		return err
	}
	return b.replace("packets", text)
}

// packetsOver measures one transport: all sizes in turn, round after round.
func (b *bench) packetsOver(ctx context.Context, transport string, files []int64, took map[cell][]float64) (err error) {
	s, err := startOurs(ctx, b.binary, filepath.Join(b.work, transport), transport, b.user)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for round := -1; round < b.rounds; round++ { // the first one warms up
		for _, packet := range packetSizes {
			c, err := ourClient(ctx, b.self, transport, s.nameNode, transport, b.user, packet, b.log)
			if err != nil {
				return err
			}
			for _, file := range files {
				numbers, err := c.ask("write", "/file", file<<30, dataNodes)
				if err == nil {
					_, err = c.ask("delete", "/file")
				}
				if err == nil {
					err = s.settle(ctx)
				}
				if err != nil {
					return errors.Join(err, c.Stop())
				}
				if round >= 0 {
					at := cell{file, packet, transport}
					took[at] = append(took[at], float64(numbers[0])/1e9)
				}
			}
			if err := c.Stop(); err != nil {
				return err
			}
		}
		fmt.Fprintf(os.Stderr, "%s: round %d of %d\n", transport, round+1, b.rounds)
	}
	return nil
}

// packetTable shows the medians; the best of each file and transport is bold.
func packetTable(files []int64, took map[cell][]float64) string {
	var s strings.Builder
	fmt.Fprintf(&s, "| file | packets of | %s |\n|---|---|%s\n", strings.Join(transports, " | "), strings.Repeat("---:|", len(transports)))
	for _, file := range files {
		best := map[string]float64{}
		for at, v := range took {
			if m := beside.Middle(v); at.file == file && (best[at.transport] == 0 || m < best[at.transport]) {
				best[at.transport] = m
			}
		}
		for _, packet := range packetSizes {
			fmt.Fprintf(&s, "| %d GiB | %s |", file, beside.Bytes(float64(packet)))
			for _, transport := range transports {
				m, bold := beside.Middle(took[cell{file, packet, transport}]), ""
				if m == best[transport] {
					bold = "**"
				}
				fmt.Fprintf(&s, " %s%.2f%s |", bold, m, bold)
			}
			fmt.Fprintln(&s)
		}
	}
	return s.String()
}
