package datanode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/fifo"
)

const (
	// copyWindow is how many bytes of a copy may be on their way, if two packets have fewer.
	copyWindow = 2 << 20
	// copyPacket is for transports that the tuning table says nothing of.
	copyPacket = 256 << 10
	// firstBusyPause is before a DataNode is asked again that has no memory for the window,
	// and busyFor for how long it is asked.
	firstBusyPause = 10 * time.Millisecond
	busyFor        = 2 * time.Second
	// settlingFor is for how long a DataNode may take to notice that a connection has ended,
	// and to drop the copy that came over it.
	settlingFor = 10 * time.Second
)

// otherWay is why a copy goes by the data transfer protocol.
type otherWay int

const (
	notOffered otherWay = iota // by the DataNode, or one behind it
	notConnected
	noMemory
	brokeOff
	otherWays
	notConfigured // here; nothing to count
)

var otherWayNames = [otherWays]string{"not offered", "not connected", "no memory", "broke off"}

// otherWayError says that a copy failed for a reason that the data transfer protocol need not
// have.
type otherWayError struct {
	why otherWay
	err error
}

// lingers tells whether the DataNode may have begun the copy, and still be dropping it.
func (e *otherWayError) lingers() bool {
	return e.why == brokeOff || e.why == noMemory || errors.Is(e.err, errBehind)
}

// errBehind says that the DataNode which was asked has not got through to one behind it.
var errBehind = errors.New("not reached from there")

func (e *otherWayError) Error() string { return e.err.Error() }
func (e *otherWayError) Unwrap() error { return e.err }

// sendNatively sends a replica by hdfs-data/1. The error is an [otherWayError] if the other
// protocol may do.
func (dn *DataNode) sendNatively(ctx context.Context, rd *store.Reader, addr string, op *hdfspb.OpWriteBlockProto) error {
	if dn.native.mirrors == nil {
		return &otherWayError{notConfigured, errors.New("this DataNode has no native path")}
	}
	for began, pause := time.Now(), firstBusyPause; ; pause = min(2*pause, time.Second) {
		err := dn.sendOnce(ctx, rd, addr, op)
		if !errors.Is(err, errCopyBusy) || time.Since(began) > busyFor || !dn.sleep(pause) {
			return err
		}
	}
}

// errCopyBusy says that a DataNode, or this one, has no memory for the window now.
var errCopyBusy = errors.New("no memory for the window")

// A nativeCopy is a replica on its way to other DataNodes over the connection to the first of
// them. One goroutine sends, and waits for what the one that receives has been told.
type nativeCopy struct {
	conn     *native.Conn
	id       uint32
	nodes    int           // that get it
	patience time.Duration // for what they owe
	news     chan struct{} // of one place: what follows has changed

	reply transfer.Ack // of Take

	mu       sync.Mutex
	answered bool // the set-up is, by a yes
	sent     fifo.Queue[sentPacket]
	held     int64 // bytes of those
	last     int64 // the number of the last packet that was sent, -1 before the first
	whole    bool  // that was the last one of all
	err      error // it goes no further
}

type sentPacket struct{ seqno, size int64 }

var _ native.User = (*nativeCopy)(nil)

func (dn *DataNode) sendOnce(ctx context.Context, rd *store.Reader, addr string, op *hdfspb.OpWriteBlockProto) error {
	c := &nativeCopy{
		nodes: 1 + len(op.GetTargets()), last: -1, news: make(chan struct{}, 1),
		patience: dn.cfg.ReadTimeout + perHop*time.Duration(1+len(op.GetTargets())),
	}
	err := dn.native.mirrors.Join(ctx, addr, c, func(conn *native.Conn, id uint32) error {
		c.conn, c.id = conn, id
		return nil
	})
	if err != nil {
		var not *native.NotNativeError
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &not):
			return &otherWayError{notOffered, err}
		}
		return &otherWayError{notConnected, err}
	}
	conn, id := c.conn, c.id
	packet := packetOf(rd.Sum, cmp.Or(conn.Endpoint().Tuning().Packet, copyPacket))
	window := min(packet.total(rd.Length), max(copyWindow, 2*packet.size(packet.data)), native.MaxWindow)
	if err := dn.reserveCopy(window); err != nil {
		conn.Leave(id)
		return &otherWayError{noMemory, err}
	}
	defer c.leave(func() { dn.native.release(window) })
	message, err := native.AppendSetUp(nil, int(window), op)
	if err != nil {
		return err
	}
	conn.Post(id, message)
	if err := c.await(ctx, func() bool { return c.answered }); err != nil {
		return err
	}
	if err := c.send(ctx, rd, packet, window); err != nil {
		dn.noteCorrupt(rd, err)
		return err
	}
	return c.await(ctx, func() bool { return c.sent.Len() == 0 })
}

