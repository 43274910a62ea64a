package verbena

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of one-sided operations.
var (
	// ErrRevoked: the memory is not exposed any more: it has been revoked, its life
	// time is over, or the token is none of this endpoint's.
	ErrRevoked = errors.New("verbena: the peer does not expose this memory any more")
	// ErrBounds: the operation reaches beyond what is exposed, or an atomic one is not
	// aligned to 8 bytes. Or the bytes of a [Buffer] that are named, for an operation or
	// to be sent, are not all within what it holds.
	ErrBounds = errors.New("verbena: out of bounds")
	// ErrRights: the memory is not exposed for this operation.
	ErrRights = errors.New("verbena: the exposed memory does not allow this")
	// ErrUnsupported: the peer's release knows no one-sided operations.
	ErrUnsupported = errors.New("verbena: not supported by the peer")
)

// Rights are what a peer may do with exposed memory.
type Rights uint8

const (
	MayRead   Rights = 1 << iota // Get
	MayWrite                     // Put
	MayAtomic                    // CompareSwap and FetchAdd
)

const allRights = MayRead | MayWrite | MayAtomic

func (r Rights) String() string {
	var names []string
	for i, name := range []string{"read", "write", "atomic"} {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// TokenSize is the length in bytes of a token as it travels in messages.
const TokenSize = 40

// A Token names memory that a peer exposes, and says what may be done with it. It is
// made by [Exposure.Token], travels as bytes in any message, and is used at the other
// end of the endpoint on which the memory is exposed. Whoever has it may use it, as far
// as the group of the exposing side trusts him: see [Endpoint.Expose].
type Token struct {
	rights   Rights
	ways     tokenWays
	key      uint32
	address  uint64
	length   uint64
	id       uint64 // of the exposure, at random
	deadline int64  // milliseconds since 1970 by the exposing side's clock; 0: none
}

// tokenWays tell how the exposing side can be reached.
type tokenWays uint8

const (
	byDevice        tokenWays = 1 << iota // the address and the key are a device's
	atomicsByDevice                       // which has atomic operations
	byDescriptor                          // or it is a file: the key is that of its descriptor, the address the place in it
)

const tokenVersion = 1

// Len is how many bytes are exposed.
func (t Token) Len() int { return int(t.length) }

// Rights tells what may be done with the memory.
func (t Token) Rights() Rights { return t.rights }

// Append adds the TokenSize bytes of the token to b.
func (t Token) Append(b []byte) []byte {
	b = append(b, tokenVersion, byte(t.rights), byte(t.ways), 0)
	b = binary.BigEndian.AppendUint32(b, t.key)
	b = binary.BigEndian.AppendUint64(b, t.address)
	b = binary.BigEndian.AppendUint64(b, t.length)
	b = binary.BigEndian.AppendUint64(b, t.id)
	return binary.BigEndian.AppendUint64(b, uint64(t.deadline))
}

// maxExposure is the longest that can be exposed, in bytes.
const maxExposure = 1 << 40

// ParseToken decodes a token that a peer has sent, of TokenSize bytes. Its error wraps
// [ErrProtocol]. Whether the memory is still exposed shows when the token is used.
func ParseToken(b []byte) (Token, error) {
	if len(b) != TokenSize {
		return Token{}, fmt.Errorf("%w: a token of %d bytes, not %d", ErrProtocol, len(b), TokenSize)
	}
	t := Token{
		rights: Rights(b[1]), ways: tokenWays(b[2]),
		key: binary.BigEndian.Uint32(b[4:]), address: binary.BigEndian.Uint64(b[8:]), length: binary.BigEndian.Uint64(b[16:]),
		id: binary.BigEndian.Uint64(b[24:]), deadline: int64(binary.BigEndian.Uint64(b[32:])),
	}
	switch {
	case b[0] != tokenVersion:
		return Token{}, fmt.Errorf("%w: a token of version %d, this side has %d", ErrProtocol, b[0], tokenVersion)
	case t.rights == 0 || t.rights&^allRights != 0 || t.ways > byDescriptor || b[3] != 0,
		t.ways == atomicsByDevice, t.ways == byDescriptor && (t.rights != MayRead || t.address > 1<<62), t.ways == 0 && (t.key != 0 || t.address != 0):
		return Token{}, fmt.Errorf("%w: a token with rights %#02x and ways %#02x", ErrProtocol, b[1], b[2])
	case t.length == 0 || t.length > maxExposure || t.address+t.length < t.address || t.deadline < 0:
		return Token{}, fmt.Errorf("%w: a token of %d bytes at %#x until %d", ErrProtocol, t.length, t.address, t.deadline)
	}
	return t, nil
}

// check judges an operation on n bytes from offset on.
func (t *Token) check(offset, n int, needs Rights) error {
	switch {
	case t.length == 0:
		return fmt.Errorf("%w: an empty token", ErrRevoked)
	case t.rights&needs == 0:
		return fmt.Errorf("%w: it is exposed to %s", ErrRights, t.rights)
	case offset < 0 || n < 0 || uint64(offset) > t.length || uint64(n) > t.length-uint64(offset):
		return fmt.Errorf("%w: %d bytes from %d on, of %d that are exposed", ErrBounds, n, offset, t.length)
	case needs == MayAtomic && offset%8 != 0:
		return fmt.Errorf("%w: an atomic operation at %d, which is no multiple of 8", ErrBounds, offset)
	case t.deadline != 0 && time.Now().UnixMilli() >= t.deadline:
		return fmt.Errorf("%w: its time is over", ErrRevoked)
	}
	return nil
}
