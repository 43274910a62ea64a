// Package javanumber writes floating-point numbers as Java does. It imports nothing of the
// project.
package javanumber

import (
	"math"
	"strconv"
	"strings"
)

// Format is Float.toString, if bits is 32, or Double.toString, if it is 64, of Java 19 and
// later: the fewest digits that tell the number, one of them at least behind the point, and an
// exponent below 10⁻³ and from 10⁷ on.
func Format(f float64, bits int) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-3 || a >= 1e7) {
		digits, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'E', -1, bits), "E")
		if !strings.Contains(digits, ".") { // of two digits those that come nearest: 4.9E-324
			digits, exponent, _ = strings.Cut(strconv.FormatFloat(f, 'E', 1, bits), "E")
		}
		n, _ := strconv.Atoi(exponent) // it is a number
		return digits + "E" + strconv.Itoa(n)
	}
	s := strconv.FormatFloat(f, 'f', -1, bits)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
