package javanumber

import (
	"math"
	"testing"
)

// What Java 21 prints.
func TestFormat(t *testing.T) {
	for _, c := range []struct {
		f    float64
		bits int
		want string
	}{
		{0, 64, "0.0"}, {math.Copysign(0, -1), 64, "-0.0"}, {1, 64, "1.0"}, {-2.5, 64, "-2.5"}, {0.001, 64, "0.001"}, {0.00099, 64, "9.9E-4"},
		{9999999, 64, "9999999.0"}, {1e7, 64, "1.0E7"}, {1.25e300, 64, "1.25E300"}, {5e-324, 64, "4.9E-324"}, {0.1, 64, "0.1"},
		{float64(float32(0.1)), 32, "0.1"}, {float64(float32(3.4028235e38)), 32, "3.4028235E38"},
		{math.NaN(), 64, "NaN"}, {math.Inf(1), 32, "Infinity"}, {math.Inf(-1), 64, "-Infinity"},
	} {
		if got := Format(c.f, c.bits); got != c.want {
			t.Errorf("%v: %s, want %s", c.f, got, c.want)
		}
	}
}
