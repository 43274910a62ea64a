package gensort

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// SummarySize is how many bytes a summary has in a file. Files of several have one after
// the other.
const SummarySize = 5*numberSize + 2*RecordSize

// numberSize is how many bytes a number of a summary has: those of valsort have 128 bits.
const numberSize = 16

// maxRecords is how many records fit into a file. No summary that makes sense tells of more.
const maxRecords = math.MaxInt64 / RecordSize

// Append appends the summary as valsort 1.5 writes it with -o, where the processor is
// little-endian. At least one record was added or joined.
//
// It is valsort's struct as it lies in memory: five numbers of 128 bits, each with its upper 64
// bits before the lower, both little-endian; and the whole first and last record. The numbers
// are the first unordered record's, and how many are unordered, how many there are, how many
// keys are duplicates, and the checksum.
func (s *Summary) Append(b []byte) []byte {
	for _, n := range []Uint128{{Lo: s.FirstUnordered}, {Lo: s.Unordered}, {Lo: s.Records}, {Lo: s.Duplicates}, s.Checksum} {
		b = binary.LittleEndian.AppendUint64(b, n.Hi)
		b = binary.LittleEndian.AppendUint64(b, n.Lo)
	}
	b = append(b, s.first[:]...)
	return append(b, s.last[:]...)
}

// ParseSummary reads what Append and valsort write. It fails unless there are records of
// which all that it tells can be true.
func ParseSummary(b []byte) (s Summary, err error) {
	if len(b) != SummarySize {
		return s, fmt.Errorf("%d bytes, a summary has %d", len(b), SummarySize)
	}
	var numbers [5]Uint128
	for i := range numbers {
		numbers[i] = Uint128{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
		b = b[numberSize:]
	}
	for _, n := range numbers[:4] {
		if n.Hi != 0 || n.Lo > maxRecords {
			return s, fmt.Errorf("it tells of more than %d records: it is no summary of valsort's, or comes from a big-endian processor", uint64(maxRecords))
		}
	}
	s = Summary{FirstUnordered: numbers[0].Lo, Unordered: numbers[1].Lo, Records: numbers[2].Lo, Duplicates: numbers[3].Lo, Checksum: numbers[4]}
	copy(s.first[:], b)
	copy(s.last[:], b[RecordSize:])
	return s, s.check()
}

// check tells whether there may be such records.
func (s *Summary) check() error {
	most := Uint128{Lo: s.Records}.times(Uint128{Lo: math.MaxUint32})
	order := bytes.Compare(s.first[:KeySize], s.last[:KeySize])
	switch {
	case s.Records == 0:
		return errors.New("it tells of no record")
	case s.Records > maxRecords:
		return fmt.Errorf("more than %d records", uint64(maxRecords))
	case s.Unordered+s.Duplicates > s.Records-1:
		return fmt.Errorf("of %d records %d cannot be unordered and %d duplicates", s.Records, s.Unordered, s.Duplicates)
	case (s.FirstUnordered == 0) != (s.Unordered == 0), s.FirstUnordered+s.Unordered > s.Records:
		return fmt.Errorf("of %d records %d cannot be unordered from number %d on", s.Records, s.Unordered, s.FirstUnordered)
	case s.Checksum.Hi > most.Hi || s.Checksum.Hi == most.Hi && s.Checksum.Lo > most.Lo:
		return fmt.Errorf("the checksum %s is more than that of %d records can be", s.Checksum, s.Records)
	case s.Records == 1 && s.first != s.last:
		return errors.New("the first of one record is not the last")
	case s.Unordered == 0 && order > 0:
		return errors.New("all records are in order, but the first key comes after the last")
	case s.Duplicates == s.Records-1 && order != 0:
		return errors.New("all keys are the same, but the first is not the last")
	}
	return nil
}

// JoinParsed takes a summary of the records that follow, as a file has it. If it fails, s is
// as before.
func (s *Summary) JoinParsed(b []byte) error {
	next, err := ParseSummary(b)
	if err != nil {
		return err
	}
	joined := *s
	joined.Join(next)
	if err := joined.check(); err != nil {
		return fmt.Errorf("with those before it: %w", err)
	}
	*s = joined
	return nil
}
