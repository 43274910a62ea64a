package rpc

import (
	"context"
	"errors"

	"google.golang.org/protobuf/proto"
)

// Methods are a protocol's methods by name.
type Methods map[string]Method

// A Method is made by [Handle].
type Method struct {
	// decode makes a request message of the bytes. A field of bytes may refer to them if it
	// has least bytes or more and that is not 0; decode reports whether one does.
	decode func(b []byte, least int) (req proto.Message, refers bool, err error)
	call   func(context.Context, proto.Message) (proto.Message, error)

	short, urgent, once bool
}

// message is a pointer to a T that is a protobuf message.
type message[T any] interface {
	*T
	proto.Message
}

// Handle makes a method of a function. The function may be called
// concurrently; its context ends when the client's connection does, and
// [FromContext] tells who calls. It must not keep the request's or change the
// response's memory after it has returned. An error that wraps an [*exception.Error] goes
// out with its class, any other as java.io.IOException.
func Handle[Req, Resp any, PReq message[Req], PResp message[Resp]](fn func(ctx context.Context, req PReq) (PResp, error)) Method {
	return Method{
		decode: func(b []byte, least int) (proto.Message, bool, error) {
			req := PReq(new(Req))
			if least == 0 {
				return req, false, proto.Unmarshal(b, req)
			}
			refers, err := unmarshalLent(b, req, least)
			return req, refers, err
		},
		call: func(ctx context.Context, req proto.Message) (proto.Message, error) {
			resp, err := fn(ctx, req.(PReq))
			if err != nil {
				return nil, err
			}
			if resp == nil {
				return nil, errNoAnswer
			}
			return resp, nil
		},
	}
}

var errNoAnswer = errors.New("the server has no answer to give")

// Short has the method run where its connection is read: it is called sooner
// and its answers go out together, but until it returns nothing else of the
// connection is read. It is for methods of microseconds that wait for nothing.
// A field of bytes that makes up half of a request, and has 512 bytes or more, refers to
// the memory that the request came in: over shared memory a peer that means harm may still
// change it, so that a method copies what it checks.
// One that finds out that a call is not short answers [ErrLong]. One whose answer comes from
// elsewhere may have it sent from there, see [Defer].
func (m Method) Short() Method {
	m.short = true
	return m
}

// ErrLong is what a method made by [Method.Short] answers if this call has to wait, or takes longer than a
// short one may, while [Call.Short] is set. A handler runs the call then, from the start and with
// Call.Short unset.
var ErrLong = errors.New("the call is not a short one")

// Urgent has the calls of the method stand in the first level of the queue,
// whoever makes them: for what keeps a cluster together, as heartbeats do.
func (m Method) Urgent() Method {
	m.urgent = true
	return m
}

// Once has the method run once for each call of a client, however often the
// client repeats the call (same client id and call id): a repetition waits for
// the first one, and gets its answer for 10 minutes, from any connection of the
// same user. An error is not kept; the next repetition runs the method again.
// The method's context does not end with the connection, only with the server.
func (m Method) Once() Method {
	m.once = true
	return m
}
