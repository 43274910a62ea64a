package call

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// HeaderSize is the length in bytes of what stands in front of every payload.
const HeaderSize = 16

// Kind tells what a message is. The message's tag is given behind each.
type Kind uint8

const (
	Greeting     Kind = 1  // revision; the first message of each end
	Request      Kind = 2  // method; a call begins
	Notification Kind = 3  // method; there is no answer
	Reply        Kind = 4  // 0; a call has succeeded
	Failure      Kind = 5  // code; a call has failed, the payload is a text
	Cancel       Kind = 6  // 0; the caller does not wait any more
	Handled      Kind = 7  // how many notifications have been handled
	Data         Kind = 8  // 0; a piece of a call's stream
	End          Kind = 9  // 0; this end's stream of a call has ended
	Grant        Kind = 10 // bytes; of a call's stream that may be sent in addition
)

// Revision is that of the protocol. Ends of different revisions refuse each other.
const Revision = 1

// Flags.
const (
	// Streams is set in a request whose call has streams.
	Streams = 1 << 0
	// FromCaller is set in data, ends and grants by the end that made the call.
	FromCaller = 1 << 1
)

// An ID names a call among those that one end makes. A slot is used again with another
// generation, so that what comes late for one call is never taken for another.
type ID struct{ Slot, Generation uint32 }

// A Header stands in front of every payload.
type Header struct {
	Kind  Kind
	Flags uint8
	// Value is, in a request, the microseconds that the caller still waits, 0 without
	// a deadline; in a greeting, the requests that this end takes at a time.
	Value uint32
	ID    ID // in a greeting: Slot is the first credit of a stream in bytes
}

// Put encodes h into the first HeaderSize bytes of b.
func (h *Header) Put(b []byte) {
	_ = b[HeaderSize-1]
	binary.BigEndian.PutUint64(b, uint64(h.Kind)<<56|uint64(h.Flags)<<48|uint64(h.Value))
	binary.BigEndian.PutUint64(b[8:], uint64(h.ID.Slot)<<32|uint64(h.ID.Generation))
}

// PutValue changes the Value of a header that Put has encoded.
func PutValue(b []byte, value uint32) { binary.BigEndian.PutUint32(b[4:HeaderSize], value) }

// Append encodes h behind b.
func (h *Header) Append(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, HeaderSize)...)
	h.Put(b[n:])
	return b
}

// flags are those that a kind may have, and kinds without a payload have 1 in bare.
var (
	flags = [...]uint8{Request: Streams, Data: FromCaller, End: FromCaller, Grant: FromCaller}
	bare  = [...]bool{Cancel: true, Handled: true, End: true, Grant: true}
)

// Parse decodes a message of which nothing is known. The payload is what follows the
// first HeaderSize bytes.
func Parse(b []byte) (h Header, err error) {
	if len(b) < HeaderSize {
		return h, fmt.Errorf("%w: a message of %d bytes on an endpoint for calls, shorter than its header", wire.ErrProtocol, len(b))
	}
	first, second := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	h = Header{Kind: Kind(first >> 56), Flags: uint8(first >> 48), Value: uint32(first), ID: ID{uint32(second >> 32), uint32(second)}}
	switch {
	case h.Kind < Greeting || h.Kind > Grant:
		return h, fmt.Errorf("%w: a message of kind %d on an endpoint for calls", wire.ErrProtocol, h.Kind)
	case first>>32&0xffff != 0 || h.Flags != 0 && (int(h.Kind) >= len(flags) || h.Flags&^flags[h.Kind] != 0):
		return h, fmt.Errorf("%w: a message of kind %d for calls with flags %#02x", wire.ErrProtocol, h.Kind, h.Flags)
	case len(b) > HeaderSize && int(h.Kind) < len(bare) && bare[h.Kind]:
		return h, fmt.Errorf("%w: a message of kind %d for calls with a payload of %d bytes", wire.ErrProtocol, h.Kind, len(b)-HeaderSize)
	}
	return h, nil
}

// Asks tells whether a message is a request or a notification, as far as its first
// byte says it.
func Asks(message []byte) bool {
	return len(message) > 0 && (Kind(message[0]) == Request || Kind(message[0]) == Notification)
}

// Left is a time to wait as a header has it: rounded up to microseconds, at least 1,
// and 0 (for ever) for what does not fit, which is more than 71 minutes.
func Left(d time.Duration) uint32 {
	us := (max(d, 1)-1)/time.Microsecond + 1
	if us > math.MaxUint32 {
		return 0
	}
	return uint32(us)
}

// LeftOf is Left for what a context leaves, 0 if it has no deadline. late tells that nothing is left.
func LeftOf(ctx context.Context) (left uint32, late bool) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0, false
	}
	d := time.Until(deadline)
	return Left(d), d <= 0
}

// Wait is the opposite of Left.
func Wait(left uint32) time.Duration { return time.Duration(left) * time.Microsecond }
