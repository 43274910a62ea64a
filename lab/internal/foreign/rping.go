package foreign

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// RpingPort is where rping listens and connects to unless it is told otherwise.
const RpingPort = "7174"

const (
	advertisementSize = 16
	// rpingMax bounds what a client may have read: rping's own largest size.
	rpingMax = 64<<10 - 1
)

// advertisement is what an rping client says of a buffer, in network byte order.
type advertisement struct {
	remote rdma.Remote
	size   uint32
}

func (a advertisement) encode() []byte {
	b := make([]byte, advertisementSize)
	binary.BigEndian.PutUint64(b, a.remote.Address)
	binary.BigEndian.PutUint32(b[8:], a.remote.Key)
	binary.BigEndian.PutUint32(b[12:], a.size)
	return b
}

func decodeAdvertisement(b []byte) (advertisement, error) {
	if len(b) != advertisementSize {
		return advertisement{}, fmt.Errorf("an advertisement of %d bytes, not %d", len(b), advertisementSize)
	}
	a := advertisement{
		remote: rdma.Remote{Address: binary.BigEndian.Uint64(b), Key: binary.BigEndian.Uint32(b[8:])},
		size:   binary.BigEndian.Uint32(b[12:]),
	}
	if a.size == 0 || a.size > rpingMax {
		return a, fmt.Errorf("an advertisement of a buffer of %d bytes; 1 to %d make sense", a.size, rpingMax)
	}
	return a, nil
}

// rpingText is what rping's client puts into its buffer in round n.
func rpingText(n, size int) []byte {
	b := make([]byte, size)
	const first, last = 'A', 'z'
	c := first + n%(last-first+1)
	for i := copy(b, fmt.Sprintf("rdma-ping-%d: ", n)); i < size; i++ {
		b[i] = byte(c)
		if c++; c > last {
			c = first
		}
	}
	b[size-1] = 0
	return b
}

// ServeRping is rping's server for one client, until that disconnects, which it
// may do after so many rounds and no earlier. What the client's buffer holds
// must be rping's text.
func ServeRping(ctx context.Context, device rdma.Device, listener rdma.Listener, rounds int) (err error) {
	request, err := listener.Accept(ctx)
	if err != nil {
		return fmt.Errorf("rping server: accept: %w", err)
	}
	e, err := newEnd(device, advertisementSize, 1)
	if err != nil {
		return fmt.Errorf("rping server: %w", errors.Join(err, request.Reject(nil)))
	}
	defer func() { err = errors.Join(err, e.domain.Close()) }()
	buffer, err := e.domain.Allocate(rpingMax, rdma.AccessLocalWrite)
	if err != nil {
		return fmt.Errorf("rping server: %w", errors.Join(err, request.Reject(nil)))
	}
	if err := request.Accept(ctx, e.qp, nil); err != nil {
		return fmt.Errorf("rping server: accept %s: %w", request.RemoteAddress(), err)
	}
	for n := 0; ; n++ {
		source, err := e.advertised(ctx)
		if err != nil {
			select {
			case <-e.qp.Done():
			case <-ctx.Done():
				return fmt.Errorf("rping server: round %d: %w", n, err)
			}
			if n == rounds && errors.Is(err, errFailed) { // the client has disconnected
				return nil
			}
			return fmt.Errorf("rping server: after %d of %d rounds: %w", n, rounds, err)
		}
		payload := []rdma.SGE{{Region: buffer, Length: int(source.size)}}
		if err := e.perform(ctx, rdma.SendRequest{Op: rdma.OpRead, Remote: source.remote, SGEs: payload}); err != nil {
			return fmt.Errorf("rping server: round %d: %w", n, err)
		}
		if got, want := buffer.Bytes()[:source.size], rpingText(n, int(source.size)); !bytes.Equal(got, want) {
			return fmt.Errorf("rping server: round %d: read %q, not %q", n, got, want)
		}
		if err := e.send(ctx, make([]byte, advertisementSize)); err != nil {
			return fmt.Errorf("rping server: round %d: go ahead: %w", n, err)
		}
		sink, err := e.advertised(ctx)
		if err != nil {
			return fmt.Errorf("rping server: round %d: sink: %w", n, err)
		}
		if sink.size != source.size {
			return fmt.Errorf("rping server: round %d: a sink of %d bytes for %d", n, sink.size, source.size)
		}
		if err := e.perform(ctx, rdma.SendRequest{Op: rdma.OpWrite, Remote: sink.remote, SGEs: payload}); err != nil {
			return fmt.Errorf("rping server: round %d: %w", n, err)
		}
		err = e.send(ctx, make([]byte, advertisementSize))
		if n+1 == rounds && errors.Is(err, errFailed) { // the client has it and has gone: it checks what it got
			return nil
		}
		if err != nil {
			return fmt.Errorf("rping server: round %d: go ahead: %w", n, err)
		}
	}
}

func (e *end) advertised(ctx context.Context) (advertisement, error) {
	message, err := e.receive(ctx)
	if err != nil {
		return advertisement{}, err
	}
	return decodeAdvertisement(message)
}

// PingRping is rping's client: so many rounds of size bytes, each of which the
// server reads and writes back.
func PingRping(ctx context.Context, device rdma.Device, address string, rounds, size int) (err error) {
	e, err := newEnd(device, advertisementSize, 1)
	if err != nil {
		return fmt.Errorf("rping client: %w", err)
	}
	defer func() { err = errors.Join(err, e.domain.Close()) }()
	source, err := e.domain.Allocate(size, rdma.AccessRemoteRead)
	if err != nil {
		return fmt.Errorf("rping client: %w", err)
	}
	sink, err := e.domain.Allocate(size, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		return fmt.Errorf("rping client: %w", err)
	}
	if _, err := e.qp.Connect(ctx, address, nil); err != nil {
		return fmt.Errorf("rping client: connect to %s: %w", address, err)
	}
	for n := range rounds {
		copy(source.Bytes(), rpingText(n, size))
		clear(sink.Bytes())
		for _, r := range []rdma.Region{source, sink} {
			a := advertisement{rdma.Remote{Address: r.Address(), Key: r.Key()}, uint32(size)}
			if err := e.send(ctx, a.encode()); err != nil {
				return fmt.Errorf("rping client: round %d: advertise: %w", n, err)
			}
			ahead, err := e.receive(ctx)
			if err != nil {
				return fmt.Errorf("rping client: round %d: go ahead: %w", n, err)
			}
			if len(ahead) != advertisementSize {
				return fmt.Errorf("rping client: round %d: a go-ahead of %d bytes", n, len(ahead))
			}
		}
		if got := sink.Bytes()[:size]; !bytes.Equal(got, rpingText(n, size)) {
			return fmt.Errorf("rping client: round %d: %q came back for %q", n, got, rpingText(n, size))
		}
	}
	if err := e.qp.Disconnect(); err != nil {
		return fmt.Errorf("rping client: disconnect: %w", err)
	}
	return nil
}

// receiverNotReady lets a Send wait for a receive where a device can.
func receiverNotReady(device rdma.Device) time.Duration {
	if device.Attributes().Has(rdma.CapReceiverNotReady) {
		return 5 * time.Second
	}
	return 0
}
