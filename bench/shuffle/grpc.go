package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// grpcStreams has a client-side stream for each pair of remote threads, over one
// connection between two processes in each direction. A message is a record, or, with
// batch, so many bytes of records.
type grpcStreams struct {
	batch int

	l       load
	rank    int
	ln      net.Listener
	server  *grpc.Server
	clients []*grpc.ClientConn
	inbox   []chan batch
	calls   sync.WaitGroup
	ctx     context.Context
}

const grpcMethod = "/verbena.bench.Shuffle/Push"

func (s *grpcStreams) listen(ctx context.Context, l load, rank int) (string, error) {
	s.l, s.rank, s.ctx = l, rank, ctx
	for range l.Threads {
		s.inbox = append(s.inbox, make(chan batch, 2*l.partitions()))
	}
	var err error
	if s.ln, err = net.Listen("tcp", l.listenOn()); err != nil {
		return "", err
	}
	s.server = grpc.NewServer()
	s.server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "verbena.bench.Shuffle", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Push", Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) }, ClientStreams: true}},
	}, s)
	go func() { _ = s.server.Serve(s.ln) }() // until Stop
	return s.ln.Addr().String(), nil
}

func (s *grpcStreams) serve(stream grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	thread := -1
	if v := md.Get("thread"); len(v) == 1 {
		thread, _ = strconv.Atoi(v[0])
	}
	if thread < 0 || thread >= len(s.inbox) {
		return fmt.Errorf("no thread %v", md.Get("thread"))
	}
	for {
		m := new(wrapperspb.BytesValue)
		err := stream.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			s.inbox[thread] <- batch{end: true}
			return stream.SendMsg(new(emptypb.Empty))
		}
		if err != nil {
			return err
		}
		s.inbox[thread] <- batch{data: m.Value}
	}
}

func (s *grpcStreams) connect(_ context.Context, addresses []string) (exchange, error) {
	s.clients = make([]*grpc.ClientConn, len(addresses))
	for rank, address := range addresses {
		if rank == s.rank {
			continue
		}
		c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		s.clients[rank] = c
	}
	return s, nil
}

// grpcSender pushes each record as a message.
type grpcSender struct {
	s       *grpcStreams
	streams []grpc.ClientStream
}

func (s *grpcStreams) stream(to int) (grpc.ClientStream, error) {
	ctx := metadata.AppendToOutgoingContext(s.ctx, "thread", strconv.Itoa(to%s.l.Threads))
	return s.clients[to/s.l.Threads].NewStream(ctx, &grpc.StreamDesc{StreamName: "Push", ClientStreams: true}, grpcMethod)
}

func (s *grpcStreams) sender(int) sender {
	w := &grpcSender{s: s, streams: make([]grpc.ClientStream, s.l.partitions())}
	if s.batch == 0 {
		return w
	}
	return &batchSender{open: make([]collected, s.l.partitions()), size: s.batch, put: func(to int, b batch) error {
		if to/s.l.Threads == s.rank {
			s.inbox[to%s.l.Threads] <- b
			return nil
		}
		if len(b.data) > 0 {
			if err := w.Send(to, b.data); err != nil {
				return err
			}
			b.chunk.release()
		}
		if b.end {
			return w.end(to)
		}
		return nil
	}}
}

func (w *grpcSender) Send(to int, record []byte) error {
	if to/w.s.l.Threads == w.s.rank {
		w.s.inbox[to%w.s.l.Threads] <- batch{data: append([]byte(nil), record...)}
		return nil
	}
	if w.streams[to] == nil {
		var err error
		if w.streams[to], err = w.s.stream(to); err != nil {
			return err
		}
	}
	return w.streams[to].SendMsg(&wrapperspb.BytesValue{Value: record})
}

func (w *grpcSender) Close() error {
	for to := range w.streams {
		if err := w.end(to); err != nil {
			return err
		}
	}
	return nil
}

func (w *grpcSender) end(to int) error {
	if to/w.s.l.Threads == w.s.rank {
		w.s.inbox[to%w.s.l.Threads] <- batch{end: true}
		return nil
	}
	if w.streams[to] == nil {
		var err error
		if w.streams[to], err = w.s.stream(to); err != nil {
			return err
		}
	}
	if err := w.streams[to].CloseSend(); err != nil {
		return err
	}
	w.s.calls.Go(func() { _ = w.streams[to].RecvMsg(new(emptypb.Empty)) }) // receivers count what has come
	return nil
}

func (s *grpcStreams) receive(thread int, f func([]byte)) error {
	if s.batch > 0 {
		return receiveBatches(s.inbox[thread], s.l.partitions(), f)
	}
	for ends := s.l.partitions(); ends > 0; {
		b := <-s.inbox[thread]
		if b.end {
			ends--
			continue
		}
		f(b.data)
	}
	return nil
}

func (s *grpcStreams) finish() error {
	s.calls.Wait()
	var errs []error
	for _, c := range s.clients {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	s.server.Stop()
	return errors.Join(errs...)
}

func (s *grpcStreams) describe(*result) {}
