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
	if i, j := slices.Index(names, "shm"), slices.Index(names, "iwarp"); i >= 0 && j >= 0 && i > j {
		t.Errorf("order %v, want shm before iwarp", names)
	}
	again := Default()
	for i, p := range Default() {
		if p == again[i] {
			t.Errorf("%s is shared between two sets", p.Name())
		}
	}
}
