package verbena

import (
	"context"
	"errors"
)

// errUpcalled says that somebody else takes the endpoint's messages.
var errUpcalled = errors.New("verbena: the endpoint is for calls: a Caller takes its messages")

// A sink takes the messages of an endpoint as they arrive, instead of Receive.
type sink interface {
	runnable
	// arrived takes a message, under the carrier's locks: it neither blocks nor
	// sends. An error is a breach of the peer's.
	arrived(m *Message) (disposal, error)
	// serves tells whether messages bring work for run.
	serves() bool
	// flush takes no further work, and waits until what it has accepted has been given to
	// the endpoint. The error says that it was not, until ctx had ended.
	flush(ctx context.Context) error
}

// A disposal says what becomes of a message that a sink was given.
type disposal struct {
	kept bool // it is the sink's, to be released; otherwise the carrier releases it
	run  bool // run has something to do, and nobody has been told yet
}

// upcalls hands messages to a sink from here on, and then Receive fails.
func (e *Endpoint) upcalls(to sink) error {
	if !e.sink.CompareAndSwap(nil, &to) {
		return errUpcalled
	}
	e.carrier.upcalls(to)
	return nil
}
