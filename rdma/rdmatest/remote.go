package rdmatest

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// The control protocol: gob values, calls one way and replies the other. Calls
// are answered in any order; a call can be cancelled. Replies without a call
// tell of events.

type call struct {
	Sequence uint64
	Cancel   bool   // end the call of this sequence number
	Method   string // the interface's name and the method's
	Object   uint64

	Address        string
	Data           []byte
	Offset, Number int
	Access         rdma.Access
	Value          byte
	Flag           bool
	Config         wireConfig
	Shared         rdma.SharedReceiveConfig
	Sends          []wireSend
	Receives       []wireReceive
	Other          uint64
}

type wireConfig struct {
	SendCompletions, RecvCompletions, SharedReceive          uint64
	SendDepth, RecvDepth, MaxSGE, MaxInline, MaxReads, Retry int
}

type wireSGE struct {
	Region         uint64
	Offset, Length int
}

type wireSend struct {
	Request rdma.SendRequest // without entries
	SGEs    []wireSGE
}

type wireReceive struct {
	ID   uint64
	SGEs []wireSGE
}

type reply struct {
	Sequence    uint64
	Error       *wireError
	Number      int
	Object      uint64
	Key         uint32
	Address     uint64
	Access      rdma.Access
	Text        string
	Data        []byte
	Completions []rdma.Completion
	Attributes  rdma.Attributes
	Event       *wireEvent
	Done        uint64 // the queue pair whose Done is closed
}

type wireEvent struct {
	Domain, QueuePair, Completions, SharedReceive uint64
	Kind                                          rdma.EventKind
	Error                                         *wireError
}

type wireError struct {
	Text     string
	Is       []int // of sentinels
	Rejected bool
	Peer     string
	Private  []byte
}

var sentinels = []error{
	rdma.ErrUnavailable, rdma.ErrUnsupported, rdma.ErrQueueFull, rdma.ErrInvalid, rdma.ErrState, rdma.ErrOverrun, rdma.ErrInUse,
	rdma.ErrClosed, rdma.ErrTimeout, rdma.ErrDisconnected, rdma.ErrRemoteAccess, context.Canceled, context.DeadlineExceeded, errControl,
}

func encodeError(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error()}
	for i, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			w.Is = append(w.Is, i)
		}
	}
	var rejected *rdma.RejectedError
	if errors.As(err, &rejected) {
		w.Rejected, w.Peer, w.Private = true, rejected.Peer, rejected.PrivateData
	}
	return w
}

// A remoteError is an error of the other process.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }

func (w *wireError) decode() error {
	if w == nil {
		return nil
	}
	e := &remoteError{text: w.Text}
	for _, i := range w.Is {
		if i >= 0 && i < len(sentinels) {
			e.is = append(e.is, sentinels[i])
		}
	}
	if w.Rejected {
		e.is = append(e.is, &rdma.RejectedError{Peer: w.Peer, PrivateData: w.Private})
	}
	return e
}

// errControl says that the other process can no longer be told anything.
var errControl = errors.New("rdmatest: control connection lost")

func isLost(err error) bool { return errors.Is(err, errControl) }

// remoteDevice is the client.
type remoteDevice struct {
	control    io.ReadWriteCloser
	attributes rdma.Attributes
	reading    sync.WaitGroup

	writing sync.Mutex // held while encoding
	encoder *gob.Encoder
	flush   func() error

	mu       sync.Mutex
	sequence uint64
	lost     error
	pending  map[uint64]chan *reply
	objects  map[uint64]any // queue pairs and queues, by which events name them
	domains  map[uint64]rdma.DomainConfig
}

func isRemote(d rdma.Device) bool {
	_, ok := d.(*remoteDevice)
	return ok
}

// RemoteDevice is the device that the other end of control offers with
// [ServeDevice]. All calls go over control, which is no part of what is tested.
// The memory of its regions is elsewhere: Bytes returns nil. It ends with
// control, which the caller closes.
func RemoteDevice(control io.ReadWriteCloser) (rdma.Device, error) {
	buffer := bufio.NewWriter(control)
	d := &remoteDevice{
		control: control, encoder: gob.NewEncoder(buffer), flush: buffer.Flush,
		pending: map[uint64]chan *reply{}, objects: map[uint64]any{}, domains: map[uint64]rdma.DomainConfig{},
	}
	d.reading.Go(d.read)
	r, err := d.call(&call{Method: "Device.Attributes"})
	if err != nil {
		control.Close()
		d.reading.Wait()
		return nil, fmt.Errorf("rdmatest: remote device: %w", err)
	}
	d.attributes = r.Attributes
	return d, nil
}

