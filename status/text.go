package status

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Lines are what people see of a value: one line, or one for each of several strings. What does
// not show, such as what turns the direction of text, is replaced.
func (c Column) Lines(v any) []string {
	if all, ok := v.([]string); ok {
		lines := make([]string, len(all))
		for i, line := range all {
			lines[i] = printable(line)
		}
		return lines
	}
	return []string{c.text(v)}
}

// Exact is the number of bytes behind what Lines rounds, or empty.
func (c Column) Exact(v any) string {
	if n, ok := number(v); ok && c.Unit == Bytes && n >= 1<<10 {
		return grouped(n) + " bytes"
	}
	return ""
}

// Suffix is the unit that people see behind a value by itself.
func (c Column) Suffix(v any) string {
	if _, ok := number(v); ok && c.Unit != Bytes {
		return c.Unit
	}
	return ""
}

func (c Column) text(v any) string {
	switch v := v.(type) {
	case nil:
		return "–"
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case time.Duration:
		return duration(v)
	case time.Time:
		return v.Format("2006-01-02 15:04:05 MST")
	case error:
		return printable(v.Error())
	}
	if n, ok := number(v); ok {
		if c.Unit == Bytes {
			return size(n)
		}
		if c.Unit == "" {
			return strconv.FormatInt(n, 10)
		}
		return grouped(n)
	}
	return printable(fmt.Sprint(v))
}

// number is a value that is an integer and has no words of its own.
func number(v any) (int64, bool) {
	if _, ok := v.(fmt.Stringer); ok || v == nil {
		return 0, false
	}
	switch r := reflect.ValueOf(v); {
	case r.CanInt():
		return r.Int(), true
	case r.CanUint():
		return int64(min(r.Uint(), 1<<63-1)), true
	}
	return 0, false
}

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if !unicode.IsGraphic(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// grouped has a comma before each three digits.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, d := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && digits[i-1] != '-' {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// size is a number of bytes with three digits and its unit.
func size(n int64) string {
	if n < 1<<10 {
		return strconv.FormatInt(n, 10) + " B"
	}
	v := float64(n)
	for _, unit := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if v /= 1 << 10; v < 999.5 {
			return strconv.FormatFloat(v, 'f', decimals(v), 64) + " " + unit
		}
	}
	return strconv.FormatFloat(v/(1<<10), 'f', 1, 64) + " EiB"
}

// decimals are those that make three digits with what stands before the point.
func decimals(v float64) int {
	switch {
	case v < 9.995:
		return 2
	case v < 99.95:
		return 1
	}
	return 0
}

// duration has as many digits as people look at.
func duration(d time.Duration) string {
	for _, unit := range []struct{ least, round time.Duration }{
		{time.Minute, time.Second}, {time.Second, 10 * time.Millisecond}, {time.Millisecond, 10 * time.Microsecond}, {time.Microsecond, 10 * time.Nanosecond},
	} {
		if d >= unit.least {
			return d.Round(unit.round).String()
		}
	}
	return d.String()
}
