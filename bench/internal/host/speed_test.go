package host

import "testing"

// A multiplication takes 3 to 5 cycles, of 0.2 to 2 ns. The bounds are ten times wider.
func TestMultiplication(t *testing.T) {
	if n := Multiplication(); n < 0.06 || n > 100 {
		t.Errorf("a multiplication takes %v ns", n)
	}
}