func (d *remoteDevice) read() {
	decoder := gob.NewDecoder(bufio.NewReader(d.control))
	for {
		var r reply
		err := decoder.Decode(&r)
		if err != nil {
			d.mu.Lock()
			d.lost = fmt.Errorf("%w: %w", errControl, err)
			for sequence, waiting := range d.pending {
				waiting <- &reply{Error: encodeError(d.lost)}
				delete(d.pending, sequence)
			}
			for _, o := range d.objects {
				if q, ok := o.(*remoteQueuePair); ok {
					q.finish()
				}
			}
			d.mu.Unlock()
			return
		}
		d.mu.Lock()
		waiting := d.pending[r.Sequence]
		delete(d.pending, r.Sequence)
		var event func()
		switch {
		case r.Done != 0:
			if q, ok := d.objects[r.Done].(*remoteQueuePair); ok {
				q.finish()
			}
		case r.Event != nil:
			event = d.event(r.Event)
		}
		d.mu.Unlock()
		if event != nil {
			event()
		}
		if waiting != nil {
			waiting <- &r
		}
	}
}

// event returns what calls OnEvent; it needs mu.
func (d *remoteDevice) event(w *wireEvent) func() {
	e := rdma.Event{Kind: w.Kind, Err: w.Error.decode()}
	if q, ok := d.objects[w.QueuePair].(*remoteQueuePair); ok {
		e.QueuePair = q
	}
	if q, ok := d.objects[w.Completions].(*remoteCompletionQueue); ok {
		e.Completions = q
	}
	if q, ok := d.objects[w.SharedReceive].(*remoteSharedReceive); ok {
		e.SharedReceive = q
	}
	on := d.domains[w.Domain].OnEvent
	if on == nil {
		return nil
	}
	return func() { on(e) }
}

func (d *remoteDevice) write(c *call) error {
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := d.encoder.Encode(c); err != nil {
		return fmt.Errorf("%w: %w", errControl, err)
	}
	if err := d.flush(); err != nil {
		return fmt.Errorf("%w: %w", errControl, err)
	}
	return nil
}

func (d *remoteDevice) call(c *call) (*reply, error) {
	return d.callContext(context.Background(), c)
}

// callContext makes a call that ends with its context. The other side answers
// a cancelled call at once, or the process is stopped and nobody does.
func (d *remoteDevice) callContext(ctx context.Context, c *call) (*reply, error) {
	waiting := make(chan *reply, 1)
	d.mu.Lock()
	if d.lost != nil {
		d.mu.Unlock()
		return &reply{}, d.lost
	}
	d.sequence++
	c.Sequence = d.sequence
	d.pending[c.Sequence] = waiting
	d.mu.Unlock()
	if err := d.write(c); err != nil {
		return &reply{}, err
	}
	select {
	case r := <-waiting:
		return r, r.Error.decode()
	case <-ctx.Done():
	}
	if err := d.write(&call{Sequence: c.Sequence, Cancel: true}); err != nil {
		return &reply{}, err
	}
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	select {
	case r := <-waiting:
		if err := r.Error.decode(); err != nil {
			// The other side knows of a cancellation only.
			if errors.Is(err, context.Canceled) {
				return r, &remoteError{text: err.Error(), is: []error{ctx.Err(), err}}
			}
			return r, err
		}
		return r, nil
	case <-timer.C:
		return &reply{}, ctx.Err()
	}
}

func (d *remoteDevice) overTCP() error {
	_, err := d.call(&call{Method: "Device.overTCP"})
	return err
}

func (d *remoteDevice) Attributes() rdma.Attributes { return d.attributes }

func (d *remoteDevice) OpenDomain(c rdma.DomainConfig) (rdma.Domain, error) {
	r, err := d.call(&call{Method: "Device.OpenDomain"})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.domains[r.Object] = c
	d.mu.Unlock()
	return &remoteDomain{d, r.Object}, nil
}

func (d *remoteDevice) Listen(ctx context.Context, address string) (rdma.Listener, error) {
	r, err := d.callContext(ctx, &call{Method: "Device.Listen", Address: address})
	if err != nil {
		return nil, err
	}
	return &remoteListener{d, r.Object, r.Text}, nil
}

type remoteListener struct {
	d       *remoteDevice
	object  uint64
	address string
}

func (l *remoteListener) Address() string { return l.address }

func (l *remoteListener) Accept(ctx context.Context) (rdma.ConnectRequest, error) {
	r, err := l.d.callContext(ctx, &call{Method: "Listener.Accept", Object: l.object})
	if err != nil {
		return nil, err
	}
	return &remoteRequest{l.d, r.Object, r.Data, r.Text}, nil
}

