package verbena

import (
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/link/wire"
)

// Errors that callers tell apart with [errors.Is]. What methods return wraps
// them with the operation and the peer.
var (
	// ErrClosed: this side closed the endpoint, the listener or the runtime.
	ErrClosed = errors.New("verbena: closed")
	// ErrPeerClosed: the peer closed the endpoint in order; nothing can be sent
	// any more. [Endpoint.Receive] returns io.EOF instead, after the last message.
	ErrPeerClosed = errors.New("verbena: closed by the peer")
	// ErrPeerDied: the connection ended without a goodbye.
	ErrPeerDied = errors.New("verbena: peer died or the path to it broke")
	// ErrTooLong: something is beyond a bound, and nobody waits for that. A message, an
	// answer or a buffer is longer than [Endpoint.MaxMessage] allows, or a header than
	// [MaxHeader]. Memory that is exposed, wrapped or mapped is more than SendMemory, than
	// a region of the device or than 1 TiB. A batch has more than [MaxBatch] operations or
	// one of more than [MaxOperation] bytes. An endpoint has 1,024 exposures already. The
	// error tells which.
	ErrTooLong = errors.New("verbena: too long or too many")
	// ErrProtocol: the peer sent what the protocol does not allow.
	ErrProtocol = wire.ErrProtocol
	// ErrNotDelivered: Close could not hand everything over within the linger.
	ErrNotDelivered = errors.New("verbena: closed before the peer had taken everything")
)

// A LegacyPeerError says that the server at Addr has never heard of Verbena, as
// far as can be told: it answered in another protocol, or it closed the
// connection or stayed silent. Dial it plainly. The runtime remembers an answer at
// once, and silence when it has met it twice; until Until it says so at once to
// further dials. While it remembers silence it looks again in the background.
type LegacyPeerError struct {
	Addr  string
	Until time.Time // zero if it is not remembered
	Err   error     // what it did; nil if it was remembered
}

func (e *LegacyPeerError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("verbena: dial %s: known as no Verbena server until %s; dial it plainly", e.Addr, e.Until.Format(time.TimeOnly))
	}
	return fmt.Sprintf("verbena: dial %s: no Verbena server (%v); dial it plainly", e.Addr, e.Err)
}

func (e *LegacyPeerError) Unwrap() error { return e.Err }

// A SelectionError says that no transport could be had, or not the one asked
// for. Selection.Candidates has the reasons.
type SelectionError struct {
	Service   string
	Wanted    string // DialConfig.Transport
	Selection Selection
	temporary bool
}

// Temporary tells that the last transport failed for a reason that passes: an end had no
// memory for the endpoint, say, for as long as the dial might wait for it. A later dial may
// succeed.
func (e *SelectionError) Temporary() bool { return e.temporary }

func (e *SelectionError) Error() string {
	if e.Wanted != "" && e.Wanted != TransportAuto {
		return fmt.Sprintf("verbena: dial %s at %s: transport %s cannot be had: %s",
			e.Service, e.Selection.Peer, e.Wanted, e.Selection.reasons())
	}
	return fmt.Sprintf("verbena: dial %s at %s: no transport can be had: %s", e.Service, e.Selection.Peer, e.Selection.reasons())
}

// A RefusedError is the server's no to a dial, such as a service that it does
// not offer.
type RefusedError struct {
	Addr, Service string
	Reason        string
	temporary     bool
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("verbena: dial %s at %s: refused: %s", e.Service, e.Addr, e.Reason)
}

// Temporary tells that a later dial may succeed.
func (e *RefusedError) Temporary() bool { return e.temporary }

func refused(addr, service string, r *hello.Refusal) error {
	return &RefusedError{Addr: addr, Service: service, Reason: r.Error(),
		temporary: r.Code == hello.CodeBusy || r.Code == hello.CodeClosing}
}
