package verbena

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena/internal/hello"
	"github.com/verbena-data/verbena/internal/onesided"
	"github.com/verbena-data/verbena/rdma"
)

// Batches of operations of which a device does not carry out all: files that are read
// through the peer's descriptor, and messages that the peer's runtime answers.

// operationWay tells how an operation is carried out.
type operationWay uint8

const (
	wayDevice operationWay = iota
	wayDescriptor
	wayMessage
)

// servesOperations tells whether both ends have agreed on operations as messages.
func (s *queuePair) servesOperations() bool { return s.e.features.has(hello.FeatureServed) }

// way tells how an operation is carried out, or why it is not.
func (s *operator) way(o *operation) (operationWay, error) {
	asks := s.servesOperations() && s.m.Asks()
	switch {
	case o.token.ways&byDescriptor != 0 && s.reader() != nil:
		return wayDescriptor, nil
	case o.token.ways&byDevice == 0 && !asks:
		return 0, fmt.Errorf("%w: its token is none of this endpoint's", ErrRevoked)
	case o.token.ways&byDevice == 0:
		return wayMessage, nil
	case !o.atomic() || o.token.ways&atomicsByDevice != 0 && s.n.attributes.Has(rdma.CapAtomics):
		return wayDevice, nil
	case !asks:
		return 0, fmt.Errorf("%w: atomic operations, which a device lacks", ErrUnsupported)
	}
	return wayMessage, nil
}

// reader is the queue pair if files can be read through it.
func (s *operator) reader() rdma.FileQueuePair {
	if q, ok := s.qp.(rdma.FileQueuePair); ok && s.servesOperations() && q.SharesFiles() {
		return q
	}
	return nil
}

// files is what the selection says.
func (s *operator) files() string {
	switch {
	case !s.servesOperations():
		return oneSidedUnknown
	case s.reader() != nil:
		return filesByDescriptor
	}
	return filesServed
}

// operateMixed carries out a batch of which not all is the device's: first what is, then
// the rest, then the notification.
func (s *operator) operateMixed(ctx context.Context, b *Batch, ways *[MaxBatch]operationWay) error {
	s.mu.Lock()
	gone := s.m.PeerSaidGoodbye()
	s.mu.Unlock()
	if gone {
		return ErrPeerClosed // its exposures end
	}
	device := s.e.batch()
	defer func() {
		device.reset()
		device.e = nil
		batches.Put(device)
	}()
	for i := range b.ops[:b.count] {
		if ways[i] == wayDevice {
			device.ops[device.count] = b.ops[i]
			device.count++
		}
	}
	if device.count > 0 {
		if err := s.fly(ctx, device); err != nil {
			return err
		}
	}
	var set *onesided.Set
	var err error
	for i := range b.ops[:b.count] {
		o := &b.ops[i]
		if ways[i] == wayDescriptor {
			if err = s.readFile(ctx, o); errors.Is(err, errNoDescriptor) {
				ways[i], err = wayMessage, nil
			}
		}
		if err == nil && ways[i] == wayMessage {
			if set == nil {
				set = s.asks.begin()
			}
			err = s.asks.ask(ctx, set, o)
		}
		if err != nil {
			break
		}
	}
	if set != nil {
		if waitErr := s.asks.await(ctx, set, err != nil); err == nil {
			err = waitErr
		}
	}
	if err == nil {
		s.mu.Lock()
		for i := range b.ops[:b.count] {
			if ways[i] != wayDevice { // which has been counted
				s.operated.add(b.ops[i].kind, b.ops[i].length())
			}
		}
		s.mu.Unlock()
	}
	if err == nil && b.notify {
		if err = s.e.Send(ctx, b.tag, b.message); err != nil {
			err = fmt.Errorf("the notification was not sent: %w", err)
		}
	}
	return err
}

// errNoDescriptor: the peer's runtime has to read the file.
var errNoDescriptor = errors.New("verbena: the file is not to be had")

// readFile reads from the peer's file.
func (s *operator) readFile(ctx context.Context, o *operation) error {
	n, err := s.reader().ReadPeerFile(ctx, o.token.key, o.local, int64(o.token.address)+int64(o.offset))
	switch {
	case n == len(o.local):
		return nil
	case errors.Is(err, rdma.ErrRemoteAccess):
		return ErrRevoked
	case err == nil || err == io.EOF:
		return fmt.Errorf("%w: the file has become shorter", ErrBounds)
	case s.e.over():
		return s.e.err
	case ctx.Err() != nil:
		return err
	case errors.Is(err, rdma.ErrDisconnected) || s.qp.Err() != nil:
		return fmt.Errorf("%w: %w", ErrPeerDied, err)
	}
	return errNoDescriptor
}
