package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"
)

// The calls of one connection at once are bounded in number and, with their
// requests, in bytes. What comes beyond waits unread.
const (
	maxInFlight      = 64
	maxInFlightBytes = 4 * MaxMessage
)

type handler func(ctx context.Context, body []byte) (proto.Message, error)

func handle[Req, Resp any, PReq interface {
	*Req
	proto.Message
}, PResp interface {
	*Resp
	proto.Message
}](f func(context.Context, PReq) (PResp, error)) handler {
	return func(ctx context.Context, body []byte) (proto.Message, error) {
		req := PReq(new(Req))
		if err := proto.Unmarshal(body, req); err != nil {
			return nil, fmt.Errorf("request: %w", err)
		}
		resp, err := f(ctx, req)
		if err != nil {
			return nil, err
		}
		if resp == nil {
			return nil, errors.New("no answer to give")
		}
		return resp, nil
	}
}

// Serve answers the calls on conn, which belongs to it, until the connection
// or ctx ends, and waits for the calls under way. The service implements
// [NameNode], [DataNode] or both. A peer that closes in order is no error.
func Serve(ctx context.Context, conn Conn, service any) error {
	handlers := map[method]handler{}
	if s, ok := service.(NameNode); ok {
		handlers[methodRegister] = handle(s.Register)
		handlers[methodHeartbeat] = handle(s.Heartbeat)
		handlers[methodBlockReport] = handle(s.BlockReport)
		handlers[methodBlocksChanged] = handle(s.BlocksChanged)
		handlers[methodCommitRecovery] = handle(s.CommitRecovery)
	}
	if s, ok := service.(DataNode); ok {
		handlers[methodInitRecovery] = handle(s.InitRecovery)
		handlers[methodUpdateRecovery] = handle(s.UpdateRecovery)
	}
	if len(handlers) == 0 {
		conn.Close()
		return fmt.Errorf("cluster: %T is neither a NameNode nor a DataNode", service)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var calls sync.WaitGroup
	defer func() {
		cancel(nil)
		conn.Close()
		calls.Wait()
	}()
	slots := make(chan struct{}, maxInFlight)
	bytes := semaphore.NewWeighted(maxInFlightBytes)
	for {
		// Calls run beside each other, so each keeps its message.
		msg, err := conn.Receive(ctx, nil)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("cluster: %w", cause)
		}
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		h, body, err := parseHeader(msg)
		if err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		if h.kind != kindRequest {
			return fmt.Errorf("cluster: %w: an answer where requests are due", errProtocol)
		}
		size := int64(len(msg))
		if bytes.Acquire(ctx, size) != nil {
			return fmt.Errorf("cluster: %w", context.Cause(ctx))
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return fmt.Errorf("cluster: %w", context.Cause(ctx))
		}
		calls.Go(func() {
			if err := answer(ctx, conn, handlers[h.method], h, body); err != nil {
				// The peer waits for an answer that will not come.
				cancel(fmt.Errorf("answer to %v: %w", h.method, err))
			}
			bytes.Release(size)
			<-slots
		})
	}
}

func answer(ctx context.Context, conn Conn, f handler, h header, body []byte) error {
	var resp proto.Message
	var err error
	if f == nil {
		err = &Error{CodeUnknownMethod, fmt.Sprintf("%v is not known here: run the same release on all nodes", h.method)}
	} else {
		resp, err = f(ctx, body)
	}
	var msg []byte
	if err == nil {
		msg, err = proto.MarshalOptions{}.MarshalAppend(header{kindResponse, h.method, h.id}.append(nil), resp)
		if err == nil && len(msg) > MaxMessage {
			err = fmt.Errorf("an answer of %d bytes, at most %d", len(msg), MaxMessage)
		}
	}
	if err != nil {
		msg = appendError(header{kindError, h.method, h.id}.append(nil), err)
	}
	return conn.Send(ctx, msg)
}
