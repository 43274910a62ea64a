package hdfs

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestDisksCollector(t *testing.T) {
	s := startSystem(t, 2, 2)
	registry := prometheus.NewRegistry()
	if err := registry.Register(NewDisksCollector(s.DataNodes...)); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "verbena_hdfs_datanode_")
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue()
		}
	}
	if _, ok := got["disk_wait_seconds"]; !ok || len(got) != 8 || got["directories in service"] != 2 || got["directories hanging"] != 0 || got["directories failed"] != 0 {
		t.Errorf("%v", got)
	}
}
