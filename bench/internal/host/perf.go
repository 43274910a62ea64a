package host

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// A PerfRow is what verbena perf --json --details tells of a measurement.
type PerfRow struct {
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
	RoundP50    float64 `json:"rtt_p50_ns,omitempty"` // of calls
	RoundP99    float64 `json:"rtt_p99_ns,omitempty"`
	OpsPerS     float64 `json:"ops_per_s"`
	BytesPerS   float64 `json:"bytes_per_s"`
	CPU         float64 `json:"cpu_s"`
	Connections int     `json:"connections"`
	Posters     int     `json:"posters"`
	Registered  int64   `json:"registered_bytes"`
	Resident    int64   `json:"resident_bytes"`
}

// Perf runs the binary verbena as verbena perf, with a server of its own, each end on its
// processor.
func Perf(ctx context.Context, verbena string, duration time.Duration, args ...string) ([]PerfRow, error) {
	args = append([]string{
		"perf", "--json", "--details", "--quiet", "--cpu", fmt.Sprint(ClientCPU), "--server-cpu", fmt.Sprint(ServerCPU),
		"--duration", duration.String(), "--timeout", (Patience / 2).String(),
	}, args...)
	out, err := Output(ctx, nil, verbena, args...)
	if err != nil {
		return nil, err
	}
	var rows []PerfRow
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var r PerfRow
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("verbena perf: %w", err)
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("verbena perf printed no row: %s", Tail(out))
	}
	return rows, nil
}
