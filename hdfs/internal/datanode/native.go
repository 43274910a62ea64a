package datanode

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

// natives is what the native data path of a DataNode has: docs/hdfs-data.md.
type natives struct {
	mirrors *native.Table // to the next DataNodes of pipelines; nil: there is no native path

	packets, waits, acks atomic.Uint64 // [PacketStats]

	mu       sync.Mutex
	links    map[*nativeLink]struct{}
	reserved int64 // bytes of windows
}

func (dn *DataNode) initNatives() {
	dn.native.links = map[*nativeLink]struct{}{}
	if dn.cfg.Native == nil {
		return
	}
	cfg := *dn.cfg.Native
	cfg.DialTimeout, cfg.Logger = dn.cfg.DialTimeout, dn.log
	if secret := dn.cfg.Secret; secret != nil {
		cfg.Prove = func(nonce [native.NonceLen]byte, address string, proof []byte) bool {
			return native.Proves(secret, nonce, address, proof)
		}
	}
	dn.native.mirrors = native.NewTable(cfg)
}

func (dn *DataNode) closeNatives() {
	if dn.native.mirrors != nil {
		dn.native.mirrors.Close()
	}
}

// reserve takes a window of a block, or of a copy, out of NativeMemory, or reports that there is no room
// now. It never waits: who waits for memory while he has some may wait for ever.
func (n *natives) reserve(window, limit int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reserved+window > limit {
		return false
	}
	n.reserved += window
	return true
}

func (n *natives) release(window int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reserved -= window
}

// A nativeLink is one endpoint of [native.Service], of a client or of the DataNode before
// this one in pipelines, with the blocks that are written over it. One goroutine receives:
// it forwards packets, and writes and acknowledges them when no more messages are there.
// What may take long, a set-up, the end of a block, a packet that is to be synced, has a
// goroutine while it lasts, in which the block's next packets are dealt with, too.
type nativeLink struct {
	*native.Link
	dn *DataNode

	mu     sync.Mutex
	breach error
	blocks map[uint32]*nativeBlock // by their tags

	// Of the goroutine that receives: the blocks whose packets and acknowledgements wait, and
	// how many messages have been taken since none waited.
	owing []*nativeBlock
	taken int
}

// ackBatch is how many messages are taken at most before what is owed for them goes out:
// one block's stream must not keep back what another one's client waits for.
const ackBatch = 8

// ServeNative serves an endpoint of [native.Service] until it ends.
func (dn *DataNode) ServeNative(ctx context.Context, ep *verbena.Endpoint) (err error) {
	l := &nativeLink{Link: native.NewLink(ep), dn: dn, blocks: map[uint32]*nativeBlock{}}
	l.Bound(l.broken)
	done := make(chan struct{})
	if !dn.goBackground(func() { defer close(done); err = l.serve(ctx) }) {
		return ErrClosed
	}
	<-done
	return err
}

