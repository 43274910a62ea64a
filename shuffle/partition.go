package shuffle

import (
	"bytes"
	"fmt"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// A Partitioner chooses the partition of a key. It must choose the same one in all
// processes, and may be used by several goroutines at a time.
type Partitioner interface {
	Partition(key []byte) int
}

// PartitionerFunc is a function as a Partitioner.
type PartitionerFunc func(key []byte) int

// Partition implements [Partitioner].
func (f PartitionerFunc) Partition(key []byte) int { return f(key) }

// Hash spreads keys over so many partitions, at least 1, by their XXH64 with seed 0, of
// which the upper half of the product with the number of partitions is taken. That stays
// so in all releases.
func Hash(partitions int) Partitioner {
	if partitions < 1 {
		panic(fmt.Sprintf("shuffle: Hash(%d): at least one partition is needed", partitions))
	}
	return hashing(partitions)
}

type hashing uint64

func (h hashing) Partition(key []byte) int {
	p, _ := bits.Mul64(xxhash.Sum64(key), uint64(h))
	return int(p)
}

// Range keeps keys in order: partition 0 gets those below bounds[0], partition i those
// from bounds[i-1] on and below bounds[i], the last one the rest. Keys are compared as
// bytes. bounds are in order, and must stay as they are.
func Range(bounds [][]byte) Partitioner {
	if !slices.IsSortedFunc(bounds, bytes.Compare) {
		panic("shuffle: Range: the bounds are not in order")
	}
	return ranges(bounds)
}

type ranges [][]byte

func (r ranges) Partition(key []byte) int {
	low, high := 0, len(r)
	for low < high {
		middle := int(uint(low+high) / 2)
		if bytes.Compare(r[middle], key) <= 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

// Bounds returns bounds for [Range] which share out the samples evenly among so many
// partitions: one less than those. It sorts samples, and what it returns refers to them.
// With fewer different samples than partitions some partitions stay empty.
func Bounds(samples [][]byte, partitions int) [][]byte {
	slices.SortFunc(samples, bytes.Compare)
	bounds := make([][]byte, 0, max(0, partitions-1))
	for i := 1; i < partitions; i++ {
		if len(samples) == 0 {
			bounds = append(bounds, nil)
			continue
		}
		bounds = append(bounds, samples[min(i*len(samples)/partitions, len(samples)-1)])
	}
	return bounds
}
