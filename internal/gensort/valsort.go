package gensort

import (
	"bytes"
	"fmt"
	"io"
)

// A Summary tells about consecutive records what valsort does. Those of the parts of a file
// join to that of the whole.
type Summary struct {
	Records    uint64
	Unordered  uint64 // records whose key is lower than that before them
	Duplicates uint64 // records whose key is that before them
	// FirstUnordered is the number of the first of them, counted from zero; 0 if there
	// is none.
	FirstUnordered uint64
	Checksum       Uint128
	first, last    [RecordSize]byte
}

// Add takes the records that follow. The length of p is a multiple of RecordSize.
func (s *Summary) Add(p []byte) {
	s.Checksum = s.Checksum.Plus(Checksum(p))
	last := s.last[:]
	for ; len(p) >= RecordSize; p = p[RecordSize:] {
		if s.Records == 0 {
			copy(s.first[:], p)
		} else {
			s.follow(last, p)
		}
		last = p[:RecordSize]
		s.Records++
	}
	copy(s.last[:], last)
}

// follow compares the key of a record with that of the last one.
func (s *Summary) follow(last, record []byte) {
	switch order := bytes.Compare(last[:KeySize], record[:KeySize]); {
	case order == 0:
		s.Duplicates++
	case order > 0:
		if s.Unordered == 0 {
			s.FirstUnordered = s.Records
		}
		s.Unordered++
	}
}

// Join takes the summary of the records that follow.
func (s *Summary) Join(next Summary) {
	switch {
	case next.Records == 0:
		return
	case s.Records == 0:
		*s = next
		return
	}
	s.follow(s.last[:], next.first[:])
	if s.Unordered == 0 && next.Unordered > 0 {
		s.FirstUnordered = s.Records + next.FirstUnordered
	}
	s.Records += next.Records
	s.Unordered += next.Unordered
	s.Duplicates += next.Duplicates
	s.Checksum = s.Checksum.Plus(next.Checksum)
	s.last = next.last
}

// Sorted tells whether no record has a lower key than the one before it.
func (s *Summary) Sorted() bool { return s.Unordered == 0 }

// Report writes what valsort would.
func (s *Summary) Report(w io.Writer) error {
	var b bytes.Buffer
	if !s.Sorted() {
		fmt.Fprintf(&b, "First unordered record is record %d\n", s.FirstUnordered)
	}
	fmt.Fprintf(&b, "Records: %d\nChecksum: %s\n", s.Records, s.Checksum)
	if s.Sorted() {
		fmt.Fprintf(&b, "Duplicate keys: %d\nSUCCESS - all records are in order\n", s.Duplicates)
	} else {
		fmt.Fprintf(&b, "ERROR - there are %d unordered records\n", s.Unordered)
	}
	_, err := w.Write(b.Bytes())
	return err
}
