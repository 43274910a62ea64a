package plot

import (
	"io"
	"strconv"
	"strings"
	"testing"
)

func chart() *Chart {
	c := &Chart{Title: "Send <one way> & back", Subtitle: "two processes", XLabel: "size", YLabel: "ns"}
	for _, name := range []string{"shm", "iwarp", "ucx"} {
		s := Series{Name: name}
		for i := range 12 {
			y := float64((i + 1) * 100)
			s.Points = append(s.Points, Point{X: float64(int(1) << i), Y: y, Low: y / 2, High: y * 2})
		}
		c.Series = append(c.Series, s)
	}
	return c
}

func TestChartIsWellFormedAndShowsEverything(t *testing.T) {
	elements, text := drawn(t, chart())
	for _, line := range elements["polyline"] {
		inside(t, line["points"])
	}
	lines, titles := len(elements["polyline"]), len(elements["title"])
	if lines != 3 || titles != 1+3*12 {
		t.Errorf("%d lines and %d titles", lines, titles)
	}
	for _, want := range []string{"Send <one way> & back", "shm", "iwarp", "ucx", "size", "ns"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the text", want)
		}
	}
}

// inside checks that the points of a line lie in the picture, from left to
// right.
func inside(t *testing.T, points string) {
	t.Helper()
	last := -1.0
	fields := strings.Fields(points)
	if len(fields) != 12 {
		t.Errorf("%d points", len(fields))
	}
	for _, f := range fields {
		xs, ys, _ := strings.Cut(f, ",")
		x, err := strconv.ParseFloat(xs, 64)
		if err != nil {
			t.Fatal(err)
		}
		y, err := strconv.ParseFloat(ys, 64)
		if err != nil {
			t.Fatal(err)
		}
		if x < left || x > width-right || y < top-1 || y > height-bottom+1 || x <= last {
			t.Errorf("point at %v, %v", x, y)
		}
		last = x
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct{ v, floor, ceil float64 }{{1, 1, 1}, {3, 2, 5}, {70, 50, 100}, {0.3, 0.2, 0.5}} {
		if f, g := floorTick(c.v), ceilTick(c.v); f != c.floor || g != c.ceil {
			t.Errorf("%v: %v and %v", c.v, f, g)
		}
	}
	if n := len(bounds{1, 1 << 26, 1, 10}.ticksX()); n < 5 || n > 11 {
		t.Errorf("%d ticks", n)
	}
}

func TestWhatCannotBeDrawnIsRefused(t *testing.T) {
	for name, c := range map[string]*Chart{
		"nothing":  {},
		"empty":    {Series: []Series{{Name: "x"}}},
		"zero":     {Series: []Series{{Points: []Point{{X: 1}}}}},
		"too many": {Series: make([]Series, MaxSeries+1)},
	} {
		if err := c.Write(io.Discard); err == nil {
			t.Error(name, "was drawn")
		}
	}
}
