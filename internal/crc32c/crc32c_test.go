package crc32c

import (
	"encoding/binary"
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

// Checksums of chunks are those of hash/crc32, of whole and of broken chunks, and nothing is
// written behind them.
func TestSums(t *testing.T) {
	data := random(300 * 512)
	for _, chunk := range []int{1, 8, 511, 512, 513, 1024, 4096, 65536} {
		for n := range 40 {
			for _, length := range []int{n, n * 511, n*512 + n, n * 3333} {
				from := (n * 13) % 67 // any alignment
				b := data[from : from+length]
				chunks := (length + chunk - 1) / chunk
				sums := make([]byte, Size*chunks+Size)
				copy(sums[Size*chunks:], "rest")
				Sums(sums[:Size*chunks], b, chunk)
				for i := range chunks {
					want := crc32.Checksum(b[i*chunk:min((i+1)*chunk, length)], castagnoli)
					if got := binary.BigEndian.Uint32(sums[Size*i:]); got != want {
						t.Fatalf("chunk %d of %d bytes, in %d: %#x, want %#x", i, chunk, length, got, want)
					}
				}
				if string(sums[Size*chunks:]) != "rest" {
					t.Fatalf("%d bytes in chunks of %d: more was written than checksums", length, chunk)
				}
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

func BenchmarkSums(b *testing.B) {
	for _, n := range []int{512, 32 << 10, 508 << 10} {
		data, sums := random(n), make([]byte, n/512*Size)
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Sums(sums, data, 512)
			}
		})
		b.Run(fmt.Sprintf("%d hash/crc32", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				for i := 0; i < n; i += 512 {
					binary.BigEndian.PutUint32(sums[i/512*Size:], crc32.Update(0, castagnoli, data[i:i+512]))
				}
			}
		})
	}
}
