package call

import (
	"fmt"

	"github.com/verbena-data/verbena/internal/link/wire"
)

// An Outflow counts the bytes that may be sent on a stream.
type Outflow struct{ left int64 }

// NewOutflow returns one with the peer's first credit.
func NewOutflow(credit int) Outflow { return Outflow{int64(credit)} }

// Take takes up to n bytes of credit, and returns how many.
func (f *Outflow) Take(n int) int {
	n = int(min(int64(n), f.left))
	f.left -= int64(n)
	return n
}

// Return gives back credit of bytes that were not sent.
func (f *Outflow) Return(n int) { f.left += int64(n) }

// Granted takes the peer's word that n bytes more may be sent.
func (f *Outflow) Granted(n uint32) error {
	if f.left += int64(n); n == 0 || f.left > MaxStream {
		return fmt.Errorf("%w: credit of %d bytes for a stream, %d in all", wire.ErrProtocol, n, f.left)
	}
	return nil
}

// An Inflow counts the bytes that the peer may send on a stream.
type Inflow struct {
	window int
	left   int // the peer's credit
	owed   int // bytes consumed and not granted again
	ended  bool
}

// NewInflow returns one whose peer has been promised window bytes.
func NewInflow(window int) Inflow { return Inflow{window: window, left: window} }

// Received takes a piece of n bytes.
func (f *Inflow) Received(n int) error {
	if f.ended {
		return fmt.Errorf("%w: a piece of a stream behind its end", wire.ErrProtocol)
	}
	if f.left -= n; n == 0 || f.left < 0 {
		return fmt.Errorf("%w: a piece of %d bytes of a stream, beyond its credit by %d", wire.ErrProtocol, n, -f.left)
	}
	return nil
}

// End takes the end of the stream.
func (f *Inflow) End() error {
	if f.ended {
		return fmt.Errorf("%w: a stream that ends twice", wire.ErrProtocol)
	}
	f.ended = true
	return nil
}

// Consumed counts n bytes that the application is through with. It returns what the
// peer is to be granted now, 0 if that can wait.
func (f *Inflow) Consumed(n int) (grant uint32) {
	if f.owed += n; f.ended || 4*f.owed < f.window {
		return 0
	}
	grant = uint32(f.owed)
	f.left += f.owed
	f.owed = 0
	return grant
}
