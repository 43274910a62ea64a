package wire

import (
	"encoding/binary"
	"fmt"
)

// Sizes in bytes of the body of an operation, and of what is in front of the data of an
// answer.
const (
	OperationSize = 40
	AnswerSize    = 8
)

// Code tells what an operation is.
type Code uint8

const (
	Get         Code = 1 // answered by the bytes
	CompareSwap Code = 2 // answered by what was there, as FetchAdd
	FetchAdd    Code = 3
)

// An Operation asks the peer's runtime for a one-sided operation that no device carries
// out.
type Operation struct {
	ID       uint32 // comes back in the Answer; of those of offers
	Code     Code
	Exposure uint64
	Offset   uint64
	// A is the length of a Get, what CompareSwap expects, and what FetchAdd adds. B is
	// what CompareSwap puts there.
	A, B uint64
}

// Put encodes o into the first OperationSize bytes of b.
func (o *Operation) Put(b []byte) {
	_ = b[OperationSize-1]
	binary.BigEndian.PutUint32(b, o.ID)
	binary.BigEndian.PutUint32(b[4:], uint32(o.Code)<<24)
	binary.BigEndian.PutUint64(b[8:], o.Exposure)
	binary.BigEndian.PutUint64(b[16:], o.Offset)
	binary.BigEndian.PutUint64(b[24:], o.A)
	binary.BigEndian.PutUint64(b[32:], o.B)
}

// ParseOperation decodes the body of an operation, which ParsePacket has found to be
// OperationSize long. A Get wants at most most bytes.
func ParseOperation(b []byte, most int) (Operation, error) {
	_ = b[OperationSize-1]
	o := Operation{
		ID: binary.BigEndian.Uint32(b), Code: Code(b[4]),
		Exposure: binary.BigEndian.Uint64(b[8:]), Offset: binary.BigEndian.Uint64(b[16:]),
		A: binary.BigEndian.Uint64(b[24:]), B: binary.BigEndian.Uint64(b[32:]),
	}
	if o.Code < Get || o.Code > FetchAdd || b[5]|b[6]|b[7] != 0 || o.Code != CompareSwap && o.B != 0 || o.Code == Get && (o.A == 0 || o.A > uint64(max(most, 0))) {
		return o, fmt.Errorf("%w: operation %d with %d and %d", ErrProtocol, o.Code, o.A, o.B)
	}
	return o, nil
}

// An Answer tells how an operation ended. Data follows if it was carried out.
type Answer struct {
	ID      uint32
	Verdict uint8
}

// Put encodes a into the first AnswerSize bytes of b.
func (a *Answer) Put(b []byte) {
	_ = b[AnswerSize-1]
	binary.BigEndian.PutUint32(b, a.ID)
	binary.BigEndian.PutUint32(b[4:], uint32(a.Verdict)<<24)
}

// ParseAnswer decodes the body of an answer, which ParsePacket has found to be at least
// AnswerSize long.
func ParseAnswer(b []byte) (a Answer, data []byte, err error) {
	_ = b[AnswerSize-1]
	a = Answer{ID: binary.BigEndian.Uint32(b), Verdict: b[4]}
	if b[5]|b[6]|b[7] != 0 {
		return a, nil, fmt.Errorf("%w: reserved bytes of an answer are not zero", ErrProtocol)
	}
	return a, b[AnswerSize:], nil
}
