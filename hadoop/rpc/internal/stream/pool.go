package stream

import (
	"math/bits"
	"sync"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// Pooled buffers have sizes of powers of two. Larger ones are left to the
// garbage collector, so that one large message does not stay for long.
const (
	smallest = 9  // 512 bytes
	largest  = 21 // 2 MiB
)

var pools [largest - smallest + 1]sync.Pool

// A buffer is the memory of one message. The first bytes are for the length.
type buffer struct {
	b     []byte
	class int // of pools, or -1
}

// newBuffer returns a buffer of at least n bytes.
func newBuffer(n int) *buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), smallest)
	if class > largest {
		return &buffer{b: make([]byte, n), class: -1}
	}
	class -= smallest
	if b, ok := pools[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{b: make([]byte, 1<<(class+smallest)), class: class}
}

// Release implements [carrier.Owner].
func (b *buffer) Release() {
	if b.class >= 0 {
		pools[b.class].Put(b)
	}
}

const lengthSize = 4

// Alloc returns a message with room for n bytes, behind the length.
func (w *Writer) Alloc(n int) carrier.Message {
	b := newBuffer(lengthSize + n)
	return carrier.Message{Bytes: b.b[lengthSize:lengthSize], Owner: b}
}
