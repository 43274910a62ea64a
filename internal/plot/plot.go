// Package plot draws figures as SVG, readable in a README: a few series over a
// logarithmic axis, or bars. It is for what measurements leave behind, and knows no
// other kind.
package plot

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// A Chart is a figure. X is logarithmic to base 2, Y to base 10; both are positive.
type Chart struct {
	Title, Subtitle string
	XLabel, YLabel  string
	FormatX         func(float64) string // default: %g
	FormatY         func(float64) string
	Series          []Series
}

// A Series is a line.
type Series struct {
	Name   string
	Points []Point
}

// A Point lies at X and Y. Low and High, if they are set, are drawn as a bar: the
// spread.
type Point struct{ X, Y, Low, High float64 }

// The colours keep apart for readers who see some colours alike; the markers do
// where colours are not printed.
var colours = []string{"#2a6fdb", "#d9480f", "#0a8f6a", "#9c36b5", "#b58900", "#c2255c", "#495057", "#1098ad"}

const (
	width, height            = 860, 480
	left, right, top, bottom = 84, 190, 64, 62
)

// MaxSeries is how many lines a chart can hold apart.
const MaxSeries = 8

// Write draws the chart.
func (c *Chart) Write(w io.Writer) error {
	b, err := c.bounds()
	if err != nil {
		return err
	}
	formatX, formatY := c.FormatX, c.FormatY
	if formatX == nil {
		formatX = func(v float64) string { return fmt.Sprintf("%g", v) }
	}
	if formatY == nil {
		formatY = func(v float64) string { return fmt.Sprintf("%g", v) }
	}
	var s strings.Builder
	begin(&s, c.Title, c.Subtitle, width, height, left)
	for _, v := range decades(b.minY, b.maxY, 2000) {
		y := b.y(v)
		fmt.Fprintf(&s, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#e9ecef"/>`, left, width-right, y, y)
		fmt.Fprintf(&s, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", left-8, y+4, escape(formatY(v)))
	}
	for _, v := range b.ticksX() {
		x := b.x(v)
		fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#adb5bd"/>`, x, x, height-bottom, height-bottom+4)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, height-bottom+18, escape(formatX(v)))
	}
	fmt.Fprintf(&s, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="#adb5bd"/>`+"\n", left, width-right, height-bottom, height-bottom)
	fmt.Fprintf(&s, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (left+width-right)/2, height-14, escape(c.XLabel))
	fmt.Fprintf(&s, `<text transform="translate(18 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (top+height-bottom)/2, escape(c.YLabel))

	for i, series := range c.Series {
		colour := colours[i]
		points := slices.Clone(series.Points)
		slices.SortFunc(points, func(a, b Point) int { return int(math.Copysign(1, a.X-b.X)) })
		fmt.Fprintf(&s, `<g stroke="%s" fill="%s">`+"\n", colour, colour)
		var path []string
		for _, p := range points {
			path = append(path, fmt.Sprintf("%.1f,%.1f", b.x(p.X), b.y(p.Y)))
			if p.Low > 0 && p.High > p.Low {
				fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke-width="1" stroke-opacity="0.45"/>`+"\n",
					b.x(p.X), b.x(p.X), b.y(p.Low), b.y(p.High))
			}
		}
		fmt.Fprintf(&s, `<polyline points="%s" fill="none" stroke-width="2" stroke-linejoin="round"/>`+"\n", strings.Join(path, " "))
		for _, p := range points {
			fmt.Fprintf(&s, `<g stroke="#ffffff"><title>%s: %s, %s</title>%s</g>`+"\n",
				escape(series.Name), escape(formatX(p.X)), escape(formatY(p.Y)), marker(i, b.x(p.X), b.y(p.Y)))
		}
		y := float64(top + 8 + 22*i)
		fmt.Fprintf(&s, `<g stroke="#ffffff">%s</g></g>`, marker(i, width-right+20, y))
		fmt.Fprintf(&s, `<text x="%d" y="%.1f">%s</text>`+"\n", width-right+32, y+4, escape(series.Name))
	}
	s.WriteString("</svg>\n")
	_, err = io.WriteString(w, s.String())
	return err
}

// begin writes what all figures begin with; the titles begin at x.
func begin(s *strings.Builder, title, subtitle string, width, height, x int) {
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" font-family="system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif" font-size="12" fill="#343a40">`+"\n", width, height, width, height)
	fmt.Fprintf(s, "<title>%s</title>\n", escape(title))
	fmt.Fprintf(s, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(s, `<text x="%d" y="26" font-size="16" font-weight="600" fill="#212529">%s</text>`+"\n", x, escape(title))
	fmt.Fprintf(s, `<text x="%d" y="46" fill="#6c757d">%s</text>`+"\n", x, escape(subtitle))
}

// marker is a shape of the series' own.
func marker(i int, x, y float64) string {
	switch i % 4 {
	case 1:
		return fmt.Sprintf(`<rect x="%.1f" y="%.1f" width="8" height="8"/>`, x-4, y-4)
	case 2:
		return fmt.Sprintf(`<path d="M%.1f %.1fl5 9h-10z"/>`, x, y-5.5)
	case 3:
		return fmt.Sprintf(`<path d="M%.1f %.1fl5.5 5.5l-5.5 5.5l-5.5 -5.5z"/>`, x, y-5.5)
	}
	return fmt.Sprintf(`<circle cx="%.1f" cy="%.1f" r="4.5"/>`, x, y)
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // into memory
	return b.String()
}

// bounds are those of the points, widened to whole ticks.
type bounds struct{ minX, maxX, minY, maxY float64 }

func (c *Chart) bounds() (bounds, error) {
	b := bounds{math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)}
	if len(c.Series) == 0 || len(c.Series) > MaxSeries {
		return b, fmt.Errorf("plot: %d series, a chart has 1 to %d", len(c.Series), MaxSeries)
	}
	for _, s := range c.Series {
		if len(s.Points) == 0 {
			return b, fmt.Errorf("plot: series %q is empty", s.Name)
		}
		for _, p := range s.Points {
			for _, v := range []float64{p.X, p.Y} {
				if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
					return b, errors.New("plot: logarithmic axes need positive numbers")
				}
			}
			b.minX, b.maxX = min(b.minX, p.X), max(b.maxX, p.X)
			b.minY, b.maxY = min(b.minY, p.Y), max(b.maxY, p.Y, p.High)
			if p.Low > 0 {
				b.minY = min(b.minY, p.Low)
			}
		}
	}
	if b.minX == b.maxX {
		b.minX, b.maxX = b.minX/2, b.maxX*2
	}
	b.minY = floorTick(b.minY)
	b.maxY = ceilTick(max(b.maxY, b.minY*2))
	return b, nil
}

// floorTick is the greatest of 1, 2, 5 times a power of ten that is not above v.
func floorTick(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{5, 2} {
		if m*p <= v {
			return m * p
		}
	}
	return p
}

func ceilTick(v float64) float64 {
	p := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if m*p >= v {
			return m * p
		}
	}
	return 10 * p
}

func (b bounds) x(v float64) float64 {
	return left + (math.Log2(v)-math.Log2(b.minX))/(math.Log2(b.maxX)-math.Log2(b.minX))*(width-left-right)
}

func (b bounds) y(v float64) float64 {
	return height - bottom - (math.Log10(v)-math.Log10(b.minY))/(math.Log10(b.maxY)-math.Log10(b.minY))*(height-top-bottom)
}

// decades are powers of ten, and 2 and 5 times them where from and to are less than a factor of fine apart.
func decades(from, to, fine float64) []float64 {
	steps := []float64{1}
	if to/from < fine {
		steps = []float64{1, 2, 5}
	}
	var ticks []float64
	for e := math.Floor(math.Log10(from)); e <= math.Log10(to)+1e-9; e++ {
		for _, m := range steps {
			if v := m * math.Pow(10, e); v >= from*0.999 && v <= to*1.001 {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// ticksX are powers of two, at most ten or so.
func (b bounds) ticksX() []float64 {
	from, to := math.Ceil(math.Log2(b.minX)-1e-9), math.Floor(math.Log2(b.maxX)+1e-9)
	step := max(math.Ceil((to-from)/9), 1)
	var ticks []float64
	for e := from; e <= to; e += step {
		ticks = append(ticks, math.Exp2(e))
	}
	return ticks
}
