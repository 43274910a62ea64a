package longcopy

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestFill(t *testing.T) { testFill(t, func() {}) }

// Copies of every length, and from and to every place in a line, touch what they
// should and nothing else.
func testFill(t *testing.T, before func()) {
	const room = 256
	lengths := []int{0, 1, 7, 8, 9, 63, 64, 65, 2047, 2048, 2049, 4096 + 17, 64 << 10, 1<<20 - 1, 1<<20 + 1, 2<<20 + 3}
	random := rand.New(rand.NewPCG(3, 4))
	from, to := make([]byte, 3<<20), make([]byte, 3<<20)
	for i := range from {
		from[i] = byte(random.Uint32())
	}
	for _, length := range lengths {
		for range 40 {
			source, target := random.IntN(128), room+random.IntN(128)
			if random.IntN(4) == 0 { // a little behind, within a page
				target = 4096 + source + random.IntN(64)
			}
			clear(to[:target+length+room])
			before()
			Fill(to[target:target+length], from[source:])
			if !bytes.Equal(to[target:target+length], from[source:source+length]) {
				t.Fatalf("%d bytes from %d to %d differ", length, source, target)
			}
			if slices.Max(to[:target]) != 0 || slices.Max(to[target+length:target+length+room]) != 0 {
				t.Fatalf("%d bytes from %d to %d went beyond", length, source, target)
			}
		}
	}
}

// A source that is too short must not be read beyond its end.
func TestFillFromTooLittle(t *testing.T) {
	for _, length := range []int{2048, 4096 + 17} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%d bytes from %d were copied", length, length-1)
				}
			}()
			Fill(make([]byte, length), make([]byte, length-1))
		}()
	}
}
