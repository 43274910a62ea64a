package shuffle

import (
	"errors"
	"fmt"
)

// Errors that callers tell apart with errors.Is. They come in a [ProcessError].
var (
	// ErrAborted: a process has called Abort, or Close before the end.
	ErrAborted = errors.New("shuffle: aborted")
	// ErrPeerLost: a process has died, or the path to it broke.
	ErrPeerLost = errors.New("shuffle: process lost")
	// ErrCorrupt: what arrived is not what was sent, or a peer broke the protocol.
	ErrCorrupt = errors.New("shuffle: records lost or damaged")
)

// ErrClosed says that a Sender, a Receiver or the Exchange has been closed.
var ErrClosed = errors.New("shuffle: closed")

// ErrTooLong says that a record is longer than Config.MaxRecord, or than what [Receiver.InOrder] can sort in its memory.
var ErrTooLong = errors.New("shuffle: record too long")

// A ProcessError says why an exchange has failed, and in which process.
type ProcessError struct {
	Rank int   // of the process that failed, was lost, or sent what it should not
	Err  error // wraps one of ErrAborted, ErrPeerLost, ErrCorrupt
}

func (e *ProcessError) Error() string { return fmt.Sprintf("process %d: %v", e.Rank, e.Err) }

func (e *ProcessError) Unwrap() error { return e.Err }
