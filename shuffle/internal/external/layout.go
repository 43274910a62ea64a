package external

import (
	"bytes"
	"encoding/binary"
)

// A layout is how records are told apart, and where in them the key is.
type layout interface {
	// first is the length of the record at the beginning of b, or 0 if more is needed.
	first(b []byte) int
	// key says where the key of a record is.
	key(record []byte) (at, length int)
	// whole is the record in memory whose key is there.
	whole(memory []byte, at, length int) []byte
}

// fixed are records of one length. All of it is the key.
type fixed int

func (f fixed) first(b []byte) int {
	if len(b) < int(f) {
		return 0
	}
	return int(f)
}

func (f fixed) key(record []byte) (at, length int) { return 0, int(f) }

func (f fixed) whole(memory []byte, at, length int) []byte { return memory[at:][:length] }

// lines end with a newline that is not of the key.
type lines struct{}

func (lines) first(b []byte) int { return bytes.IndexByte(b, '\n') + 1 }

func (lines) key(record []byte) (at, length int) { return 0, len(record) - 1 }

func (lines) whole(memory []byte, at, length int) []byte { return memory[at:][:length+1] }

// framed are records of AppendPair.
type framed struct{}

// frameHead is the lengths of key and value, four bytes each, little-endian.
const frameHead = 8

// AppendPair appends a record of a key and a value.
func AppendPair(b, key, value []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(key)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(value)))
	return append(append(b, key...), value...)
}

// Pair returns what a record of AppendPair holds.
func Pair(record []byte) (key, value []byte) {
	end := frameHead + int(binary.LittleEndian.Uint32(record))
	return record[frameHead:end:end], record[end:]
}

func (framed) first(b []byte) int {
	if len(b) < frameHead {
		return 0
	}
	n := frameHead + int(binary.LittleEndian.Uint32(b)) + int(binary.LittleEndian.Uint32(b[4:]))
	if len(b) < n {
		return 0
	}
	return n
}

func (framed) key(record []byte) (at, length int) {
	return frameHead, int(binary.LittleEndian.Uint32(record))
}

func (framed) whole(memory []byte, at, length int) []byte {
	return memory[at-frameHead:][:frameHead+length+int(binary.LittleEndian.Uint32(memory[at-4:]))]
}
