package foreign

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/rdma"
)

// An end is one end of a connection with memory for messages: slots to send from
// and to receive into.
type end struct {
	domain   rdma.Domain
	qp       rdma.QueuePair
	sends    rdma.CompletionQueue
	receives rdma.CompletionQueue
	out, in  rdma.Region
	slot     int // bytes of a message
}

const (
	sendDepth = 16
	recvDepth = 16
)

// newEnd makes a queue pair whose receives are posted. Close the domain to be rid
// of it.
func newEnd(device rdma.Device, slot, maxReads int) (e *end, err error) {
	e = &end{slot: slot}
	if e.domain, err = device.OpenDomain(rdma.DomainConfig{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.domain.Close())
		}
	}()
	if e.sends, err = e.domain.NewCompletionQueue(sendDepth); err != nil {
		return nil, err
	}
	if e.receives, err = e.domain.NewCompletionQueue(recvDepth); err != nil {
		return nil, err
	}
	if e.out, err = e.domain.Allocate(slot, 0); err != nil {
		return nil, err
	}
	if e.in, err = e.domain.Allocate(slot*recvDepth, rdma.AccessLocalWrite); err != nil {
		return nil, err
	}
	e.qp, err = e.domain.NewQueuePair(rdma.QueuePairConfig{
		SendCompletions: e.sends, RecvCompletions: e.receives, SendDepth: sendDepth, RecvDepth: recvDepth, MaxReads: maxReads,
		ReceiverNotReadyRetry: receiverNotReady(device),
	})
	if err != nil {
		return nil, err
	}
	for i := range recvDepth {
		if err := e.post(i); err != nil {
			return nil, err
		}
	}
	return e, nil
}

// post posts the receive of a slot.
func (e *end) post(slot int) error {
	_, err := e.qp.PostRecv([]rdma.RecvRequest{{ID: uint64(slot), SGEs: []rdma.SGE{{Region: e.in, Offset: slot * e.slot, Length: e.slot}}}})
	if err != nil {
		return fmt.Errorf("post a receive: %w", err)
	}
	return nil
}

// take waits for the next completion of a queue.
func (e *end) take(ctx context.Context, queue rdma.CompletionQueue) (rdma.Completion, error) {
	var c [1]rdma.Completion
	for armed := false; ; {
		n, err := queue.Poll(c[:])
		if err != nil {
			return c[0], err
		}
		if n == 1 {
			if c[0].Status != rdma.StatusSuccess {
				return c[0], errors.Join(fmt.Errorf("%w: completion of request %d with %v", errFailed, c[0].ID, c[0].Status), e.qp.Err())
			}
			return c[0], nil
		}
		// What came before Arm raises no event, so the last look is behind it.
		if armed = !armed; armed {
			if err := queue.Arm(false); err != nil {
				return c[0], err
			}
			continue
		}
		if err := queue.Wait(ctx); err != nil {
			return c[0], err
		}
	}
}

// errFailed is in the chain of a completion that is no success.
var errFailed = errors.New("request failed")

// perform posts a request and waits until it is done.
func (e *end) perform(ctx context.Context, r rdma.SendRequest) error {
	r.Flags |= rdma.Signaled
	if _, err := e.qp.PostSend([]rdma.SendRequest{r}); err != nil {
		return fmt.Errorf("post %v: %w", r.Op, err)
	}
	if _, err := e.take(ctx, e.sends); err != nil {
		return fmt.Errorf("%v: %w", r.Op, err)
	}
	return nil
}

// send sends a message.
func (e *end) send(ctx context.Context, message []byte) error {
	n := copy(e.out.Bytes(), message)
	return e.perform(ctx, rdma.SendRequest{Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: e.out, Length: n}}})
}

// receive returns the next message, and posts its slot again.
func (e *end) receive(ctx context.Context) ([]byte, error) {
	c, err := e.take(ctx, e.receives)
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	at := int(c.ID) * e.slot
	message := append([]byte(nil), e.in.Bytes()[at:at+int(c.Length)]...)
	return message, e.post(int(c.ID))
}
