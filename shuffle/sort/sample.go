package sort

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/verbena-data/verbena/shuffle/dataset"
	"github.com/verbena-data/verbena/shuffle/internal/external"
)

const (
	// samplePlaces is at how many places of a process's part records are looked at, and
	// sampleRecords how many at each.
	samplePlaces, sampleRecords = 256, 4
	sampleRead                  = 16 << 10
	// sampleKey is how much of a key a sample has: what process 0 gets from each other is
	// bounded.
	sampleKey = 512
	// sampleBytes bounds a process's sample.
	sampleBytes = 512 << 10
)

// sample returns keys from all over the spans.
func sample(format Format, spans []dataset.Span) (keys [][]byte, err error) {
	var total int64
	for _, s := range spans {
		total += s.To - s.From
	}
	if total == 0 {
		return nil, nil
	}
	buffer := make([]byte, sampleRead)
	size := 0
	for place := range int64(samplePlaces) {
		at := total / samplePlaces * place
		if total < samplePlaces {
			at = place
		}
		for _, s := range spans {
			if n := s.To - s.From; at >= n {
				at -= n
				continue
			}
			found, err := sampleAt(format, s, s.From+at, buffer)
			if err != nil {
				return nil, err
			}
			for _, key := range found {
				if size += len(key) + binary.MaxVarintLen32; size < sampleBytes {
					keys = append(keys, bytes.Clone(key))
				}
			}
			break
		}
	}
	return keys, nil
}

// sampleAt returns the keys of records from a place on. They are in the buffer.
func sampleAt(format Format, s dataset.Span, at int64, buffer []byte) (keys [][]byte, err error) {
	if unit := int64(format.fixed()); unit > 0 {
		at -= at % unit
	}
	n := min(int64(len(buffer)), s.Input.Size()-at)
	if got, err := s.Input.ReadAt(buffer[:n], at); int64(got) < n {
		return nil, err
	}
	data := buffer[:n]
	if format == Lines && at > 0 {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	for len(keys) < sampleRecords && len(data) > 0 {
		var key []byte
		if unit := format.fixed(); unit > 0 {
			if len(data) < unit {
				break
			}
			key, data = data[:unit], data[unit:]
		} else {
			key, data, _ = bytes.Cut(data, []byte("\n")) // perhaps a part of a line, which is as good
		}
		keys = append(keys, key[:min(len(key), sampleKey)])
	}
	return keys, nil
}

// ranges finds the range of a key: that of the number of bounds that are not above it.
type ranges struct {
	bounds   [][]byte
	prefixes []uint64
}

func newRanges(bounds [][]byte) ranges {
	r := ranges{bounds: bounds}
	for _, b := range bounds {
		r.prefixes = append(r.prefixes, external.Prefix(b))
	}
	return r
}

func (r *ranges) of(key []byte) int {
	p := external.Prefix(key)
	low, high := 0, len(r.prefixes)
	for low < high {
		mid := int(uint(low+high) / 2)
		if q := r.prefixes[mid]; q < p || q == p && bytes.Compare(r.bounds[mid], key) <= 0 {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// evenBounds chooses partitions-1 bounds that divide a sample evenly.
func evenBounds(keys [][]byte, partitions int) (bounds [][]byte) {
	slices.SortFunc(keys, bytes.Compare)
	for i := 1; i < partitions && len(keys) > 0; i++ {
		bounds = append(bounds, keys[len(keys)*i/partitions])
	}
	return bounds
}
