package providers

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

func TestDefault(t *testing.T) {
	var names []string
	for _, p := range Default() {
		names = append(names, p.Name())
		if _, err := p.Devices(context.Background()); err != nil && !errors.Is(err, rdma.ErrUnavailable) {
			t.Errorf("%s: %v", p.Name(), err)
		}
	}
	if !slices.Equal(names, Names()) {
		t.Errorf("names %v, providers %v", Names(), names)
	}
	if len(names) != len(made) {
		t.Errorf("%d providers of %d", len(names), len(made))
	}
	last := -1
	for _, name := range []string{"shm", "ibverbs", "iwarp"} {
		if i := slices.Index(names, name); i >= 0 {
			if i < last {
				t.Errorf("order %v, want shm before ibverbs before iwarp", names)
			}
			last = i
		}
	}
	again := Default()
	for i, p := range Default() {
		if p == again[i] {
			t.Errorf("%s is shared between two sets", p.Name())
		}
	}
}
