package beside

import (
	"fmt"
	"os"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/host"
)

// Medians is a row of figures of rounds, ours and theirs in the same order, with the ratio of the
// medians, and the least and the greatest ratio of a round. The figures are not 0.
func Medians(what, beside, unit string, ours, theirs []float64, target Target) Row {
	r := Row{What: what, Beside: beside, Unit: unit, Ours: Middle(ours), Theirs: Middle(theirs)}
	r.Ratio = r.Ours / r.Theirs
	for i := range ours {
		ratio := ours[i] / theirs[i]
		if i == 0 {
			r.Low, r.High = ratio, ratio
		}
		r.Low, r.High = min(r.Low, ratio), max(r.High, ratio)
	}
	r.Judge(target)
	return r
}

// Table shows rows in Markdown.
func Table(rows []Row) string {
	var s strings.Builder
	fmt.Fprintln(&s, "| what | beside | ours | theirs | ours / theirs | target | |\n|---|---|---:|---:|---:|---|---|")
	for _, r := range rows {
		if r.Skipped != "" {
			fmt.Fprintf(&s, "| %s | %s | | | | %s | not measured: %s |\n", r.What, r.Beside, r.Target, r.Skipped)
			continue
		}
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %.2f (%.2f to %.2f) | %s | %s |\n", r.What, r.Beside, long(r.Ours, r.Unit), long(r.Theirs, r.Unit), r.Ratio, r.Low, r.High, r.Target, r.Mark())
	}
	return s.String()
}

// long writes seconds where nanoseconds are very many.
func long(v float64, unit string) string {
	if unit == Nanoseconds && v >= 1e8 {
		return fmt.Sprintf("%.2f s", v/1e9)
	}
	return Show(v, unit)
}

// Ran tells in a line when and on what something was measured, and how fast its processors
// were just then (runs of before 2026-11-27 do not know it).
func Ran(m host.Machine) string {
	changed := ""
	if m.Changed {
		changed = " with changes"
	}
	speed := ""
	if m.Multiply != 0 {
		speed = fmt.Sprintf(", %.2f ns a multiplication of 3 cycles", m.Multiply)
	}
	return fmt.Sprintf("%s, %s, %d processors%s, %s, commit %s%s, load before %.1f", m.Date, m.Processor, m.Processors, speed, m.Go, m.Commit, changed, m.Load)
}

// Replace puts text between the marks of a part of a page; what people have written around it
// stays.
func Replace(file, part, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	out, err := Between(string(page), part, text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(out), 0o644)
}

// Between is a page with text in place of what was between the marks of a part.
func Between(page, part, text string) (string, error) {
	begin, end := "<!-- "+part+": written by the command -->\n", "<!-- end of "+part+" -->"
	head, rest, ok := strings.Cut(page, begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", fmt.Errorf("it lacks the lines %q and %q", strings.TrimSpace(begin), end)
	}
	return head + begin + text + end + tail, nil
}
