package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// growth is how the cost grows, by what is varied.
type growth struct {
	Connections []row `json:"connections"` // each in processes of its own
	Latency     []row `json:"latency"`     // of all sizes
	Bandwidth   []row `json:"bandwidth"`
	Posters     []row `json:"posters"`
	// Failed says which measurements came to nothing, and why.
	Failed []string `json:"failed,omitempty"`
}

// networks are the transports whose cost is shown.
var networks = []string{"shm", "iwarp"}

func (b *bench) grow(ctx context.Context) (*growth, error) {
	g := &growth{}
	run := func(into *[]row, args ...string) error {
		fmt.Fprintln(os.Stderr, "growth:", strings.Join(args, " "))
		rows, err := b.perf(ctx, args...)
		*into = append(*into, rows...)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "  ", err)
			g.Failed = append(g.Failed, strings.Join(args, " ")+": "+err.Error())
			return nil // the others may tell something
		}
		return err
	}
	for _, transport := range networks {
		for _, n := range []int{1, 10, 100, 1000} {
			// Few receives each, as many connections have.
			common := []string{"--transport", transport, "--size", "64", "--connections", strconv.Itoa(n), "--warmup", strconv.Itoa(2 * n)}
			if err := run(&g.Connections, append(common, "--mode", "rate", "--window", "16", "--receives", "32")...); err != nil {
				return nil, err
			}
			if err := run(&g.Connections, append(common, "--mode", "lat", "--wait", "event")...); err != nil {
				return nil, err
			}
		}
		sizes := []string{"--all"}
		if b.short {
			sizes = []string{"--size", "1,64,4K,256K,64M"}
		}
		if err := run(&g.Latency, append(sizes, "--transport", transport, "--mode", "lat", "--warmup", "200")...); err != nil {
			return nil, err
		}
		if err := run(&g.Bandwidth, append(sizes, "--transport", transport, "--mode", "bw", "--warmup", "200")...); err != nil {
			return nil, err
		}
		for _, n := range []int{1, 2, 4, 8, 16, 32, 64} {
			// On one connection, and each on its own.
			for _, connections := range []int{1, n} {
				if n == 1 && len(g.Posters) > 0 && g.Posters[len(g.Posters)-1].Transport == transport {
					continue // the same
				}
				err := run(&g.Posters, "--transport", transport, "--size", "64", "--mode", "rate", "--window", "16",
					"--posters", strconv.Itoa(n), "--connections", strconv.Itoa(connections))
				if err != nil {
					return nil, err
				}
			}
		}
	}
	return g, nil
}
