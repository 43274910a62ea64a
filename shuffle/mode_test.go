package shuffle_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle"
)

// Auto chooses by the transport, and over adapters by how many processes there are.
func TestAutoChooses(t *testing.T) {
	const one, two = shuffle.OneSided, shuffle.TwoSided
	for _, c := range []struct {
		transport   string
		hosts, each int // processes of each host
		mode        shuffle.Mode
		most        int
		want        shuffle.Mode
	}{
		{verbena.TransportTCP, 2, 1, shuffle.Auto, 0, two},
		{verbena.TransportTCP, 2, 1, one, 0, one},
		{"shm", 1, 64, shuffle.Auto, 0, one},
		{"iwarp", 64, 32, shuffle.Auto, 0, one},
		{"ibverbs", 2, 16, shuffle.Auto, 0, one},    // 16 times 16
		{"ibverbs", 2, 17, shuffle.Auto, 0, two},    // 17 times 17
		{"ibverbs", 257, 1, shuffle.Auto, 0, one},   // 256
		{"ibverbs", 258, 1, shuffle.Auto, 0, two},   // 257
		{"ibverbs", 3, 1, shuffle.Auto, 1, two},     // 2
		{"ibverbs", 258, 1, one, 0, one},            // as was asked for
		{"ibverbs", 2, 1, two, 0, two},              // likewise
		{"ibverbs", 64, 32, shuffle.Auto, 1e6, one}, // 64,512
	} {
		cfg := shuffle.Config{Size: c.hosts * c.each, Mode: c.mode, MostPuts: c.most}
		for host := range c.hosts {
			for range c.each {
				cfg.Addresses = append(cfg.Addresses, fmt.Sprintf("host%d:1", host))
			}
		}
		mode, why := shuffle.Choose(cfg, c.transport)
		if mode != c.want || why == "" {
			t.Errorf("%+v: %v, because %s", c, mode, why)
		}
	}
}

// Stats tells what was chosen.
func TestWays(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		for _, x := range w.join(t, 3, shuffle.Config{}) {
			want := shuffle.OneSided
			if strings.Contains(w.name, "two-sided") || w.name == "tcp" {
				want = shuffle.TwoSided
			}
			if ways := x.Stats().Ways; len(ways) != 1 || ways[0].Peers != 2 || ways[0].Mode != want || ways[0].Transport != w.transport || ways[0].Why == "" {
				t.Errorf("%+v", ways)
			}
		}
	})
}

func TestMostPutsIsNotNegative(t *testing.T) {
	if x, err := shuffle.Join(t.Context(), shuffle.Config{MostPuts: -1}); err == nil || !strings.Contains(err.Error(), "MostPuts") {
		t.Error(x, err)
	}
}

// Modes have names, by which they are read again.
func TestModesAsText(t *testing.T) {
	for mode, name := range map[shuffle.Mode]string{shuffle.Auto: "auto", shuffle.OneSided: "one-sided", shuffle.TwoSided: "two-sided"} {
		text, err := mode.MarshalText()
		var again shuffle.Mode
		if err := errors.Join(err, again.UnmarshalText(text)); err != nil || again != mode || string(text) != name {
			t.Errorf("%s: %q, %v, %v", name, text, again, err)
		}
	}
	mode := shuffle.OneSided
	if err := mode.UnmarshalText([]byte("three-sided")); err == nil || mode != shuffle.OneSided {
		t.Error(mode, err)
	}
}
