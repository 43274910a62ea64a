package datanode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

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

	stuck []atomic.Int32 // by directory: blocks in whose writes receivers were relieved, until those return
}

func (dn *DataNode) initNatives() {
	dn.native.links, dn.native.stuck = map[*nativeLink]struct{}{}, make([]atomic.Int32, len(dn.cfg.Dirs))
	if dn.cfg.Native == nil {
		return
	}
	cfg := *dn.cfg.Native
	cfg.DialTimeout, cfg.SendTimeout, cfg.Logger = dn.cfg.DialTimeout, dn.cfg.WriteTimeout, dn.log
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
// goroutine while it lasts, in which the block's next packets are dealt with, too. A write that
// should not take long and does becomes such a goroutine: another one receives from then on.
type nativeLink struct {
	*native.Link
	dn   *DataNode
	ctx  context.Context
	done chan struct{} // closed when nobody receives any more, because of err
	err  error

	mu     sync.Mutex
	breach error
	blocks map[uint32]*nativeBlock // by their tags
	busy   *nativeBlock            // in whose write the goroutine that receives is; nil: in none
	relief *time.Timer             // relieves that goroutine

	// Of the goroutine that receives: the blocks whose packets and acknowledgements wait, how
	// many of them have been dealt with, and how many messages have been taken since none waited.
	owing  []*nativeBlock
	paused int
	taken  int
}

// reliefAfter is how long a write may take before another goroutine receives from the link, if
// [Config].DiskPatience is not less.
const reliefAfter = time.Second

// errRelieved ends a goroutine that received: another one does.
var errRelieved = errors.New("another goroutine receives")

// ackBatch is how many messages are taken at most before what is owed for them goes out:
// one block's stream must not keep back what another one's client waits for.
const ackBatch = 8

// ServeNative serves an endpoint of [native.Service] until it ends.
func (dn *DataNode) ServeNative(ctx context.Context, ep *verbena.Endpoint) error {
	l := &nativeLink{Link: native.NewLink(ep, dn.cfg.WriteTimeout), dn: dn, ctx: ctx, done: make(chan struct{}), blocks: map[uint32]*nativeBlock{}}
	l.Bound(l.broken)
	l.relief = time.AfterFunc(reliefAfter, l.relieve)
	l.relief.Stop() // until there is a write
	defer l.relief.Stop()
	n := &dn.native
	n.mu.Lock()
	n.links[l] = struct{}{}
	n.mu.Unlock()
	defer context.AfterFunc(dn.ctx, func() { ep.Close() })()
	if !dn.goBackground(l.serve) {
		n.mu.Lock()
		delete(n.links, l)
		n.mu.Unlock()
		return ErrClosed
	}
	<-l.done
	return l.err
}

// serve receives until the endpoint ends, or another goroutine does.
func (l *nativeLink) serve() {
	err := l.broke() // before this goroutine has relieved another one
	if err == nil {
		err = l.takeAll()
	}
	if errors.Is(err, errRelieved) {
		return
	}
	if l.pause() != nil {
		return // the other one comes here, too
	}
	n := &l.dn.native
	n.mu.Lock()
	delete(n.links, l)
	n.mu.Unlock()
	l.end()
	breach := l.broke()
	switch {
	case breach != nil:
		l.err = breach
	case err != io.EOF && l.dn.ctx.Err() == nil:
		l.err = err
	}
	close(l.done)
}

func (l *nativeLink) takeAll() error {
	for {
		m, err := l.receive()
		if err != nil {
			return err
		}
		if err := l.take(m); err != nil {
			if errors.Is(err, native.ErrMalformed) {
				l.broken(err) // at once: what is to be written before the end may take long
			}
			return err
		}
	}
}

// receive waits for a message. Before it waits, a block's packets that were there are written
// together, and one acknowledgement for all of them goes out.
func (l *nativeLink) receive() (*verbena.Message, error) {
	full := l.taken == ackBatch
	if full {
		if err := l.pause(); err != nil {
			return nil, err
		}
	}
	if m := l.Endpoint().TryReceive(); m != nil {
		l.taken++
		return m, nil
	}
	if !full {
		if err := l.pause(); err != nil {
			return nil, err
		}
	}
	l.dn.native.waits.Add(1)
	return l.Endpoint().Receive(l.ctx)
}

// pause writes and acknowledges what has been taken.
func (l *nativeLink) pause() error {
	for l.paused < len(l.owing) {
		b := l.owing[l.paused]
		l.owing[l.paused] = nil
		l.paused++
		if err := b.pause(); err != nil {
			return err
		}
	}
	l.owing, l.paused, l.taken = l.owing[:0], 0, 0
	return nil
}

// write writes what a block has gathered, in the goroutine that receives. With an error another
// one receives by now, because that has taken long, and the block's next packets have been dealt
// with here.
func (l *nativeLink) write(b *nativeBlock) error {
	l.mu.Lock()
	l.busy = b
	l.relief.Reset(min(reliefAfter, l.dn.cfg.DiskPatience))
	l.mu.Unlock()
	b.write()
	l.mu.Lock()
	relieved := l.busy != b
	if !relieved {
		l.busy = nil
		l.relief.Stop()
	}
	l.mu.Unlock()
	if !relieved {
		return nil
	}
	l.dn.native.stuck[b.dir].Add(-1)
	b.run()
	return errRelieved
}

// relieve has another goroutine receive if the one that does has been in a write for long: its
// disk may hang, and blocks on others are not to wait for it.
func (l *nativeLink) relieve() {
	l.dn.goBackground(func() {
		l.mu.Lock()
		b := l.busy
		if l.busy = nil; b != nil {
			l.dn.native.stuck[b.dir].Add(1)
		}
		l.mu.Unlock()
		if b == nil {
			return
		}
		l.dn.log.Warn("a write of a block takes long; others of its peer go on without it", "block", b.op.GetHeader().GetBaseHeader().GetBlock().GetBlockId(), "dir", l.dn.cfg.Dirs[b.dir].Path)
		b.here = false // the other goroutine deals with its packets
		if l.pause() == nil {
			l.serve()
		}
	})
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

// release gives a window back when nothing of the block waits any more to be sent to this peer:
// it is memory, too.
func (l *nativeLink) release(window int64) {
	l.After(func() {
		l.Allow(-window)
		l.dn.native.release(window)
	})
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

// broke is the error that broken has been told of first, nil if none.
func (l *nativeLink) broke() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breach
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
