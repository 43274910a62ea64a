package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

// flightStreams has a DoPut of Arrow Flight for each pair of remote threads, over one
// connection between two processes in each direction. Records are the values of a binary
// column, in batches of flightBatch bytes or one record.
type flightStreams struct {
	flight.BaseFlightServer
	l       load
	rank    int
	server  flight.Server
	clients []flight.Client
	inbox   []chan arrow.RecordBatch // nil: a sender's end
	serving sync.WaitGroup
	calls   sync.WaitGroup
	ctx     context.Context
}

const flightBatch = 64 << 10

var flightSchema = arrow.NewSchema([]arrow.Field{{Name: "record", Type: arrow.BinaryTypes.Binary}}, nil)

func (s *flightStreams) listen(ctx context.Context, l load, rank int) (string, error) {
	s.l, s.rank, s.ctx = l, rank, ctx
	for range l.Threads {
		s.inbox = append(s.inbox, make(chan arrow.RecordBatch, 2*l.partitions()))
	}
	ln, err := net.Listen("tcp", l.listenOn())
	if err != nil {
		return "", err
	}
	s.server = flight.NewServerWithMiddleware(nil)
	s.server.InitListener(ln)
	s.server.RegisterFlightService(s)
	s.serving.Go(func() { _ = s.server.Serve() }) // until Shutdown
	return ln.Addr().String(), nil
}

// DoPut takes what a thread of another process sends to one of this process's.
func (s *flightStreams) DoPut(stream flight.FlightService_DoPutServer) error {
	thread := -1
	if v := metadata.ValueFromIncomingContext(stream.Context(), "thread"); len(v) == 1 {
		thread, _ = strconv.Atoi(v[0])
	}
	if thread < 0 || thread >= len(s.inbox) {
		return errors.New("no such thread")
	}
	r, err := flight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	defer r.Release()
	for r.Next() {
		b := r.RecordBatch()
		b.Retain() // the receiver releases it
		s.inbox[thread] <- b
	}
	if err := r.Err(); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	s.inbox[thread] <- nil
	return nil
}

func (s *flightStreams) connect(_ context.Context, addresses []string) (exchange, error) {
	s.clients = make([]flight.Client, len(addresses))
	for rank, address := range addresses {
		if rank == s.rank {
			continue
		}
		c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return nil, err
		}
		s.clients[rank] = c
	}
	return s, nil
}

// flightSender collects records for each partition in a batch.
type flightSender struct {
	s       *flightStreams
	streams []flightStream
}

type flightStream struct {
	builder *array.BinaryBuilder
	stream  flight.FlightService_DoPutClient
	writer  *flight.Writer
}

func (s *flightStreams) sender(int) sender {
	w := &flightSender{s, make([]flightStream, s.l.partitions())}
	for i := range w.streams {
		w.streams[i].builder = array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.Binary)
		w.streams[i].builder.ReserveData(max(flightBatch, s.l.Record))
	}
	return w
}

func (w *flightSender) Send(to int, record []byte) error {
	b := w.streams[to].builder
	if n := b.DataLen(); n > 0 && n+len(record) > flightBatch {
		if err := w.flush(to); err != nil {
			return err
		}
		b.ReserveData(max(flightBatch, len(record)))
	}
	b.Append(record)
	return nil
}

// flush sends what has been collected for a partition.
func (w *flightSender) flush(to int) error {
	column := w.streams[to].builder.NewArray()
	defer column.Release()
	b := array.NewRecordBatch(flightSchema, []arrow.Array{column}, int64(column.Len()))
	if to/w.s.l.Threads == w.s.rank {
		w.s.inbox[to%w.s.l.Threads] <- b
		return nil
	}
	defer b.Release()
	if err := w.open(to); err != nil {
		return err
	}
	return w.streams[to].writer.Write(b)
}

func (w *flightSender) open(to int) (err error) {
	f := &w.streams[to]
	if f.stream != nil {
		return nil
	}
	ctx := metadata.AppendToOutgoingContext(w.s.ctx, "thread", strconv.Itoa(to%w.s.l.Threads))
	if f.stream, err = w.s.clients[to/w.s.l.Threads].DoPut(ctx); err != nil {
		return err
	}
	f.writer = flight.NewRecordWriter(f.stream, ipc.WithSchema(flightSchema))
	f.writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"shuffle"}})
	return nil
}

func (w *flightSender) Close() error {
	for to := range w.streams {
		if err := w.flush(to); err != nil {
			return err
		}
		f := &w.streams[to]
		f.builder.Release()
		if f.stream == nil {
			w.s.inbox[to%w.s.l.Threads] <- nil
			continue
		}
		if err := errors.Join(f.writer.Close(), f.stream.CloseSend()); err != nil {
			return err
		}
		w.s.calls.Go(func() { _, _ = f.stream.Recv() }) // receivers count what has come
	}
	return nil
}

func (s *flightStreams) receive(thread int, f func([]byte)) error {
	for ends := s.l.partitions(); ends > 0; {
		b := <-s.inbox[thread]
		if b == nil {
			ends--
			continue
		}
		column, ok := b.Column(0).(*array.Binary)
		if !ok {
			return fmt.Errorf("a column of %T came", b.Column(0))
		}
		for i := range column.Len() {
			f(column.Value(i))
		}
		b.Release()
	}
	return nil
}

func (s *flightStreams) finish() error {
	s.calls.Wait()
	var errs []error
	for _, c := range s.clients {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	s.server.Shutdown()
	s.serving.Wait()
	return errors.Join(errs...)
}

func (s *flightStreams) describe(*result) {}
