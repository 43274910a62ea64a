package perf

import (
	"fmt"
	"io"

	"github.com/verbena-data/verbena/internal/plot"
)

// Plot draws rows over their sizes, a line for each combination of everything
// else: latencies with a bar from p50 to p99, or bandwidth, or messages per second.
func Plot(w io.Writer, rows []Row) error {
	if len(rows) == 0 {
		return fmt.Errorf("perf: there is nothing to plot")
	}
	c := plot.Chart{
		Title: "verbena perf", Subtitle: "median one way, bars to the 99th percentile",
		XLabel: "message size", YLabel: "latency",
		FormatX: func(v float64) string { return FormatSize(int(v)) }, FormatY: formatTime,
	}
	value := func(r *Row) plot.Point { return plot.Point{X: float64(r.Size), Y: r.P50, Low: r.P50, High: r.P99} }
	switch rows[0].Mode {
	case ModeBandwidth:
		c.Subtitle, c.YLabel = "streaming", "bandwidth"
		c.FormatY = func(v float64) string { return formatRate(v) + "B/s" }
		value = func(r *Row) plot.Point { return plot.Point{X: float64(r.Size), Y: r.BytesPerS} }
	case ModeRate:
		c.Subtitle, c.YLabel, c.FormatY = "streaming", "messages per second", formatRate
		value = func(r *Row) plot.Point { return plot.Point{X: float64(r.Size), Y: r.OpsPerS} }
	}
	lines := map[string]int{}
	for i := range rows {
		r := &rows[i]
		if r.Mode != rows[0].Mode {
			continue // another unit
		}
		name := fmt.Sprintf("%s %s, %s, %s", r.Transport, r.Test, r.Wait, r.Level)
		if n := r.measurement.Plan.Connections; n > 1 {
			name += fmt.Sprintf(", %d conns", n)
		}
		k, ok := lines[name]
		if !ok {
			k = len(c.Series)
			lines[name] = k
			c.Series = append(c.Series, plot.Series{Name: name})
		}
		c.Series[k].Points = append(c.Series[k].Points, value(r))
	}
	return c.Write(w)
}
