package rpc

import (
	"errors"
	"fmt"
)

// ErrClosed is what calls on a closed client or connection return.
var ErrClosed = errors.New("rpc: closed")

// ErrOutcomeUnknown says that the connection ended while a call was under way
// that must not be repeated: nobody here knows whether the server ran it.
var ErrOutcomeUnknown = errors.New("outcome unknown: the connection ended before the answer came")

// ErrTimeout says that a call took longer than [ClientConfig].CallTimeout.
var ErrTimeout = errors.New("rpc: no answer in time")

// Repeat tells what may happen to a call whose connection ends before its answer
// has come. Without one the call ends in [ErrOutcomeUnknown].
type Repeat uint8

const (
	// Idempotent calls may be run by the server more than once.
	Idempotent Repeat = 1 + iota
	// AtMostOnce calls are known to the server's retry cache, which answers a
	// repetition without running it again. A server of this package keeps the
	// answers of methods made by [Method.Once], HDFS's NameNode those of create,
	// append, rename, delete and the like.
	AtMostOnce
)

// unsent is the error of a call of which nothing has gone out.
type unsent struct{ error }

func (e *unsent) Unwrap() error { return e.error }

// lost is the error of a call whose connection ended.
type lost struct{ error }

func (e *lost) Unwrap() error { return e.error }

// plain is an error of a call without what only [Proxy] acts on.
func plain(err error) error {
	var l *lost
	if errors.As(err, &l) {
		return fmt.Errorf("%w: %w", ErrOutcomeUnknown, l.error)
	}
	var u *unsent
	if errors.As(err, &u) {
		return u.error
	}
	return err
}

func named(method, address string, err error) error {
	return fmt.Errorf("rpc: %s at %s: %w", method, address, err)
}
