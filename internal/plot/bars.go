package plot

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bars is a figure of horizontal bars, in groups that have a heading each.
type Bars struct {
	Title, Subtitle string
	Label           string               // of the axis, with its unit
	Format          func(float64) string // default: %g
	// Ratios has bars begin at 1, left or right, on a logarithmic axis. Others begin at 0.
	Ratios bool
	Parts  []string // what the colours mean, in order
	Groups []Group
}

// A Group is some bars below each other.
type Group struct {
	Name string
	Bars []Bar
}

// A Bar is as long as its parts, which have the order of Bars.Parts, are together; no part is negative. A ratio is one
// part, the others are 0.
type Bar struct {
	Name, Note string // the note is written below the name
	Parts      []float64
	Low, High  float64 // the spread, if they are set
	Target     float64 // is marked, if it is set
}

func (b *Bar) length() (sum float64) {
	for _, p := range b.Parts {
		sum += p
	}
	return sum
}

// Widths and heights of what bars consist of: the axis has barsWidth at least, a letter in the mean at most letter.
const (
	letter                     = 7
	barsWidth, barsRight       = 440, 84
	barsTop, barsBottom        = 84, 52
	barHeight, groupHeight     = 14, 26
	rowHeight, rowHeightOfNote = 22, 34
)

// Write draws the figure.
func (c *Bars) Write(w io.Writer) error {
	a, err := c.axis()
	if err != nil {
		return err
	}
	format := c.Format
	if format == nil {
		format = func(v float64) string { return fmt.Sprintf("%g", v) }
	}
	rows, longest := 0, 0
	for _, g := range c.Groups {
		if g.Name != "" {
			rows += groupHeight
		}
		for _, b := range g.Bars {
			rows += b.height()
			longest = max(longest, utf8.RuneCountInString(b.Name), utf8.RuneCountInString(b.Note))
		}
	}
	a.left = float64(max(longest*letter+24, left))
	a.width = max(barsWidth, width-barsRight-a.left)
	x0, x1, bottom := a.left, a.left+a.width, barsTop+rows
	var s strings.Builder
	begin(&s, c.Title, c.Subtitle, int(x1)+barsRight, bottom+barsBottom, 16)
	at := 16.0
	for i, p := range c.Parts {
		fmt.Fprintf(&s, `<rect x="%.1f" y="58" width="10" height="10" fill="%s"/><text x="%.1f" y="67">%s</text>`+"\n", at, colours[i], at+15, escape(p))
		at += float64(utf8.RuneCountInString(p)*letter) + 32
	}
	if c.targets() {
		fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="55" y2="71" stroke="#212529" stroke-width="2"/><text x="%.1f" y="67">target</text>`+"\n", at+5, at+5, at+15)
	}
	for _, v := range a.ticks {
		fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#e9ecef"/>`, a.x(v), a.x(v), barsTop, bottom)
		fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", a.x(v), bottom+18, escape(format(v)))
	}
	fmt.Fprintf(&s, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", (x0+x1)/2, bottom+40, escape(c.Label))
	y := barsTop
	for _, g := range c.Groups {
		if g.Name != "" {
			fmt.Fprintf(&s, `<text x="16" y="%d" font-weight="600" fill="#212529">%s</text>`+"\n", y+18, escape(g.Name))
			y += groupHeight
		}
		for _, b := range g.Bars {
			c.bar(&s, &a, &b, y, format)
			y += b.height()
		}
	}
	fmt.Fprintf(&s, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#868e96"/>`+"\n", a.x(a.base), a.x(a.base), barsTop, bottom)
	s.WriteString("</svg>\n")
	_, err = io.WriteString(w, s.String())
	return err
}

func (b *Bar) height() int {
	if b.Note != "" {
		return rowHeightOfNote
	}
	return rowHeight
}

// bar draws one whose row begins at y.
func (c *Bars) bar(s *strings.Builder, a *axis, b *Bar, y int, format func(float64) string) {
	middle := float64(y + b.height()/2)
	name := middle + 4
	if b.Note != "" {
		name = middle - 3
		fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="end" font-size="11" fill="#6c757d">%s</text>`+"\n", a.left-10, middle+11, escape(b.Note))
	}
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" text-anchor="end">%s</text>`+"\n", a.left-10, name, escape(b.Name))
	from := a.base
	for i, p := range b.Parts {
		if p == 0 {
			continue
		}
		to := p
		if !c.Ratios {
			to += from
		}
		x, end := min(a.x(from), a.x(to)), max(a.x(from), a.x(to))
		fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"><title>%s, %s: %s</title></rect>`+"\n",
			x, middle-barHeight/2, end-x, barHeight, colours[i], escape(b.Name), escape(c.Parts[i]), escape(format(p)))
		from = to
	}
	if b.Low > 0 && b.High > b.Low {
		fmt.Fprintf(s, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#343a40" stroke-opacity="0.55"/>`+"\n", a.x(b.Low), a.x(b.High), middle, middle)
	}
	if b.Target > 0 {
		fmt.Fprintf(s, `<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#212529" stroke-width="2"><title>target: %s</title></line>`+"\n",
			a.x(b.Target), a.x(b.Target), middle-barHeight/2-3, middle+barHeight/2+3, escape(format(b.Target)))
	}
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f">%s</text>`+"\n", a.left+a.width+12, middle+4, escape(format(b.length())))
}

func (c *Bars) targets() bool {
	return slices.ContainsFunc(c.Groups, func(g Group) bool {
		return slices.ContainsFunc(g.Bars, func(b Bar) bool { return b.Target > 0 })
	})
}

// axis is that of bars: where they begin, and how far it goes.
type axis struct {
	ratios         bool
	min, max, base float64
	ticks          []float64
	left, width    float64 // where it is drawn
}

func (c *Bars) axis() (a axis, err error) {
	if len(c.Parts) == 0 || len(c.Parts) > MaxSeries {
		return a, fmt.Errorf("plot: %d parts, bars have 1 to %d", len(c.Parts), MaxSeries)
	}
	a = axis{ratios: c.Ratios}
	if c.Ratios {
		a.min, a.max, a.base = 1, 1, 1
	}
	drawn := 0
	for _, g := range c.Groups {
		for _, b := range g.Bars {
			if err := c.check(&b); err != nil {
				return a, fmt.Errorf("plot: bar %q %w", b.Name, err)
			}
			drawn++
			a.max = max(a.max, b.length(), b.High, b.Target)
			for _, v := range []float64{b.length(), b.Low, b.Target} {
				if c.Ratios && v > 0 {
					a.min = min(a.min, v)
				}
			}
		}
	}
	switch {
	case drawn == 0:
		return a, errors.New("plot: there are no bars")
	case c.Ratios:
		a.min, a.max = floorTick(a.min), ceilTick(a.max)
		a.ticks = decades(a.min, a.max, 1e4)
	case a.max == 0:
		return a, errors.New("plot: all bars are 0")
	default:
		step := ceilTick(a.max / 8)
		a.max = step * math.Ceil(a.max/step)
		for i := 0.0; i*step <= a.max*1.001; i++ {
			a.ticks = append(a.ticks, i*step)
		}
	}
	return a, nil
}

func (c *Bars) check(b *Bar) error {
	if len(b.Parts) > len(c.Parts) {
		return fmt.Errorf("has %d parts, of %d", len(b.Parts), len(c.Parts))
	}
	some := 0
	for _, v := range b.Parts {
		if v < 0 || math.IsInf(v, 0) || math.IsNaN(v) {
			return fmt.Errorf("has a part of %g", v)
		}
		if v > 0 {
			some++
		}
	}
	if c.Ratios && some != 1 {
		return fmt.Errorf("has %d parts, a ratio is one", some)
	}
	return nil
}

func (a *axis) x(v float64) float64 {
	share := v / a.max
	if a.ratios {
		share = math.Log(v/a.min) / math.Log(a.max/a.min)
	}
	return a.left + share*a.width
}
