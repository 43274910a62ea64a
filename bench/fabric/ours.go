package main

import (
	"context"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/bench/internal/host"
)

type row = host.PerfRow

func (b *bench) perf(ctx context.Context, args ...string) ([]row, error) {
	return host.Perf(ctx, b.verbena, b.duration(), args...)
}

// duration is that of one measurement.
func (b *bench) duration() time.Duration {
	if b.short {
		return 100 * time.Millisecond
	}
	return 700 * time.Millisecond
}

// iterations is a peer's count, in proportion.
func (b *bench) iterations(n int) string {
	if b.short {
		n /= 7
	}
	return fmt.Sprint(n)
}

// ours makes a measurement that returns one number of one row.
func (b *bench) ours(value func(row) float64, args ...string) measure {
	return func(ctx context.Context) (float64, error) {
		rows, err := b.perf(ctx, args...)
		if err != nil {
			return 0, err
		}
		return value(rows[0]), nil
	}
}

func p50(r row) float64       { return r.P50 }
func opsPerS(r row) float64   { return r.OpsPerS }
func bytesPerS(r row) float64 { return r.BytesPerS }