func (l *remoteListener) Close() error {
	_, err := l.d.call(&call{Method: "Listener.Close", Object: l.object})
	return err
}

type remoteRequest struct {
	d       *remoteDevice
	object  uint64
	private []byte
	address string
}

func (r *remoteRequest) PrivateData() []byte   { return r.private }
func (r *remoteRequest) RemoteAddress() string { return r.address }

func (r *remoteRequest) Accept(ctx context.Context, qp rdma.QueuePair, private []byte) error {
	q, ok := qp.(*remoteQueuePair)
	if !ok {
		return fmt.Errorf("rdmatest: queue pair of another process: %w", rdma.ErrInvalid)
	}
	_, err := r.d.callContext(ctx, &call{Method: "ConnectRequest.Accept", Object: r.object, Other: q.object, Data: private})
	return err
}

func (r *remoteRequest) Reject(private []byte) error {
	_, err := r.d.call(&call{Method: "ConnectRequest.Reject", Object: r.object, Data: private})
	return err
}

type remoteDomain struct {
	d      *remoteDevice
	object uint64
}

func (m *remoteDomain) Device() rdma.Device { return m.d }

func (m *remoteDomain) Allocate(size int, access rdma.Access) (rdma.Region, error) {
	r, err := m.d.call(&call{Method: "Domain.Allocate", Object: m.object, Number: size, Access: access})
	if err != nil {
		return nil, err
	}
	return &remoteRegion{d: m.d, object: r.Object, key: r.Key, address: r.Address, access: r.Access}, nil
}

func (m *remoteDomain) NewCompletionQueue(depth int) (rdma.CompletionQueue, error) {
	r, err := m.d.call(&call{Method: "Domain.NewCompletionQueue", Object: m.object, Number: depth})
	if err != nil {
		return nil, err
	}
	q := &remoteCompletionQueue{m.d, r.Object}
	m.d.remember(r.Object, q)
	return q, nil
}

func (d *remoteDevice) remember(object uint64, o any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.objects[object] = o
}

func (m *remoteDomain) NewSharedReceiveQueue(c rdma.SharedReceiveConfig) (rdma.SharedReceiveQueue, error) {
	r, err := m.d.call(&call{Method: "Domain.NewSharedReceiveQueue", Object: m.object, Shared: c})
	if err != nil {
		return nil, err
	}
	q := &remoteSharedReceive{m.d, r.Object}
	m.d.remember(r.Object, q)
	return q, nil
}

func (m *remoteDomain) NewQueuePair(c rdma.QueuePairConfig) (rdma.QueuePair, error) {
	w := wireConfig{
		SendDepth: c.SendDepth, RecvDepth: c.RecvDepth, MaxSGE: c.MaxSGE, MaxInline: c.MaxInline, MaxReads: c.MaxReads,
		Retry: int(c.ReceiverNotReadyRetry),
	}
	if q, ok := c.SendCompletions.(*remoteCompletionQueue); ok {
		w.SendCompletions = q.object
	}
	if q, ok := c.RecvCompletions.(*remoteCompletionQueue); ok {
		w.RecvCompletions = q.object
	}
	if q, ok := c.SharedReceive.(*remoteSharedReceive); ok {
		w.SharedReceive = q.object
	}
	r, err := m.d.call(&call{Method: "Domain.NewQueuePair", Object: m.object, Config: w})
	if err != nil {
		return nil, err
	}
	q := &remoteQueuePair{d: m.d, object: r.Object, number: r.Key, done: make(chan struct{})}
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	m.d.objects[r.Object] = q
	if m.d.lost != nil {
		q.finish()
	}
	return q, nil
}

func (m *remoteDomain) Close() error {
	_, err := m.d.call(&call{Method: "Domain.Close", Object: m.object})
	return err
}

type remoteRegion struct {
	d       *remoteDevice
	object  uint64
	key     uint32
	address uint64
	access  rdma.Access
}

func (r *remoteRegion) Bytes() []byte       { return nil }
func (r *remoteRegion) Key() uint32         { return r.key }
func (r *remoteRegion) Address() uint64     { return r.address }
func (r *remoteRegion) Access() rdma.Access { return r.access }

func (r *remoteRegion) Close() error {
	_, err := r.d.call(&call{Method: "Region.Close", Object: r.object})
	return err
}

func (r *remoteRegion) read(offset, length int) ([]byte, error) {
	answer, err := r.d.call(&call{Method: "Region.read", Object: r.object, Offset: offset, Number: length})
	return answer.Data, err
}

