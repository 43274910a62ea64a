package plot

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
)

// drawn are the elements of a figure: their attributes by name, and the text of all.
func drawn(t *testing.T, c interface{ Write(io.Writer) error }) (elements map[string][]map[string]string, text string) {
	t.Helper()
	var b bytes.Buffer
	if err := c.Write(&b); err != nil {
		t.Fatal(err)
	}
	elements = map[string][]map[string]string{}
	var all strings.Builder
	d := xml.NewDecoder(&b)
	for {
		token, err := d.Token()
		if err == io.EOF {
			return elements, all.String()
		}
		if err != nil {
			t.Fatal("not XML:", err)
		}
		switch e := token.(type) {
		case xml.CharData:
			all.Write(e)
		case xml.StartElement:
			attributes := map[string]string{}
			for _, a := range e.Attr {
				attributes[a.Name.Local] = a.Value
			}
			elements[e.Name.Local] = append(elements[e.Name.Local], attributes)
		}
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// bars are the rectangles that are bars, in the order in which they are drawn.
func bars(t *testing.T, elements map[string][]map[string]string) (out []map[string]string) {
	t.Helper()
	for _, r := range elements["rect"] {
		if r["height"] == strconv.Itoa(barHeight) {
			out = append(out, r)
		}
	}
	return out
}

// The parts of a bar lie one behind the other, each as long as it says.
func TestStackedBars(t *testing.T) {
	c := &Bars{Title: "Where <time> goes", Subtitle: "a machine", Label: "milliseconds", Parts: []string{"wait", "work", "rest"}, Groups: []Group{{Bars: []Bar{
		{Name: "a", Parts: []float64{10, 20, 0}},
		{Name: "b", Parts: []float64{0, 5, 15}},
	}}}}
	elements, text := drawn(t, c)
	got := bars(t, elements)
	if len(got) != 4 {
		t.Fatalf("%d rectangles", len(got))
	}
	var x, wide [4]float64
	for i, r := range got {
		x[i], wide[i] = number(t, r["x"]), number(t, r["width"])
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 0.3 }
	if !near(x[0]+wide[0], x[1]) || !near(x[2]+wide[2], x[3]) || !near(x[0], x[2]) {
		t.Errorf("begin at %v, wide %v", x, wide)
	}
	if !near(wide[1], 2*wide[0]) || !near(wide[3], 3*wide[2]) || !near(wide[0], 2*wide[2]) {
		t.Errorf("wide %v", wide)
	}
	if got[0]["fill"] == got[1]["fill"] || got[1]["fill"] != got[2]["fill"] {
		t.Error("colours are not those of the parts")
	}
	if got[0]["y"] != got[1]["y"] || got[0]["y"] == got[2]["y"] {
		t.Error("bars are not below each other")
	}
	for _, want := range []string{"Where <time> goes", "a machine", "milliseconds", "wait", "work", "rest", "30", "20"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the text", want)
		}
	}
	if strings.Contains(text, "target") {
		t.Error("a target that no bar has is explained")
	}
}

// Ratios go from 1 to the left or to the right, as far for 1/4 as for 4; targets lie where they say.
func TestRatios(t *testing.T) {
	c := &Bars{Title: "ratios", Label: "ours / theirs", Ratios: true, Parts: []string{"met", "missed"}, Groups: []Group{
		{Name: "less", Bars: []Bar{{Name: "quarter", Note: "beside it", Parts: []float64{0.25, 0}, Low: 0.2, High: 0.5, Target: 0.5}}},
		{Name: "more", Bars: []Bar{{Name: "four", Parts: []float64{0, 4}, Target: 5}}},
	}}
	elements, text := drawn(t, c)
	got := bars(t, elements)
	if len(got) != 2 {
		t.Fatalf("%d rectangles", len(got))
	}
	less, more := got[0], got[1]
	one := number(t, more["x"])
	if end := number(t, less["x"]) + number(t, less["width"]); math.Abs(end-one) > 0.3 || math.Abs(number(t, less["width"])-number(t, more["width"])) > 0.3 {
		t.Errorf("a quarter goes to %v by %s, four from %v by %s", end, less["width"], one, more["width"])
	}
	var targets []float64
	for _, l := range elements["line"] {
		if l["stroke-width"] == "2" {
			targets = append(targets, number(t, l["x1"]))
		}
	}
	octave := number(t, less["width"]) / 2
	if len(targets) != 3 || math.Abs(targets[1]-(one-octave)) > 0.3 || math.Abs(targets[2]-(one+octave*math.Log2(5))) > 0.3 { // the first one is the legend's
		t.Errorf("targets at %v, 1 at %v, a factor of 2 is %v", targets, one, octave)
	}
	for _, want := range []string{"less", "more", "quarter", "beside it", "four", "met", "missed", "target", "ours / theirs"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the text", want)
		}
	}
}

func TestBarsThatCannotBeDrawnAreRefused(t *testing.T) {
	with := func(ratios bool, parts ...float64) *Bars {
		return &Bars{Ratios: ratios, Parts: []string{"a", "b"}, Groups: []Group{{Bars: []Bar{{Parts: parts}}}}}
	}
	for name, c := range map[string]*Bars{
		"nothing":                {Parts: []string{"a"}},
		"no parts":               {Groups: []Group{{Bars: []Bar{{Parts: []float64{1}}}}}},
		"too many parts":         {Parts: make([]string, MaxSeries+1)},
		"a part without meaning": with(false, 1, 2, 3),
		"less than nothing":      with(false, -1),
		"no number":              with(false, math.NaN()),
		"all of them 0":          with(false, 0, 0),
		"a ratio of 0":           with(true, 0, 0),
		"a ratio of two parts":   with(true, 1, 2),
	} {
		if err := c.Write(io.Discard); err == nil {
			t.Error(name, "was drawn")
		}
	}
}
