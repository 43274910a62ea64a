package crc32c

import (
	"fmt"
	"testing"

	"golang.org/x/sys/cpu"
)

// otherwise runs f for each way of computing CRCs that this processor has, whichever it chooses.
func otherwise(f func(way string)) {
	defer func(w width, c bool) { widest, counts = w, c }(widest, counts)
	if counts && cpu.X86.HasAVX2 && multipliesWide() {
		widest = 256
		f("256 bits")
	}
	widest = 0
	if counts {
		f("64 bits")
	}
	counts = false
	f("hash/crc32")
}

// The ways of all processors are tested, whichever this one is.
func TestOnOtherProcessors(t *testing.T) {
	otherwise(func(way string) {
		t.Log(way)
		TestAgainstStandardLibrary(t)
		TestSums(t)
	})
}

// BenchmarkCold compares bytes that no cache has: 64 KiB at a time, out of 256 MiB.
func BenchmarkCold(b *testing.B) {
	data, sums := make([]byte, 256<<20), make([]byte, 512)
	for i := range data {
		data[i] = byte(i)
	}
	const step = 64 << 10
	run := func(name string, f func([]byte)) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(step)
			for at := 0; b.Loop(); at = (at + step) % len(data) {
				f(data[at : at+step])
			}
		})
	}
	both := func(way string) {
		run(fmt.Sprintf("Update %s", way), func(p []byte) { Update(0, p) })
		run(fmt.Sprintf("Sums %s", way), func(p []byte) { Sums(sums, p, chunk) })
	}
	both("as chosen")
	otherwise(both)
}
