package beside

import (
	"context"
	"errors"
	"testing"
)

func TestRoundTellsHowFarTheProcessorsWere(t *testing.T) {
	var order []string
	ours := func(context.Context) (float64, error) { order = append(order, "ours"); return 2, nil }
	theirs := func(context.Context) (float64, error) { order = append(order, "theirs"); return 4, nil }
	for _, first := range []bool{true, false} {
		order = nil
		r, err := Pair(t.Context(), ours, theirs, first)
		if err != nil {
			t.Skip("no two processors to bind to: ", err)
		}
		if r.Ours != 2 || r.Theirs != 4 || (order[0] == "ours") != first {
			t.Errorf("%+v in order %v", r, order)
		}
		for _, d := range r.Distances {
			if d <= 0 {
				t.Errorf("distances %v", r.Distances)
			}
		}
	}
	broken := errors.New("broken")
	theirs = func(context.Context) (float64, error) { return 0, broken }
	if _, err := Pair(t.Context(), ours, theirs, true); !errors.Is(err, broken) {
		t.Error(err)
	}
	theirs = func(context.Context) (float64, error) { return 0, nil }
	if _, err := Pair(t.Context(), ours, theirs, true); err == nil {
		t.Error("nothing was measured and that is no error")
	}
}
