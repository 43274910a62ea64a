package tally

import "testing"

func of(records ...string) (t Tally) {
	for _, r := range records {
		t.Add([]byte(r))
	}
	return t
}

func TestTally(t *testing.T) {
	all := of("a", "b", "b", "")
	parts := of("b", "")
	parts.Merge(of("b", "a"))
	if all != parts {
		t.Errorf("%+v in one order, %+v in another", all, parts)
	}
	for _, other := range []Tally{of("a", "b", ""), of("a", "a", "b", ""), of("a", "b", "c", ""), of("ab", "b", "", "")} {
		if other == all {
			t.Errorf("%+v is that of two multisets", all)
		}
	}
}
