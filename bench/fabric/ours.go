package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A row is what verbena perf --json --details tells of a measurement.
type row struct {
	Level       string  `json:"level"`
	Transport   string  `json:"transport"`
	Test        string  `json:"test"`
	Mode        string  `json:"mode"`
	Wait        string  `json:"wait"`
	Size        int     `json:"size"`
	Iterations  int64   `json:"iterations"`
	P50         float64 `json:"p50_ns"`
	P99         float64 `json:"p99_ns"`
	P999        float64 `json:"p999_ns"`
	P9999       float64 `json:"p9999_ns"`
	OpsPerS     float64 `json:"ops_per_s"`
	BytesPerS   float64 `json:"bytes_per_s"`
	CPU         float64 `json:"cpu_s"`
	Connections int     `json:"connections"`
	Posters     int     `json:"posters"`
	Registered  int64   `json:"registered_bytes"`
	Resident    int64   `json:"resident_bytes"`
}

// perf runs verbena perf with a server of its own, each end on its processor.
func (b *bench) perf(ctx context.Context, args ...string) ([]row, error) {
	args = append([]string{
		"perf", "--json", "--details", "--quiet", "--cpu", fmt.Sprint(clientCPU), "--server-cpu", fmt.Sprint(serverCPU),
		"--duration", b.duration().String(), "--timeout", (patience / 2).String(),
	}, args...)
	out, err := output(ctx, nil, b.verbena, args...)
	if err != nil {
		return nil, err
	}
	var rows []row
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var r row
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("verbena perf: %w", err)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("verbena perf printed no row: %s", tail(out))
	}
	return rows, nil
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
