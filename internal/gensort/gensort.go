// Package gensort makes and checks the records of the sort benchmarks (sortbenchmark.org),
// byte for byte as Chris Nyberg's gensort and valsort, release 1.5, which define them: 100
// bytes, of which the first 10 are the key.
//
// Record n is a function of n alone: the generator, a linear congruential one of 128 bits,
// skips ahead in logarithmic time, so that any part of a file can be made by itself. The
// package does no I/O.
package gensort

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/big"
	"math/bits"
)

const (
	// RecordSize is the length of a record in bytes.
	RecordSize = 100
	// KeySize is how many bytes a record's key has, at its beginning.
	KeySize = 10
)

// A Format is what records are made of.
type Format int

const (
	// Binary records are random in every byte.
	Binary Format = iota
	// ASCII records are lines: ten printable characters of key, the record's number in
	// hexadecimal, filler, CR and LF.
	ASCII
)

// Uint128 is an unsigned number of 128 bits, for record numbers and checksums.
type Uint128 struct{ Hi, Lo uint64 }

// ParseUint128 reads a decimal number.
func ParseUint128(text string) (Uint128, error) {
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || n.Sign() < 0 || n.BitLen() > 128 {
		return Uint128{}, fmt.Errorf("%q is no whole number from 0 to 2^128-1", text)
	}
	var b [16]byte
	n.FillBytes(b[:])
	return Uint128{binary.BigEndian.Uint64(b[:]), binary.BigEndian.Uint64(b[8:])}, nil
}

// Plus is the sum modulo 2^128.
func (u Uint128) Plus(v Uint128) Uint128 {
	lo, carry := bits.Add64(u.Lo, v.Lo, 0)
	hi, _ := bits.Add64(u.Hi, v.Hi, carry)
	return Uint128{hi, lo}
}

// times is the product modulo 2^128.
func (u Uint128) times(v Uint128) Uint128 {
	hi, lo := bits.Mul64(u.Lo, v.Lo)
	return Uint128{hi + u.Hi*v.Lo + u.Lo*v.Hi, lo}
}

// String is the number in hexadecimal without leading zeros, as valsort prints checksums.
func (u Uint128) String() string {
	if u.Hi == 0 {
		return fmt.Sprintf("%x", u.Lo)
	}
	return fmt.Sprintf("%x%016x", u.Hi, u.Lo)
}

// step is a state's way some number of steps ahead: x becomes factor*x + addend.
type step struct{ factor, addend Uint128 }

// single is one step. The factor is L'Ecuyer's (Mathematics of Computation 68, 1999).
var single = step{Uint128{0x2360ed051fc65da4, 0x4385df649fccf645}, Uint128{0x4a696d4772617952, 0x4950202020202001}}

func (s step) apply(x Uint128) Uint128 { return s.factor.times(x).Plus(s.addend) }

// then is s and after it t, as one.
func (s step) then(t step) step { return step{t.factor.times(s.factor), t.apply(s.addend)} }

// state is the generator's after n steps.
func state(n Uint128) (x Uint128) {
	for doubled := single; n != (Uint128{}); doubled = doubled.then(doubled) {
		if n.Lo&1 != 0 {
			x = doubled.apply(x)
		}
		n = Uint128{n.Hi >> 1, n.Lo>>1 | n.Hi<<63}
	}
	return x
}

// window is how many random numbers a binary record is made of, ten bytes of each.
const window = RecordSize / KeySize

// masks are what the tens of bytes after the key are xored with, so that they differ from
// the keys of the records that follow.
var masks = [window]struct {
	hi uint64
	lo uint16
}{
	{}, {0xf0e8e4e2e1d8d4d2, 0xd1cc}, {0xcac9c6c5c3b8b4b2, 0xb1ac}, {0xaaa9a6a5a39c9a99, 0x9695}, {0x938e8d8b87787472, 0x716c},
	{0x6a696665635c5a59, 0x5655}, {0x534e4d4b473c3a39, 0x3635}, {0x332e2d2b271e1d1b, 0x170f}, {0xc8c4c2c198949291, 0x8ce0}, {0x170f332e2d2b271e, 0x1d1b},
}

// A Generator makes records one after the other.
type Generator struct {
	format Format
	number Uint128         // of the next record
	random [window]Uint128 // those of the next record and of the nine behind it, from first on
	first  int
}

// New returns a generator whose first record has the given number.
func New(format Format, first Uint128) *Generator {
	g := &Generator{format: format, number: first}
	x := state(first)
	for i := range g.random {
		x = single.apply(x)
		g.random[i] = x
	}
	return g
}

// Fill fills p with the next records. Its length is a multiple of RecordSize.
func (g *Generator) Fill(p []byte) {
	for ; len(p) >= RecordSize; p = p[RecordSize:] {
		if g.format == ASCII {
			g.ascii((*[RecordSize]byte)(p))
		} else {
			g.binary((*[RecordSize]byte)(p))
		}
		g.random[g.first] = single.apply(g.random[(g.first+window-1)%window])
		g.first = (g.first + 1) % window
		g.number = g.number.Plus(Uint128{Lo: 1})
	}
}

func (g *Generator) binary(r *[RecordSize]byte) {
	for i, mask := range masks {
		x := g.random[(g.first+i)%window]
		binary.BigEndian.PutUint64(r[i*KeySize:], x.Hi^mask.hi)
		binary.BigEndian.PutUint16(r[i*KeySize+8:], uint16(x.Lo>>48)^mask.lo)
	}
}

func (g *Generator) ascii(r *[RecordSize]byte) {
	const digits = "0123456789ABCDEF"
	x := g.random[g.first]
	rest := x.Hi
	for i := range KeySize {
		if i == 8 {
			rest = x.Lo
		}
		r[i] = ' ' + byte(rest%95)
		rest /= 95
	}
	r[10], r[11] = ' ', ' '
	for i := range 16 {
		r[12+i] = digits[g.number.Hi>>(60-4*i)&15]
		r[28+i] = digits[g.number.Lo>>(60-4*i)&15]
	}
	r[44], r[45] = ' ', ' '
	for i := range 13 {
		d := digits[x.Lo>>(48-4*i)&15]
		r[46+4*i], r[47+4*i], r[48+4*i], r[49+4*i] = d, d, d, d
	}
	r[98], r[99] = '\r', '\n'
}

// Checksum is the sum of the CRC-32 (IEEE) of each record in p, whose length is a multiple
// of RecordSize.
func Checksum(p []byte) (sum Uint128) {
	for ; len(p) >= RecordSize; p = p[RecordSize:] {
		sum = sum.Plus(Uint128{Lo: uint64(crc32.ChecksumIEEE(p[:RecordSize]))})
	}
	return sum
}
