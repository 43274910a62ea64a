package rpc

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/protobuf/proto"
)

// Methods are a protocol's methods by name.
type Methods map[string]Method

// A Method is made by [Handle].
type Method struct {
	// decode makes a request message of the bytes, which it does not keep.
	decode func([]byte) (proto.Message, error)
	call   func(context.Context, proto.Message) (proto.Message, error)
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
		decode: func(b []byte) (proto.Message, error) {
			req := PReq(new(Req))
			return req, proto.Unmarshal(b, req)
		},
		call: func(ctx context.Context, req proto.Message) (proto.Message, error) {
			resp, err := fn(ctx, req.(PReq))
			if err != nil {
				return nil, err
			}
			if resp == nil {
				return nil, fmt.Errorf("the server has no answer to give")
			}
			return resp, nil
		},
	}
}

// ClientID is what a client calls itself: 16 random bytes, or zeros if it sent
// none.
type ClientID [16]byte

// Call is a call that is being served.
type Call struct {
	User     string // effective user: who the call acts as
	RealUser string // who authenticated, if that is another
	ClientID ClientID
	CallID   int32
	// RetryCount counts from 0; -1 if the client does not count.
	RetryCount int32
	Protocol   string
	Method     string
	Peer       net.Addr
}

type callKey struct{}

// FromContext returns the call being served, or nil if there is none.
func FromContext(ctx context.Context) *Call {
	call, _ := ctx.Value(callKey{}).(*Call)
	return call
}

// WithCall returns a context in which call is being served, for callers that
// reach a method by another way than a connection.
func WithCall(ctx context.Context, call *Call) context.Context {
	return context.WithValue(ctx, callKey{}, call)
}
