package beside

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The units of figures that have a short form. Others are shown as they are.
const (
	Nanoseconds = "ns"
	PerSecond   = "messages/s"
	Bandwidth   = "B/s"
)

// Show writes a number with its unit, three figures or so.
func Show(v float64, unit string) string {
	switch unit {
	case Nanoseconds:
		switch {
		case v < 1000:
			return fmt.Sprintf("%.0f ns", v)
		case v < 1e6:
			return fmt.Sprintf("%.2f us", v/1e3)
		}
		return fmt.Sprintf("%.1f ms", v/1e6)
	case PerSecond:
		return Decimal(v) + "/s"
	case Bandwidth:
		return Decimal(v) + "B/s"
	}
	return strings.TrimSpace(Decimal(v)) + " " + unit
}

// Decimal writes a number with a decimal prefix, or a space.
func Decimal(v float64) string {
	for _, p := range []struct {
		unit   float64
		prefix string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= p.unit {
			return fmt.Sprintf("%.3g %s", v/p.unit, p.prefix)
		}
	}
	return fmt.Sprintf("%.3g ", v)
}

// Bytes writes a size with a binary prefix.
func Bytes(v float64) string {
	for _, p := range []struct {
		unit float64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if v >= p.unit {
			return strconv.FormatFloat(math.Round(v/p.unit*10)/10, 'f', -1, 64) + " " + p.name
		}
	}
	return fmt.Sprintf("%.0f B", v)
}