// reserveCopy takes a copy's window out of NativeMemory. Who is refused holds nothing, and is to
// ask again if another copy or block may give back what it lacks.
func (dn *DataNode) reserveCopy(window int64) error {
	switch limit := dn.cfg.NativeMemory; {
	case window > limit:
		return fmt.Errorf("a window of %d bytes is more than NativeMemory here, %d bytes", window, limit)
	case !dn.native.reserve(window, limit):
		return fmt.Errorf("%w of %d bytes: other blocks have what NativeMemory allows here", errCopyBusy, window)
	}
	return nil
}

// packetShape tells how long the packets of a copy are.
type packetShape struct {
	sum  transfer.Checksum
	data int64 // bytes of data in each but the last with any, whole chunks
}

// packetOf is the shape of packets of at most size bytes, unless one chunk is longer.
func packetOf(sum transfer.Checksum, size int) packetShape {
	chunk := sum.BytesPerChunk
	chunks := max(1, (size-native.PacketHeaderLen)/(chunk+sum.Size()))
	return packetShape{sum, int64(chunks) * int64(chunk)}
}

func (p packetShape) sums(data int64) int64 { return p.sum.Chunks(data) * int64(p.sum.Size()) }

// size is how many bytes a packet with so much data has.
func (p packetShape) size(data int64) int64 { return native.PacketHeaderLen + p.sums(data) + data }

// total is how many bytes all packets of a replica have, the empty last one included.
func (p packetShape) total(length int64) int64 {
	packets := (length+p.data-1)/p.data + 1
	return packets*native.PacketHeaderLen + p.sums(length) + length
}

// send sends the packets, each compared with its checksums first.
func (c *nativeCopy) send(ctx context.Context, rd *store.Reader, packet packetShape, window int64) error {
	for h := (transfer.PacketHeader{}); !h.Last; h.Seqno++ {
		data := min(packet.data, rd.Length-h.Offset)
		h.DataLen, h.Last = int32(data), data == 0
		size := packet.size(data)
		if err := c.await(ctx, func() bool { return c.held+size <= window }); err != nil {
			return err
		}
		b, err := c.buffer(ctx, int(size))
		if err != nil {
			return err
		}
		sums := packet.sums(data)
		native.PutPacketHeader(b.Bytes(), &h, int(sums))
		rest := b.Bytes()[native.PacketHeaderLen:]
		if data > 0 {
			if err := rd.ReadVerified(rest[sums:], rest[:sums], h.Offset); err != nil {
				b.Release()
				return err
			}
		}
		c.mu.Lock()
		c.sent.Push(sentPacket{h.Seqno, size})
		c.held, c.last, c.whole = c.held+size, h.Seqno, h.Last
		c.mu.Unlock()
		c.conn.Forward(c.id, b)
		h.Offset += data
	}
	return nil
}

// buffer waits for registered memory. The copy holds none but what is being sent.
func (c *nativeCopy) buffer(ctx context.Context, size int) (*verbena.Buffer, error) {
	wait, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	b, err := c.conn.Endpoint().Buffer(wait, size)
	switch {
	case err == nil:
		return b, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case wait.Err() != nil:
		return nil, &otherWayError{noMemory, err}
	}
	return nil, &otherWayError{brokeOff, err}
}

