package rdmatest

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/verbena-data/verbena/rdma"
)

// overTCP makes a device whose connections are TCP connections that are handed
// to a StreamDevice.
func overTCP(device rdma.Device) (rdma.Device, error) {
	if r, ok := device.(*remoteDevice); ok {
		return r, r.overTCP()
	}
	streams, ok := device.(rdma.StreamDevice)
	if !ok || !device.Attributes().Has(rdma.CapStreams) {
		return nil, fmt.Errorf("rdmatest: device %s is no StreamDevice", device.Attributes().Name)
	}
	return &tcpDevice{streams}, nil
}

type tcpDevice struct{ rdma.StreamDevice }

type tcpDomain struct {
	rdma.Domain
	device *tcpDevice
}

type tcpQueuePair struct {
	rdma.QueuePair
	device *tcpDevice
}

func (d *tcpDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	domain, err := d.StreamDevice.OpenDomain(c)
	if err != nil {
		return nil, err
	}
	return &tcpDomain{domain, d}, nil
}

// ConnectStream takes the queue pairs of this adapter.
func (d *tcpDevice) ConnectStream(ctx context.Context, qp rdma.QueuePair, stream net.Conn, private []byte) ([]byte, error) {
	if t, ok := qp.(*tcpQueuePair); ok {
		qp = t.QueuePair
	}
	return d.StreamDevice.ConnectStream(ctx, qp, stream, private)
}

func (d *tcpDomain) Device() rdma.Device { return d.device }

func (d *tcpDomain) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	qp, err := d.Domain.NewQueuePair(c)
	if err != nil {
		return nil, err
	}
	return &tcpQueuePair{qp, d.device}, nil
}

func (q *tcpQueuePair) Connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	var dialer net.Dialer
	stream, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	reply, err := q.device.ConnectStream(ctx, q.QueuePair, stream, private)
	if err != nil {
		stream.Close() // the queue pair may not have got it
	}
	return reply, err
}

func (d *tcpDevice) Listen(ctx context.Context, address string) (rdma.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	t := &tcpListener{device: d, listener: l, requests: make(chan *tcpRequest)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.running.Go(t.run)
	return t, nil
}

type tcpListener struct {
	device   *tcpDevice
	listener net.Listener
	requests chan *tcpRequest
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

func (l *tcpListener) run() {
	for {
		stream, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.running.Go(func() {
			request, err := l.device.RequestFromStream(l.ctx, stream)
			if err != nil {
				stream.Close()
				return
			}
			select {
			case l.requests <- &tcpRequest{request, stream}:
			case <-l.ctx.Done():
				_ = request.Reject(nil)
				stream.Close()
			}
		})
	}
}

func (l *tcpListener) Accept(ctx context.Context) (rdma.ConnectRequest, error) {
	if l.ctx.Err() != nil {
		return nil, fmt.Errorf("rdmatest: accept at %s: %w", l.Address(), rdma.ErrClosed)
	}
	select {
	case r := <-l.requests:
		return r, nil
	case <-l.ctx.Done():
		return nil, fmt.Errorf("rdmatest: accept at %s: %w", l.Address(), rdma.ErrClosed)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *tcpListener) Address() string { return l.listener.Addr().String() }

func (l *tcpListener) Close() error {
	l.cancel()
	err := l.listener.Close()
	l.running.Wait()
	return err
}

type tcpRequest struct {
	rdma.ConnectRequest
	stream net.Conn
}

func (r *tcpRequest) Accept(ctx context.Context, qp rdma.QueuePair, private []byte) error {
	if t, ok := qp.(*tcpQueuePair); ok {
		qp = t.QueuePair
	}
	err := r.ConnectRequest.Accept(ctx, qp, private)
	if err != nil {
		r.stream.Close()
	}
	return err
}
