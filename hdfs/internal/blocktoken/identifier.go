package blocktoken

import (
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"strings"
)

// Mode is a kind of access to a block, or several.
type Mode uint8

// The kinds, in the order of Hadoop's enumeration.
const (
	Read Mode = 1 << iota
	Write
	Copy    // to other DataNodes
	Replace // a replica by another
)

var modeNames = [...]string{"READ", "WRITE", "COPY", "REPLACE"}

func (m Mode) String() string {
	var names []string
	for i, name := range modeNames {
		if m&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// Identifier says what a token is good for.
type Identifier struct {
	Expiry     int64 // Unix milliseconds
	KeyID      int32 // of the key that signs it
	User       string
	Pool       string
	Block      uint64
	Generation uint64 // the newest of the block that it is good for
	Modes      Mode
	// StorageTypes and StorageIDs are those of the replicas. DataNodes of Hadoop compare
	// them when a block is written.
	StorageTypes, StorageIDs []string
}

const (
	maxIdentifier = 64 << 10 // bytes that are looked at
	maxList       = 1 << 10  // entries of its lists
)

// Append appends the bytes of an identifier to b.
func (id *Identifier) Append(b []byte) []byte {
	b = appendVLong(b, id.Expiry)
	b = appendVLong(b, int64(id.KeyID))
	b = appendString(b, id.User)
	b = appendString(b, id.Pool)
	b = appendVLong(b, int64(id.Block))
	b = appendVLong(b, int64(bits.OnesCount8(uint8(id.Modes))))
	for i, name := range modeNames {
		if id.Modes&(1<<i) != 0 {
			b = appendName(b, name)
		}
	}
	b = appendVLong(b, int64(len(id.StorageTypes)))
	for _, s := range id.StorageTypes {
		b = appendName(b, s)
	}
	b = appendVLong(b, int64(len(id.StorageIDs)))
	for _, s := range id.StorageIDs {
		b = appendString(b, s)
	}
	b = appendVLong(b, 8)
	return binary.BigEndian.AppendUint64(b, id.Generation)
}

// appendVLong appends n as WritableUtils.writeVLong does.
func appendVLong(b []byte, n int64) []byte {
	if n >= -112 && n <= 127 {
		return append(b, byte(n))
	}
	first := -112
	if n < 0 {
		n, first = ^n, -120
	}
	size := (bits.Len64(uint64(n)) + 7) / 8
	b = append(b, byte(first-size))
	for i := size - 1; i >= 0; i-- {
		b = append(b, byte(n>>(8*i)))
	}
	return b
}

// appendString appends s as WritableUtils.writeString does.
func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// appendName appends the name of an enumeration's member as WritableUtils.writeEnum does.
func appendName(b []byte, s string) []byte { return append(appendVLong(b, int64(len(s))), s...) }

var errMalformed = errors.New("it is no identifier")

// Parse reads an identifier.
func Parse(b []byte) (*Identifier, error) {
	if len(b) > maxIdentifier {
		return nil, errMalformed
	}
	r := reader{b: b}
	id := &Identifier{Expiry: r.vlong()}
	id.KeyID = int32(r.bounded(math.MinInt32, math.MaxInt32))
	id.User, id.Pool = r.text(), r.text()
	id.Block = uint64(r.vlong())
	for range r.bounded(0, int64(len(modeNames))) {
		name, known := r.name(), false
		for i, m := range modeNames {
			if m == name {
				id.Modes |= 1 << i
				known = true
			}
		}
		r.failed = r.failed || !known
	}
	for n := r.bounded(0, maxList); n > 0 && !r.failed; n-- {
		id.StorageTypes = append(id.StorageTypes, r.name())
	}
	for n := r.bounded(0, maxList); n > 0 && !r.failed; n-- {
		id.StorageIDs = append(id.StorageIDs, r.text())
	}
	if len(r.b) > 0 { // Hadoop's own may end here
		switch message := r.take(r.bounded(0, int64(len(r.b)))); len(message) {
		case 0:
		case 8:
			id.Generation = binary.BigEndian.Uint64(message)
		default:
			r.failed = true
		}
	}
	if r.failed || len(r.b) > 0 {
		return nil, errMalformed
	}
	return id, nil
}

type reader struct {
	b      []byte
	failed bool
}

func (r *reader) take(n int64) []byte {
	if r.failed || n < 0 || n > int64(len(r.b)) {
		r.failed = true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) vlong() int64 {
	first := r.take(1)
	if first == nil {
		return 0
	}
	n := int64(int8(first[0]))
	if n >= -112 {
		return n
	}
	negative := n < -120
	size := -112 - n
	if negative {
		size = -120 - n
	}
	n = 0
	for _, c := range r.take(size) {
		n = n<<8 | int64(c)
	}
	if negative {
		n = ^n
	}
	return n
}

func (r *reader) bounded(least, most int64) int64 {
	n := r.vlong()
	if n < least || n > most {
		r.failed = true
		return 0
	}
	return n
}

func (r *reader) text() string {
	size := r.take(4)
	if size == nil {
		return ""
	}
	return string(r.take(int64(int32(binary.BigEndian.Uint32(size)))))
}

func (r *reader) name() string { return string(r.take(r.vlong())) }
