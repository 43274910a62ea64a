package wire

import (
	"encoding/binary"
	"fmt"
)

const (
	// Revision is that of the endpoint protocol. Ends of different revisions refuse
	// each other.
	Revision = 1
	// ParametersSize is the length of parameters in bytes. The private data of some
	// devices holds little more.
	ParametersSize = 16
	// MaxMessage is the longest message in bytes that parameters can allow.
	MaxMessage = 1 << 30
	// MaxEager is the longest message in bytes that may go into a posted receive.
	MaxEager = 256 << 10
	// MaxWindow is how many credits an end may hold.
	MaxWindow = 1024
	// MaxChunks is how many offers an end may have open.
	MaxChunks = 1024
	// MaxChunk is the longest part of a long message in bytes that an offer names.
	MaxChunk = 1 << 20
)

// flagScarce is the flag of [Parameters].Scarce.
const flagScarce = 1

// Parameters is what one end has room for.
type Parameters struct {
	// Scarce asks the peer not to keep the endpoint for later: this end is short of
	// receives for more of them.
	Scarce     bool
	Window     uint16 // receives for eager messages and offers
	Control    uint16 // receives beside them for credit messages
	Chunks     uint16 // offers that it will have open at most
	Receive    uint32 // bytes of a posted receive, header included
	MaxMessage uint32 // bytes of the longest message that it accepts
}

// Append encodes p behind b.
func (p Parameters) Append(b []byte) []byte {
	var flags byte
	if p.Scarce {
		flags |= flagScarce
	}
	b = append(b, Revision, flags)
	b = binary.BigEndian.AppendUint16(b, p.Window)
	b = binary.BigEndian.AppendUint16(b, p.Control)
	b = binary.BigEndian.AppendUint16(b, p.Chunks)
	b = binary.BigEndian.AppendUint32(b, p.Receive)
	return binary.BigEndian.AppendUint32(b, p.MaxMessage)
}

// ParseParameters decodes the parameters at the start of b, which may go on with
// what later revisions add. Over TCP only MaxMessage is used; see
// [Parameters.CheckQueuePair].
func ParseParameters(b []byte) (Parameters, error) {
	if len(b) < ParametersSize {
		return Parameters{}, fmt.Errorf("%w: endpoint parameters of %d bytes, not %d", ErrProtocol, len(b), ParametersSize)
	}
	if b[0] != Revision {
		return Parameters{}, fmt.Errorf("%w: endpoint protocol revision %d, this side has %d", ErrProtocol, b[0], Revision)
	}
	p := Parameters{
		Scarce:     b[1]&flagScarce != 0,
		Window:     binary.BigEndian.Uint16(b[2:]),
		Control:    binary.BigEndian.Uint16(b[4:]),
		Chunks:     binary.BigEndian.Uint16(b[6:]),
		Receive:    binary.BigEndian.Uint32(b[8:]),
		MaxMessage: binary.BigEndian.Uint32(b[12:]),
	}
	if p.MaxMessage == 0 || p.MaxMessage > MaxMessage {
		return p, fmt.Errorf("%w: greatest message of %d bytes", ErrProtocol, p.MaxMessage)
	}
	return p, nil
}

// CheckQueuePair judges the fields that matter on a queue pair.
func (p Parameters) CheckQueuePair() error {
	if p.Window == 0 || p.Window > MaxWindow || p.Control == 0 || p.Chunks > MaxChunks || p.Receive < HeaderSize+OfferSize || p.Receive > MaxEager+HeaderSize {
		return fmt.Errorf("%w: window of %d, %d control receives, %d chunks, receives of %d bytes", ErrProtocol, p.Window, p.Control, p.Chunks, p.Receive)
	}
	return nil
}
