package perf

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// A Row is a measurement as --json shows it. A latency is half of the round trip; for
// Reads and atomics it is the whole operation. In the modes bw and rate it is the time
// between two messages.
type Row struct {
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
	RoundP50    float64 `json:"rtt_p50_ns,omitempty"` // of calls: there and back
	RoundP99    float64 `json:"rtt_p99_ns,omitempty"`
	OpsPerS     float64 `json:"ops_per_s"`
	BytesPerS   float64 `json:"bytes_per_s"`
	CPU         float64 `json:"cpu_s"`
	measurement *Measurement
}

// Row is the measurement's row.
func (m *Measurement) Row() Row {
	ops := float64(m.Iterations) / m.Took.Seconds()
	row := Row{
		Level: m.Plan.Level, Transport: m.Plan.Transport, Test: m.Plan.Test, Mode: m.Plan.Mode, Wait: m.Plan.Wait,
		Size: m.Plan.Size, Iterations: m.Iterations,
		P50: m.Quantile(50), P99: m.Quantile(99), P999: m.Quantile(99.9), P9999: m.Quantile(99.99),
		OpsPerS: ops, BytesPerS: ops * float64(m.Plan.Size), CPU: m.CPU.Seconds(), measurement: m,
	}
	if m.Plan.Test == TestCall {
		row.RoundP50, row.RoundP99 = row.P50*m.OneWay, row.P99*m.OneWay
	}
	return row
}

// WriteJSON writes the row as one line.
func (r Row) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// A Table prints rows under each other as they come.
type Table struct {
	w       io.Writer
	columns []column
	shown   bool
}

type column struct {
	title string
	width int
	value func(r *Row) string
}

// NewTable makes a table. It has the extra columns that tell its rows apart.
func NewTable(w io.Writer, verify, connections, posters bool) *Table {
	t := &Table{w: w, columns: []column{
		{"transport", 9, func(r *Row) string { return r.Transport }},
		{"level", 7, func(r *Row) string { return r.Level }},
		{"test", 6, func(r *Row) string { return r.Test }},
		{"mode", 4, func(r *Row) string { return r.Mode }},
		{"wait", 8, func(r *Row) string { return r.Wait }},
		{"size", 8, func(r *Row) string { return FormatSize(r.Size) }},
	}}
	if connections {
		t.columns = append(t.columns,
			column{"conns", 5, func(r *Row) string { return strconv.Itoa(r.measurement.Plan.Connections) }},
			column{"registered", 10, func(r *Row) string { return FormatSize(int(r.measurement.Registered)) }},
			column{"resident", 9, func(r *Row) string { return FormatSize(int(r.measurement.Resident) / page * page) }})
	}
	if posters {
		t.columns = append(t.columns, column{"posters", 7, func(r *Row) string { return strconv.Itoa(r.measurement.Plan.Posters) }})
	}
	t.columns = append(t.columns,
		column{"iterations", 10, func(r *Row) string { return strconv.FormatInt(r.Iterations, 10) }},
		column{"p50", 8, func(r *Row) string { return formatTime(r.P50) }},
		column{"p99", 8, func(r *Row) string { return formatTime(r.P99) }},
		column{"p99.9", 8, func(r *Row) string { return formatTime(r.P999) }},
		column{"p99.99", 8, func(r *Row) string { return formatTime(r.P9999) }},
		column{"messages/s", 10, func(r *Row) string { return formatRate(r.OpsPerS) }},
		column{"bandwidth", 11, func(r *Row) string { return formatRate(r.BytesPerS) + "B/s" }},
		column{"CPU s", 6, func(r *Row) string { return strconv.FormatFloat(r.CPU, 'f', 2, 64) }},
	)
	if verify {
		t.columns = append(t.columns, column{"verified", 10, func(r *Row) string { return FormatSize(int(r.measurement.Verified)) }})
	}
	return t
}

// Add prints one more row.
func (t *Table) Add(r Row) error {
	if !t.shown {
		t.shown = true
		for i, c := range t.columns {
			fmt.Fprintf(t.w, "%*s%s", c.width, c.title, t.end(i))
		}
	}
	for i, c := range t.columns {
		if _, err := fmt.Fprintf(t.w, "%*s%s", c.width, c.value(&r), t.end(i)); err != nil {
			return err
		}
	}
	return nil
}

func (t *Table) end(i int) string {
	if i == len(t.columns)-1 {
		return "\n"
	}
	return "  "
}

// formatTime shows nanoseconds with three figures or so.
func formatTime(ns float64) string {
	switch {
	case ns < 100:
		return strconv.FormatFloat(ns, 'f', 1, 64) + "ns"
	case ns < 10_000:
		return strconv.FormatFloat(ns, 'f', 0, 64) + "ns"
	case ns < 1e6:
		return strconv.FormatFloat(ns/1e3, 'f', 1, 64) + "us"
	case ns < 1e9:
		return strconv.FormatFloat(ns/1e6, 'f', 1, 64) + "ms"
	}
	return strconv.FormatFloat(ns/1e9, 'f', 2, 64) + "s"
}

// formatRate shows a number with a decimal prefix.
func formatRate(v float64) string {
	for _, p := range []struct {
		unit   float64
		prefix string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.unit {
			return strconv.FormatFloat(v/p.unit, 'f', 2, 64) + " " + p.prefix
		}
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " "
}

// Details are what --details adds to a row.
type Details struct {
	Row
	Connections int   `json:"connections"`
	Posters     int   `json:"posters"`
	Window      int   `json:"window"`
	Receives    int   `json:"receives"`
	Buffers     int   `json:"buffers"`
	Signal      int   `json:"signal"`
	Batch       int   `json:"batch"`
	Inline      int   `json:"inline"`
	ReadPayload bool  `json:"read_payload"`
	Shared      bool  `json:"shared_receives"`
	Registered  int64 `json:"registered_bytes"` // by both ends for the measurement; at level runtime by its pools
	Resident    int64 `json:"resident_bytes"`   // of both processes
	Verified    int64 `json:"verified_bytes"`
	// Turns are the medians of the turns in which rows of several levels are measured.
	Turns []float64 `json:"turn_p50_ns"`
}

// WriteDetails writes the row and its details as one line.
func (r Row) WriteDetails(w io.Writer) error {
	m := r.measurement
	p := m.Plan
	return json.NewEncoder(w).Encode(Details{
		Row: r, Connections: p.Connections, Posters: p.Posters, Window: p.Window, Receives: p.Receives, Buffers: p.Buffers,
		Signal: p.Signal, Batch: p.Batch, Inline: p.Inline, ReadPayload: p.ReadPayload, Shared: p.SharedReceives,
		Registered: m.Registered, Resident: m.Resident, Verified: m.Verified, Turns: m.Turns,
	})
}
