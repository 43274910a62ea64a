package crc32c

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func random(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestVector(t *testing.T) {
	if got := Update(0, []byte("123456789")); got != 0xE3069283 {
		t.Errorf("the check value is %#x", got)
	}
}

func TestAgainstStandardLibrary(t *testing.T) {
	data := random(70_000)
	lengths := []int{65486, 65535, 69_000}
	for n := range 3000 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		from := n % 67 // any alignment
		for _, before := range []uint32{0, 1, 0xFFFFFFFF, 0x12345678} {
			got, want := Update(before, data[from:from+n]), crc32.Update(before, castagnoli, data[from:from+n])
			if got != want {
				t.Fatalf("%d bytes after %#x: %#x, want %#x", n, before, got, want)
			}
		}
	}
}

func FuzzUpdate(f *testing.F) {
	f.Add(uint32(0), random(5000), 700)
	f.Add(^uint32(0), make([]byte, 2048), 1)
	f.Fuzz(func(t *testing.T, before uint32, data []byte, cut int) {
		want := crc32.Update(before, castagnoli, data)
		if got := Update(before, data); got != want {
			t.Fatalf("%#x, want %#x", got, want)
		}
		if cut >= 0 && cut <= len(data) {
			if got := Update(Update(before, data[:cut]), data[cut:]); got != want {
				t.Fatalf("in two parts: %#x, want %#x", got, want)
			}
		}
	})
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{64, 256, 512, 1024, 1448, 8 << 10, 64 << 10} {
		data := random(n)
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Update(0, data)
			}
		})
		b.Run(fmt.Sprintf("%d hash/crc32", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				crc32.Update(0, castagnoli, data)
			}
		})
	}
}