func (l *nativeLink) serve(ctx context.Context) error {
	n := &l.dn.native
	n.mu.Lock()
	n.links[l] = struct{}{}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.links, l)
		n.mu.Unlock()
		l.pause()
		l.end()
	}()
	defer context.AfterFunc(l.dn.ctx, func() { l.Endpoint().Close() })()
	for {
		m, err := l.receive(ctx)
		if err == nil {
			err = l.take(m)
		}
		if err != nil {
			l.mu.Lock()
			breach := l.breach
			l.mu.Unlock()
			if breach != nil {
				return breach
			}
			if err == io.EOF || l.dn.ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// receive waits for a message. Before it waits, a block's packets that were there are written
// together, and one acknowledgement for all of them goes out.
func (l *nativeLink) receive(ctx context.Context) (*verbena.Message, error) {
	m := l.Endpoint().TryReceive()
	if m == nil || l.taken == ackBatch {
		l.pause()
	}
	if m != nil {
		l.taken++
		return m, nil
	}
	l.dn.native.waits.Add(1)
	return l.Endpoint().Receive(ctx)
}

// pause writes and acknowledges what has been taken.
func (l *nativeLink) pause() {
	for i, b := range l.owing {
		b.pause()
		l.owing[i] = nil
	}
	l.owing, l.taken = l.owing[:0], 0
}

// take takes a message and its reference. The error is a breach.
func (l *nativeLink) take(m *verbena.Message) error {
	message := m.Bytes()
	kind := native.KindOf(message)
	if err := native.CheckLength(kind, len(message)); err != nil {
		m.Release()
		return err
	}
	switch kind {
	case native.Packet:
		l.mu.Lock()
		b := l.blocks[m.Tag]
		l.mu.Unlock()
		l.dn.native.packets.Add(1)
		if b == nil {
			m.Release() // it has crossed the block's end
			return nil
		}
		return b.take(m)
	case native.SetUp:
		defer m.Release()
		window, op, err := native.ParseSetUp(message)
		if err != nil {
			return err
		}
		return l.setUp(m.Tag, window, op)
	case native.Abort:
		defer m.Release()
		l.mu.Lock()
		b := l.blocks[m.Tag]
		l.mu.Unlock()
		if b != nil {
			b.end()
		}
		return nil
	case native.Hello:
		defer m.Release()
		nonce, err := native.ParseHello(message)
		if err != nil {
			return err
		}
		var proof []byte
		if l.dn.cfg.Secret != nil {
			proof = native.ProofOf(l.dn.cfg.Secret, nonce, address(l.dn.cfg.Host, uint32(l.dn.cfg.Port)))
		}
		l.Post(m.Tag, native.AppendProof(nil, proof))
		return nil
	}
	defer m.Release()
	return fmt.Errorf("%w: %d bytes that begin with kind %d", native.ErrMalformed, len(message), kind)
}

// setUp begins a block, if its token is good and there is room for it. The others cost no
// goroutine, but that of a set-up which comes before the NameNode has told of keys: those are
// as many as MaxTransfers allows.
func (l *nativeLink) setUp(tag uint32, window int, op *hdfspb.OpWriteBlockProto) error {
	l.mu.Lock()
	_, used := l.blocks[tag]
	l.mu.Unlock()
	if used {
		return fmt.Errorf("%w: block %d is set up twice", native.ErrMalformed, tag)
	}
	b := &nativeBlock{link: l, tag: tag, window: int64(window), running: true, seqno: -1, acked: -1, writing: make(turn, 1)}
	b.dn, b.op = l.dn, op
	if l.dn.keys.Told() {
		if no := b.admit(); no != nil {
			l.Post(tag, answerTo(native.Refused, no))
			return nil
		}
	}
	if why := l.reserve(int64(window)); why != nil {
		l.Post(tag, answerTo(native.Busy, refusedBy(hdfspb.Status_ERROR, "", why)))
		return nil
	}
	l.mu.Lock()
	l.blocks[tag] = b // by the goroutine that receives alone
	l.mu.Unlock()
	if !l.dn.goBackground(b.setUp) {
		return ErrClosed // and so the block ends
	}
	return nil
}

// reserve takes what a block needs while it lasts, or tells what there is none of.
func (l *nativeLink) reserve(window int64) error {
	dn := l.dn
	if n := dn.transfers.Add(1); n > int64(dn.cfg.MaxTransfers) {
		dn.transfers.Add(-1)
		return fmt.Errorf("this DataNode serves %d operations already, as many as MaxTransfers allows", n-1)
	}
	if !dn.native.reserve(window, dn.cfg.NativeMemory) {
		dn.transfers.Add(-1)
		return fmt.Errorf("no memory for a window of %d bytes: other blocks have what NativeMemory allows", window)
	}
	l.Allow(window)
	return nil
}

// release gives back what reserve has taken when nothing of the block waits any more to be
// sent to this peer or, if mirror is not nil, to that one: it is memory, too.
func (l *nativeLink) release(window int64, mirror *native.Conn) {
	free := func() {
		l.Allow(-window)
		l.dn.native.release(window)
		l.dn.transfers.Add(-1)
	}
	if mirror == nil {
		l.After(free)
		return
	}
	mirror.After(func() { l.After(free) })
}

// broken ends the endpoint, whose peer does what the protocol forbids.
func (l *nativeLink) broken(err error) {
	l.mu.Lock()
	if l.breach == nil {
		l.breach = err
	}
	l.mu.Unlock()
	l.dn.spawn(func() { l.Endpoint().Close() })
}

func (l *nativeLink) forget(b *nativeBlock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.blocks[b.tag] == b {
		delete(l.blocks, b.tag)
	}
}

// all returns the blocks that are being written.
func (l *nativeLink) all() []*nativeBlock {
	l.mu.Lock()
	defer l.mu.Unlock()
	blocks := make([]*nativeBlock, 0, len(l.blocks))
	for _, b := range l.blocks {
		blocks = append(blocks, b)
	}
	return blocks
}

func (l *nativeLink) end() {
	for _, b := range l.all() {
		b.end()
	}
	l.Link.Close()
}

// failNatives ends all blocks that are being written, and tells their writers why.
func (dn *DataNode) failNatives(status hdfspb.Status, why error) (blocks int) {
	dn.native.mu.Lock()
	var all []*nativeBlock
	for l := range dn.native.links {
		all = append(all, l.all()...)
	}
	dn.native.mu.Unlock()
	for _, b := range all {
		b.fail(status, why)
	}
	return len(all)
}

// spawn runs f in a goroutine that Close waits for, or here if the DataNode closes.
func (dn *DataNode) spawn(f func()) {
	if !dn.goBackground(f) {
		f()
	}
}

// errEnded says that a block is not written any more.
var errEnded = fmt.Errorf("%w: the block is not written any more", store.ErrState)
