package shuffle_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

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
			labels := 1
			if f.GetName() == "verbena_shuffle_peers" {
				labels = 3
			}
			if name := m.GetLabel()[0].GetValue(); len(m.GetLabel()) != labels || name != "measured" {
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

// Processes are told apart by the way that leads to them.
func TestCollectorTellsWays(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		x := w.join(t, 3, shuffle.Config{Name: "ways"})[0]
		mode := shuffle.OneSided
		if strings.Contains(w.name, "two-sided") || w.name == "tcp" {
			mode = shuffle.TwoSided
		}
		want := fmt.Sprintf(`# HELP verbena_shuffle_peers Processes that this one exchanges with, by transport, and by whether blocks are put (one-sided) or sent (two-sided).
# TYPE verbena_shuffle_peers gauge
verbena_shuffle_peers{exchange="ways",mode="%s",transport="%s"} 2
`, mode, w.transport)
		if err := testutil.CollectAndCompare(shuffle.NewCollector(x), strings.NewReader(want), "verbena_shuffle_peers"); err != nil {
			t.Error(err)
		}
	})
}

// docs/jobs.md has all metrics, and no others.
func TestMetricsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/jobs.md")
	if err != nil {
		t.Fatal(err)
	}
	has := map[string]bool{}
	for _, name := range regexp.MustCompile("`(verbena_shuffle_[a-z_]+)`").FindAllStringSubmatch(string(page), -1) {
		has[name[1]] = true
	}
	descriptions := make(chan *prometheus.Desc, 100)
	shuffle.NewCollector(alone(t, shuffle.Config{})).Describe(descriptions)
	close(descriptions)
	for d := range descriptions {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]
		if !has[name] {
			t.Errorf("docs/jobs.md lacks %s", name)
		}
		delete(has, name)
	}
	for name := range has {
		t.Errorf("docs/jobs.md has %s, which is not there", name)
	}
}
