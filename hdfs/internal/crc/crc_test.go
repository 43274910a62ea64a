package crc

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

func TestCombine(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	whole := make([]byte, 70_000)
	random.Read(whole)
	for name, c := range map[string]struct {
		combiner *Combiner
		table    *crc32.Table
	}{"IEEE": {IEEE, crc32.IEEETable}, "Castagnoli": {Castagnoli, crc32.MakeTable(crc32.Castagnoli)}} {
		for _, cut := range []int{0, 1, 511, 512, 513, 4096, 65_535, 69_999, 70_000} {
			a, b := crc32.Checksum(whole[:cut], c.table), crc32.Checksum(whole[cut:], c.table)
			if got, want := c.combiner.Combine(a, b, int64(len(whole)-cut)), crc32.Checksum(whole, c.table); got != want {
				t.Errorf("%s, cut at %d: %08x, want %08x", name, cut, got, want)
			}
		}
	}
}

func BenchmarkCombine(b *testing.B) {
	var sum uint32
	for b.Loop() {
		sum = Castagnoli.Combine(sum, 0x12345678, 512)
	}
}
