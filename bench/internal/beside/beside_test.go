package beside

import (
	"strings"
	"testing"
)

func TestRows(t *testing.T) {
	measured := Row{What: "a", Beside: "b", Ours: 2, Theirs: 4, Ratio: 0.5, Unit: "ns", Low: 0.4, High: 0.6}
	better, worse, without := measured, measured, measured
	better.Judge(AtMost(0.5))
	worse.Judge(AtLeast(2))
	without.Judge(Target{})
	missing := Row{What: "a", Beside: "b", Unit: "ns", Skipped: "it is not installed"}
	missing.Judge(AtMost(0.5))
	var out strings.Builder
	if err := Write(&out, []Row{better, worse, without, missing}); err != nil {
		t.Fatal(err)
	}
	const figures = `{"what":"a","beside":"b","ours":2,"theirs":4,"ratio":0.5,`
	want := figures + `"target":"at most 0.5","met":true,"unit":"ns","low":0.4,"high":0.6}
` + figures + `"target":"at least 2","met":false,"unit":"ns","low":0.4,"high":0.6}
` + figures + `"unit":"ns","low":0.4,"high":0.6}
{"what":"a","beside":"b","ours":0,"theirs":0,"ratio":0,"target":"at most 0.5","unit":"ns","skipped":"it is not installed"}
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	for i, mark := range []string{"met", "**missed**", "", "not measured"} {
		if got := []*Row{&better, &worse, &without, &missing}[i].Mark(); got != mark {
			t.Errorf("row %d is marked %q, want %q", i, got, mark)
		}
	}
}

func TestTargetsAreReadAgain(t *testing.T) {
	for _, want := range []Target{AtMost(0.35), AtMost(1.0 / 30), AtLeast(2.5)} {
		got, ok := ParseTarget(want.String())
		if !ok || got != want || got.Limit() != want.limit+want.least || got.Least() != (want.least > 0) {
			t.Errorf("%+v of %q, want %+v", got, want.String(), want)
		}
	}
	for _, s := range []string{"", "at most", "at least x", "0.5"} {
		if got, ok := ParseTarget(s); ok {
			t.Errorf("%q is %+v", s, got)
		}
	}
}

func TestMiddle(t *testing.T) {
	if m := Middle([]float64{9, 1, 5}); m != 5 {
		t.Error(m)
	}
	if m := Middle([]float64{4, 1, 3, 2}); m != 2.5 {
		t.Error(m)
	}
}
