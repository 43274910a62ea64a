// Package carrier says what Hadoop RPC's engine asks of whatever brings and
// takes its messages: a TCP connection (package stream), where messages follow each
// other, or an endpoint, where each is a call of the runtime (package calls).
//
// A message is a frame of Hadoop RPC without the length in front.
package carrier

import (
	"context"
	"errors"
)

// ErrFinished is what a Sender answers after Finish.
var ErrFinished = errors.New("the sending side has ended")

// Owner has the memory of a message.
type Owner interface {
	// Release gives the memory back. It is called once.
	Release()
}

// Message is one message and its memory.
type Message struct {
	Bytes []byte
	// Owner is who has the memory. If it is nil, a message that came is valid
	// until the call returns that hands it over.
	Owner Owner
}

// Release gives the memory back, if it has an owner.
func (m *Message) Release() {
	owner := m.Owner
	*m = Message{}
	if owner != nil {
		owner.Release()
	}
}

// An Answerer takes answers to the peer: any number of them, or the one answer to a
// call.
type Answerer interface {
	// Alloc returns a message without bytes, with room for n, which go to Send.
	Alloc(n int) Message
	// Send takes the message over. After an error nothing of it has been or will be
	// sent.
	Send(m Message, urgency Urgency) error
}

// A Joiner is an Answerer that sends a long message from two places.
type Joiner interface {
	// Joins tells whether a message of n bytes is long enough for that.
	Joins(n int) bool
	// SendJoined is Send for a message that ends with body, which may be used again
	// when it returns.
	SendJoined(m Message, body []byte, urgency Urgency) error
}

// A Line is a connection to a peer. Its methods may be called concurrently.
type Line interface {
	// Flush sends what waits since a Send of the urgency [Later].
	Flush()
	// Finish has what waits sent, and then the peer sees the end. It does not
	// wait for that. Later messages are refused with ErrFinished.
	Finish()
	// Abort ends the connection now. Messages that wait are lost.
	Abort(reason error)
}

// A Sender takes messages to the peer. Its methods may be called concurrently. Its
// Send never waits, but who lets much wait ends the connection: ask for Room before
// the work that ends in a message.
type Sender interface {
	Answerer
	Line
	// SendWait is Send, but waits first while too much waits to be sent, not
	// longer than ctx.
	SendWait(ctx context.Context, m Message, urgency Urgency) error
	// Room waits while too much waits to be sent, not longer than ctx.
	Room(ctx context.Context) error
}

// Urgency tells when a message has to go out.
type Urgency uint8

const (
	// Now: the sender waits for an answer, or nobody else sends.
	Now Urgency = iota
	// Soon: others are about to send, too, and messages go out best together.
	Soon
	// Later: the same caller sends more, or calls Flush.
	Later
)