// await waits until holds, which is asked with mu held, for as long as the DataNodes may owe
// something.
func (c *nativeCopy) await(ctx context.Context, holds func() bool) error {
	var silence <-chan time.Time
	for {
		c.mu.Lock()
		ready, err := holds(), c.err
		c.mu.Unlock()
		if err != nil || ready {
			return err
		}
		if silence == nil {
			t := time.NewTimer(c.patience)
			defer t.Stop()
			silence = t.C
		}
		select {
		case <-c.news:
		case <-silence:
			return &otherWayError{brokeOff, fmt.Errorf("the DataNode has been silent for %v", c.patience)}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leave ends the use of the connection, and calls release when nothing is sent any more. An abort
// means nothing to a block that is over.
func (c *nativeCopy) leave(release func()) {
	c.conn.Leave(c.id)
	if c.conn.Forget(c.id, release) {
		c.conn.Post(c.id, native.AppendAbort(nil))
	}
}

// Take implements [native.User].
func (c *nativeCopy) Take(m *verbena.Message) {
	c.take(m.Bytes())
	m.Release()
}

// take takes what the first of the DataNodes says.
func (c *nativeCopy) take(b []byte) {
	defer signal(c.news)
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	switch kind := native.KindOf(b); {
	case kind == native.Answer && !c.answered:
		err = c.takeAnswer(b)
	case kind == native.Ack && c.answered:
		err = c.takeAck(b)
	default:
		err = &otherWayError{brokeOff, fmt.Errorf("%w: kind %d", native.ErrMalformed, kind)}
	}
	if err != nil {
		c.fail(err)
	}
}

// fail ends the copy, unless it is complete. mu is held.
func (c *nativeCopy) fail(err error) {
	if c.err == nil && !(c.whole && c.sent.Len() == 0) {
		c.err = err
	}
}

// takeAnswer takes the answer to the set-up. mu is held.
func (c *nativeCopy) takeAnswer(b []byte) error {
	v, resp, err := native.ParseAnswer(b)
	if err != nil {
		return &otherWayError{brokeOff, err}
	}
	if v == native.Accepted {
		c.answered = true
		return nil
	}
	err = fmt.Errorf("%v: %s", resp.GetStatus(), resp.GetMessage())
	switch status := resp.GetStatus(); {
	case v == native.Busy:
		return &otherWayError{noMemory, fmt.Errorf("%w: %w", errCopyBusy, err)}
	case v == native.Unreachable:
		return &otherWayError{notOffered, fmt.Errorf("DataNode %s: %w: %w", resp.GetFirstBadLink(), errBehind, err)}
	case status == hdfspb.Status_ERROR_INVALID: // older ones take no copies
		return &otherWayError{notOffered, err}
	case status == hdfspb.Status_ERROR_EXISTS:
		return fmt.Errorf("%w: %w", store.ErrExists, err)
	}
	return err
}

// takeAck takes an acknowledgement. mu is held.
func (c *nativeCopy) takeAck(b []byte) error {
	if err := native.ParseAck(b, &c.reply); err != nil {
		return &otherWayError{brokeOff, err}
	}
	replies := c.reply.Replies
	switch {
	case !c.reply.OK() && replies[0] != hdfspb.Status_SUCCESS:
		return fmt.Errorf("the DataNode takes no more of it: %v", replies)
	case !c.reply.OK():
		// What lies between two others has failed, or the farther one.
		return &otherWayError{brokeOff, fmt.Errorf("a DataNode behind takes no more of it: %v", replies)}
	case len(replies) != c.nodes || c.reply.Seqno > c.last:
		return &otherWayError{brokeOff, fmt.Errorf("%w: packet %d of %d acknowledged by %d DataNodes of %d", native.ErrMalformed, c.reply.Seqno, c.last, len(replies), c.nodes)}
	}
	for c.sent.Len() > 0 && c.sent.Front().seqno <= c.reply.Seqno {
		c.held -= c.sent.Pop().size
	}
	return nil
}

// End implements [native.User].
func (c *nativeCopy) End(err error) {
	c.mu.Lock()
	c.fail(&otherWayError{brokeOff, err})
	c.mu.Unlock()
	signal(c.news)
}