func (r *remoteRegion) write(offset int, data []byte) error {
	_, err := r.d.call(&call{Method: "Region.write", Object: r.object, Offset: offset, Data: data})
	return err
}

func (r *remoteRegion) fill(offset, length int, value byte) error {
	_, err := r.d.call(&call{Method: "Region.fill", Object: r.object, Offset: offset, Number: length, Value: value})
	return err
}

type remoteCompletionQueue struct {
	d      *remoteDevice
	object uint64
}

func (q *remoteCompletionQueue) Poll(into []rdma.Completion) (int, error) {
	r, err := q.d.call(&call{Method: "CompletionQueue.Poll", Object: q.object, Number: len(into)})
	return copy(into, r.Completions), err
}

func (q *remoteCompletionQueue) Arm(solicitedOnly bool) error {
	_, err := q.d.call(&call{Method: "CompletionQueue.Arm", Object: q.object, Flag: solicitedOnly})
	return err
}

func (q *remoteCompletionQueue) Wait(ctx context.Context) error {
	_, err := q.d.callContext(ctx, &call{Method: "CompletionQueue.Wait", Object: q.object})
	return err
}

func (q *remoteCompletionQueue) Close() error {
	_, err := q.d.call(&call{Method: "CompletionQueue.Close", Object: q.object})
	return err
}

func wireSGEs(sges []rdma.SGE) []wireSGE {
	var w []wireSGE
	for _, s := range sges {
		each := wireSGE{Offset: s.Offset, Length: s.Length}
		if r, ok := s.Region.(*remoteRegion); ok {
			each.Region = r.object
		}
		w = append(w, each)
	}
	return w
}

func wireReceives(requests []rdma.RecvRequest) []wireReceive {
	var w []wireReceive
	for _, r := range requests {
		w = append(w, wireReceive{r.ID, wireSGEs(r.SGEs)})
	}
	return w
}

type remoteSharedReceive struct {
	d      *remoteDevice
	object uint64
}

func (q *remoteSharedReceive) PostRecv(requests []rdma.RecvRequest) (int, error) {
	r, err := q.d.call(&call{Method: "SharedReceiveQueue.PostRecv", Object: q.object, Receives: wireReceives(requests)})
	return r.Number, err
}

func (q *remoteSharedReceive) Close() error {
	_, err := q.d.call(&call{Method: "SharedReceiveQueue.Close", Object: q.object})
	return err
}

type remoteQueuePair struct {
	d      *remoteDevice
	object uint64
	number uint32
	ended  bool // under the device's mu
	done   chan struct{}
}

// finish closes Done; it needs the device's mu.
func (q *remoteQueuePair) finish() {
	if !q.ended {
		q.ended = true
		close(q.done)
	}
}

func (q *remoteQueuePair) Number() uint32        { return q.number }
func (q *remoteQueuePair) Done() <-chan struct{} { return q.done }

func (q *remoteQueuePair) PostSend(requests []rdma.SendRequest) (int, error) {
	var w []wireSend
	for _, r := range requests {
		sges := wireSGEs(r.SGEs)
		r.SGEs = nil
		w = append(w, wireSend{r, sges})
	}
	r, err := q.d.call(&call{Method: "QueuePair.PostSend", Object: q.object, Sends: w})
	return r.Number, err
}

func (q *remoteQueuePair) PostRecv(requests []rdma.RecvRequest) (int, error) {
	r, err := q.d.call(&call{Method: "QueuePair.PostRecv", Object: q.object, Receives: wireReceives(requests)})
	return r.Number, err
}

func (q *remoteQueuePair) Connect(ctx context.Context, address string, private []byte) ([]byte, error) {
	r, err := q.d.callContext(ctx, &call{Method: "QueuePair.Connect", Object: q.object, Address: address, Data: private})
	return r.Data, err
}

func (q *remoteQueuePair) Disconnect() error {
	_, err := q.d.call(&call{Method: "QueuePair.Disconnect", Object: q.object})
	return err
}

func (q *remoteQueuePair) State() rdma.State {
	r, err := q.d.call(&call{Method: "QueuePair.State", Object: q.object})
	if err != nil {
		return rdma.StateError
	}
	return rdma.State(r.Number)
}

func (q *remoteQueuePair) Err() error {
	_, err := q.d.call(&call{Method: "QueuePair.Err", Object: q.object})
	return err
}

func (q *remoteQueuePair) Close() error {
	_, err := q.d.call(&call{Method: "QueuePair.Close", Object: q.object})
	return err
}
