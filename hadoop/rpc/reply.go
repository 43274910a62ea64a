package rpc

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// maxResponse is what a Java client takes by default
// (ipc.maximum.response.length); at a longer one it drops the connection.
const maxResponse = 128 << 20

// reply sends a success. An [*encodeError] means that nothing was sent; after any
// other error the session has ended.
func (s *session) reply(to *replyTo, body proto.Message, urgency carrier.Urgency) error {
	return s.send(to, nil, body, urgency)
}

// replyBytes sends a success whose body is encoded already.
func (s *session) replyBytes(to *replyTo, body []byte, urgency carrier.Urgency) {
	h := wire.Response{CallID: to.callID, RetryCount: to.retryCount, ClientID: to.clientID}
	size := h.Size() + wire.SizeDelimited(len(body))
	if j, ok := to.joiner(size); ok {
		m := to.out.Alloc(size - len(body))
		m.Bytes = wire.AppendLength(h.Append(m.Bytes), len(body))
		_ = s.gave(j.SendJoined(m, body, urgency)) // else the session has ended
		return
	}
	m := to.out.Alloc(size)
	m.Bytes = h.Append(m.Bytes)
	m.Bytes = wire.AppendLength(m.Bytes, len(body))
	m.Bytes = append(m.Bytes, body...)
	_ = s.give(to, m, urgency) // else the session has ended
}

// replyError sends an error, and ends the session if the error is fatal.
func (s *session) replyError(to *replyTo, err error, urgency carrier.Urgency) {
	failed := onTheWire(err)
	if s.send(to, failed, nil, urgency) == nil && failed.fatal {
		s.ending.Store(true)
		s.line.Finish()
	}
}

// sizeOf is the size of an answer's body in bytes. It is asked for once before the body is
// encoded: a Marshaler and the protobuf package remember it.
func sizeOf(body proto.Message) int {
	if m, ok := body.(Marshaler); ok {
		return m.SizeRPC()
	}
	return proto.Size(body)
}

// send sends a response: an error, or success with a body.
func (s *session) send(to *replyTo, failed *failure, body proto.Message, urgency carrier.Urgency) error {
	h := wire.Response{CallID: to.callID, RetryCount: to.retryCount, ClientID: to.clientID}
	if failed != nil {
		h.Status, h.Exception, h.Message, h.Detail = wire.StatusError, string(failed.Class), failed.Message, int32(failed.code)
		if failed.fatal {
			h.Status = wire.StatusFatal
		}
		m := to.out.Alloc(h.Size())
		m.Bytes = h.Append(m.Bytes)
		return s.give(to, m, urgency)
	}
	itself, _ := body.(Marshaler)
	n := to.size
	if n == 0 {
		n = sizeOf(body)
	}
	size := h.Size() + wire.SizeDelimited(n)
	if size > maxResponse {
		return &encodeError{fmt.Errorf("a frame of %d bytes is more than the %d that clients take: ask for less at once", size, maxResponse)}
	}
	if j, ok := to.joiner(size); ok {
		if l, ok := findLong(body, n); ok {
			m := to.out.Alloc(size - len(l.value))
			var err error
			if m.Bytes, err = l.appendRest(wire.AppendLength(h.Append(m.Bytes), n)); err != nil {
				m.Release()
				return &encodeError{err}
			}
			return s.gave(j.SendJoined(m, l.value, urgency))
		}
	}
	m := to.out.Alloc(size)
	var err error
	m.Bytes = wire.AppendLength(h.Append(m.Bytes), n)
	if itself != nil {
		m.Bytes, err = itself.AppendRPC(m.Bytes)
	} else {
		m.Bytes, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(m.Bytes, body)
	}
	if err != nil {
		m.Release()
		return &encodeError{err}
	}
	return s.give(to, m, urgency)
}

var errUnsent = errors.New("an answer could not be sent")

// give hands a message to the carrier. If that fails, so has the session.
func (s *session) give(to *replyTo, m carrier.Message, urgency carrier.Urgency) error {
	return s.gave(to.out.Send(m, urgency))
}

// gave takes the error of a message that was handed to the carrier.
func (s *session) gave(err error) error {
	if err != nil && !errors.Is(err, carrier.ErrFinished) { // then the last answers are on their way
		s.cancel()
		s.line.Abort(errUnsent)
	}
	return err
}
