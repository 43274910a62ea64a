package shuffle_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-data/verbena/shuffle"
)

// What two processes have sent each other is in their metrics, under the exchange's name.
func TestCollector(t *testing.T) {
	exchanges := worlds[1].join(t, 2, shuffle.Config{Name: "measured", Threads: 2})
	exchangeAll(t, exchanges, 500, 100)
	sum := map[string]float64{}
	for _, x := range exchanges {
		registry := prometheus.NewPedanticRegistry()
		if err := registry.Register(shuffle.NewCollector(x)); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			m := f.GetMetric()[0]
			if name := m.GetLabel()[0].GetValue(); len(m.GetLabel()) != 1 || name != "measured" {
				t.Errorf("%s has the label %q", f.GetName(), name)
			}
			sum[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	if sent := sum["verbena_shuffle_sent_records_total"]; sent == 0 || sent != sum["verbena_shuffle_received_records_total"] {
		t.Errorf("%v records sent, %v received", sent, sum["verbena_shuffle_received_records_total"])
	}
	if sent := sum["verbena_shuffle_sent_bytes_total"]; sent == 0 || sent != sum["verbena_shuffle_received_bytes_total"] {
		t.Errorf("%v bytes sent, %v received", sent, sum["verbena_shuffle_received_bytes_total"])
	}
	for _, name := range []string{"sent_local_bytes_total", "sent_parts_total", "messages_total", "memory_bytes", "registered_bytes"} {
		if sum["verbena_shuffle_"+name] == 0 {
			t.Errorf("%s is 0", name)
		}
	}
}
