// Package tally compares multisets of records, whatever their order: for tests and benchmarks
// that have to know that each record has arrived once.
package tally

import "hash/crc32"

// A Tally is of a multiset of records: how many there are, and the sum of their CRC-32Cs, modulo
// 2^64. Equal multisets have equal tallies. Its methods must not be called concurrently.
type Tally struct{ Records, Sum uint64 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Add counts a record.
func (t *Tally) Add(record []byte) {
	t.Records++
	t.Sum += uint64(crc32.Checksum(record, castagnoli))
}

// Merge counts the records of another multiset, too.
func (t *Tally) Merge(other Tally) {
	t.Records += other.Records
	t.Sum += other.Sum
}
