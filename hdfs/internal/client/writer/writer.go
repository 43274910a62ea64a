// Package writer writes files: it cuts what it is given into packets, sends them down
// pipelines of DataNodes, block after block, and repairs pipelines as HDFS's own client
// does, so that a write goes on for as long as one DataNode of each block does.
//
// The user's goroutine fills and sums packets. One goroutine of each stream sends them
// and sets pipelines up, and one of each pipeline takes the acknowledgements. Packets
// stay in memory until all DataNodes have acknowledged them, so that another pipeline can
// get them again.
package writer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/client/names"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/fifo"
)

// Config is what the streams of a client have in common.
type Config struct {
	Names   names.Caller
	Path    data.Path
	Client  string // the holder of its leases
	Packets *data.Pool
	// Window is how many bytes of memory packets of a stream may have that wait for their
	// acknowledgements or to be sent: as many as two packets have, or more.
	Window int
	// Replace tells when DataNodes that failed are replaced in a pipeline. If none can
	// be had, the write fails, unless BestEffort is set or MinReplication DataNodes are
	// left (and MinReplication is not 0).
	Replace        Replace
	BestEffort     bool
	MinReplication int
	// BlockRetries is how often a block is begun anew on other DataNodes.
	BlockRetries int
	// LocateRetries is how often the NameNode is asked again for a block, or to complete
	// a file, that waits for blocks before it; the pauses double from LocatePause, to a
	// minute or to LocatePause if that is more. They are at most 1<<20 and an hour.
	LocateRetries int
	LocatePause   time.Duration
	// RestartTimeout is for how long a DataNode that restarts is waited for.
	RestartTimeout time.Duration
	// Heartbeat is after how much silence a packet goes that keeps a pipeline alive.
	Heartbeat time.Duration
	// ExcludeFor is for how long no further block is asked for on a DataNode that failed.
	ExcludeFor time.Duration
	Logger     *slog.Logger
}

// maxRecoveries is how often in a row a pipeline is repaired for the same packet: the
// client may be what corrupts it.
const maxRecoveries = 5

// File is what the NameNode says of a file that is written.
type File struct {
	Path        string
	ID          uint64
	BlockSize   int64
	Replication int
}

// Stream writes one file. One goroutine at a time writes; Abort may be called by any.
type Stream struct {
	cfg    *Config
	file   File
	ctx    context.Context // of all that the stream does
	cancel context.CancelCauseFunc
	ended  chan struct{} // closed when the goroutine that sends has ended

	user    sync.Mutex // held by each call of the user
	current *data.Packet
	kept    int    // bytes of current that were sent before
	off     int64  // in the block, where the next byte goes
	tail    []byte // of a chunk that was sent before it was full
	tailAt  int64
	seqno   int64 // of the next packet
	synced  int64 // the offset up to which a sync has been asked for, -1 for none
	closed  bool
	result  error // of Close

	mu       sync.Mutex
	room     sync.Cond                // for the user
	work     sync.Cond                // for the goroutine that sends
	queue    fifo.Queue[*data.Packet] // to be sent
	unacked  fifo.Queue[*data.Packet] // sent
	held     int                      // bytes of memory of both
	acked    int64                    // seqno, -1 for none
	length   int64                    // of the block, acknowledged
	live     data.Pipeline            // nil between pipelines
	failure  *failure                 // of the pipeline
	sentLast bool                     // the last packet of the block
	ackLast  bool
	beat     bool // a heartbeat is due
	finish   bool // no packet will come
	persist  bool // the NameNode's log has yet to have the last block
	flushed  bool // some reader may rely on what is there
	err      error

	pipe pipe // of the goroutine that sends
}

// New returns a stream for a file that is empty, or that goes on with a new block after
// last, which may be nil.
func New(ctx context.Context, cfg *Config, file File, last *hdfspb.ExtendedBlockProto) *Stream {
	s := newStream(ctx, cfg, file)
	s.pipe.last = last
	go s.run()
	return s
}

// NewAppend returns a stream that goes on in a file's last block.
func NewAppend(ctx context.Context, cfg *Config, file File, last *hdfspb.LocatedBlockProto) (*Stream, error) {
	if len(last.GetLocs()) == 0 {
		return nil, fmt.Errorf("append to %s: no DataNode has its last block, %d", file.Path, last.GetB().GetBlockId())
	}
	s := newStream(ctx, cfg, file)
	s.off = int64(last.GetB().GetNumBytes())
	s.length = s.off
	s.pipe.appends = true
	s.pipe.block = last.GetB()
	s.pipe.sent = s.off
	s.pipe.take(last)
	go s.run()
	return s, nil
}

func newStream(ctx context.Context, cfg *Config, file File) *Stream {
	s := &Stream{cfg: cfg, file: file, acked: -1, synced: -1, ended: make(chan struct{})}
	s.room.L, s.work.L = &s.mu, &s.mu
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.pipe.s = s
	return s
}

// ErrClosed is what calls after Close return. It is [fs.ErrClosed].
var ErrClosed error = closedError{}

type closedError struct{}

func (closedError) Error() string        { return "the file is closed" }
func (closedError) Is(target error) bool { return target == fs.ErrClosed }

// ErrTooFewReplicas is how a Close ends that the NameNode does not carry out yet.
var ErrTooFewReplicas = errors.New("its last blocks do not have enough replicas yet; the NameNode closes it when they have, or when the lease expires")

// piece is how many bytes are copied and then summed up: they fit into a processor's
// first cache, or nearly.
const piece = 32 << 10

// Write takes all of p, or fails. It waits while the window is full.
func (s *Stream) Write(p []byte) (n int, err error) {
	s.user.Lock()
	defer s.leave()
	return s.write(p)
}

func (s *Stream) write(p []byte) (n int, err error) {
	for len(p) > 0 {
		k, err := s.packet()
		if err != nil {
			return n, err
		}
		// What the processor has just copied is summed up before the next piece.
		m := copy(k.Room(), p[:min(len(p), piece)])
		k.Grow(m)
		s.off += int64(m)
		p, n = p[m:], n+m
		if err := s.filled(k); err != nil {
			return n, err
		}
	}
	return n, nil
}

// ReadFrom writes what r has, without a copy in between, until its end.
func (s *Stream) ReadFrom(r io.Reader) (n int64, err error) {
	s.user.Lock()
	defer s.leave()
	for {
		m, rerr, err := s.readOnce(r)
		n += int64(m)
		switch {
		case err != nil:
			return n, err
		case rerr == io.EOF:
			return n, nil
		case rerr != nil:
			return n, rerr
		}
	}
}

// errCount says that a reader breaks its contract.
var errCount = errors.New("a reader returned an impossible count")

// readOnce writes what one Read of r returns; rerr is its error.
func (s *Stream) readOnce(r io.Reader) (n int, rerr, err error) {
	if s.full() && !s.closed {
		return s.readBehind(r)
	}
	k, err := s.packet()
	if err != nil {
		return 0, nil, err
	}
	n, rerr = r.Read(k.Room())
	if n < 0 || n > len(k.Room()) {
		return 0, nil, errCount
	}
	k.Grow(n)
	s.off += int64(n)
	return n, rerr, s.filled(k)
}

// fewBytes is how many bytes are read at once behind a block's end.
const fewBytes = 4 << 10

// readBehind is readOnce behind a full block, which is left as it is if r has no more.
func (s *Stream) readBehind(r io.Reader) (n int, rerr, err error) {
	if err := s.failed(); err != nil {
		return 0, nil, err
	}
	few := make([]byte, fewBytes)
	n, rerr = r.Read(few)
	if n < 0 || n > len(few) {
		return 0, nil, errCount
	}
	n, err = s.write(few[:n])
	return n, rerr, err
}

// full tells that all bytes of a block have been sent, but not its end: that waits for the first
// byte behind it, or for Close, since a Flush may ask before that for the block to be on disks.
func (s *Stream) full() bool { return s.current == nil && s.off == s.file.BlockSize }

// leave is the end of a turn of the goroutine that writes.
func (s *Stream) leave() {
	s.user.Unlock()
	s.discard()
}

// discard gives the packet that is being filled back once the stream has ended, however that
// came: nobody may call Close. If somebody writes at this moment, his turn's end does it.
func (s *Stream) discard() {
	if s.failed() == nil || !s.user.TryLock() {
		return
	}
	defer s.user.Unlock()
	if s.current != nil {
		s.cfg.Packets.Put(s.current)
		s.current = nil
	}
}

// packet returns the packet that is being filled. It ends a block that is full.
func (s *Stream) packet() (*data.Packet, error) {
	if s.closed {
		return nil, ErrClosed
	}
	if s.current != nil {
		return s.current, s.failed()
	}
	if s.full() {
		if err := s.endBlock(); err != nil {
			return nil, err
		}
	}
	at := s.off
	if len(s.tail) > 0 {
		at = s.tailAt
	}
	limit := s.file.BlockSize - at
	if chunk := int64(s.cfg.Packets.Checksum().BytesPerChunk); at%chunk != 0 {
		limit = min(limit, chunk-at%chunk) // such a packet has to end with its chunk
	}
	lender, err := s.reserve()
	if err != nil {
		return nil, err
	}
	k := s.cfg.Packets.Get(s.seqno, at, int(min(limit, int64(s.cfg.Packets.Limit(lender)))), lender)
	s.kept = copy(k.Room(), s.tail)
	k.Grow(s.kept)
	s.tail = s.tail[:0]
	s.current = k
	return k, nil
}

// failed is the error that has ended the stream.
func (s *Stream) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// reserve waits until the window has room for a packet, in bytes and as a DataNode counts
// packets. It may lie in memory of what reserve returns: the pipeline, if that has some.
func (s *Stream) reserve() (data.Lender, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil {
		from, _ := s.live.(data.Lender)
		packets := int64(s.queue.Len() + s.unacked.Len())
		if s.held+s.cfg.Packets.Most(from) <= s.cfg.Window && packets < native.WindowPackets(int64(s.cfg.Window)) {
			return from, nil
		}
		s.room.Wait()
	}
	return nil, s.err
}

// filled sends a packet that takes no more.
func (s *Stream) filled(k *data.Packet) error {
	if len(k.Room()) > 0 {
		return nil
	}
	return s.enqueue(false)
}

// enqueue hands the current packet over to be sent.
func (s *Stream) enqueue(sync bool) error {
	k := s.current
	s.current = nil
	k.Sync = sync
	sum := s.cfg.Packets.Checksum()
	k.Seal()
	// The rest of a chunk that is not full goes again, with what fills it.
	if chunk := int64(sum.BytesPerChunk); k.End()%chunk != 0 && k.DataLen > 0 {
		s.tailAt = max(k.Offset, k.End()-k.End()%chunk)
		s.tail = append(s.tail[:0], k.Data()[s.tailAt-k.Offset:]...)
	}
	s.seqno++
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.cfg.Packets.Put(k)
		return s.err
	}
	s.queue.Push(k)
	s.held += k.Cost()
	if s.queue.Len() == 1 {
		s.work.Signal()
	}
	return nil
}

// endBlock sends the packet that ends a block.
func (s *Stream) endBlock() error {
	if _, err := s.reserve(); err != nil {
		return err
	}
	s.current = s.cfg.Packets.Get(s.seqno, s.off, 0, nil)
	s.current.Last = true
	if err := s.enqueue(false); err != nil {
		return err
	}
	s.tail = s.tail[:0]
	s.off, s.synced = 0, -1
	return nil
}

// FlushOptions says what a flush is to do beside the acknowledgements of all DataNodes.
type FlushOptions struct {
	Sync         bool // wait until the bytes are on their disks
	UpdateLength bool // tell the NameNode the length of the last block
}

// Flush sends what is buffered and waits until all DataNodes of the pipeline have
// acknowledged everything. The end of ctx ends the wait alone.
func (s *Stream) Flush(ctx context.Context, o FlushOptions) error {
	s.user.Lock()
	defer s.leave()
	if s.closed {
		return ErrClosed
	}
	switch {
	case s.current != nil && int(s.current.DataLen) > s.kept:
		if err := s.enqueue(o.Sync); err != nil {
			return err
		}
	case o.Sync && s.off > 0 && s.synced != s.off:
		// All has been sent, but without the wish to have it on disks.
		s.drop()
		if _, err := s.reserve(); err != nil {
			return err
		}
		s.current = s.cfg.Packets.Get(s.seqno, s.off, 0, nil)
		if err := s.enqueue(true); err != nil {
			return err
		}
	}
	if o.Sync {
		s.synced = s.off
	}
	s.mu.Lock()
	s.flushed = true
	s.mu.Unlock()
	if err := s.wait(ctx, s.seqno-1); err != nil {
		return err
	}
	s.mu.Lock()
	persist := s.persist
	s.persist = false
	s.mu.Unlock()
	if !persist && !o.UpdateLength {
		return nil
	}
	req := &hdfspb.FsyncRequestProto{Src: &s.file.Path, Client: &s.cfg.Client, FileId: &s.file.ID}
	if o.UpdateLength {
		req.LastBlockLength = proto.Int64(s.off)
	}
	return s.cfg.Names.Call(ctx, "fsync", req, &hdfspb.FsyncResponseProto{})
}

// drop gives a current packet back that has nothing new; what it keeps stays.
func (s *Stream) drop() {
	if s.current == nil {
		return
	}
	s.tailAt = s.current.Offset
	s.tail = append(s.tail[:0], s.current.Data()...)
	s.cfg.Packets.Put(s.current)
	s.current = nil
}

// wait waits until the packet seqno, and all before it, are acknowledged.
func (s *Stream) wait(ctx context.Context, seqno int64) error {
	stop := context.AfterFunc(ctx, func() {
		s.mu.Lock()
		s.room.Broadcast()
		s.mu.Unlock()
	})
	defer stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && s.acked < seqno {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		s.room.Wait()
	}
	return s.err
}

// Close sends what is buffered, waits for all acknowledgements and has the NameNode
// close the file. After an error the file stays open at the NameNode until the lease
// expires. A second Close returns what the first did.
func (s *Stream) Close(ctx context.Context) error {
	s.user.Lock()
	defer s.leave()
	if s.closed {
		return s.result
	}
	s.closed = true
	s.result = s.close(ctx)
	return s.result
}

func (s *Stream) close(ctx context.Context) error {
	defer s.end()
	if s.current != nil && int(s.current.DataLen) > s.kept {
		if err := s.enqueue(false); err != nil {
			return err
		}
	}
	if s.off > 0 {
		s.drop()
		if err := s.endBlock(); err != nil {
			return err
		}
	}
	if err := s.wait(ctx, s.seqno-1); err != nil {
		return err
	}
	s.end()
	<-s.ended
	if err := s.failed(); err != ErrClosed {
		return err
	}
	return s.complete(ctx)
}

// end lets the goroutine that sends end when it has no more to do, or at once if packets
// are left.
func (s *Stream) end() {
	s.mu.Lock()
	s.finish = true
	left := s.queue.Len()+s.unacked.Len() > 0
	s.work.Signal()
	s.mu.Unlock()
	if left {
		s.cancel(ErrClosed)
		s.mu.Lock()
		s.work.Signal()
		s.mu.Unlock()
	}
	if s.current != nil {
		s.cfg.Packets.Put(s.current)
		s.current = nil
	}
}

// Abort ends the stream at once, and Done waits for that. Bytes that no Flush has
// returned for may be lost. The file stays open at the NameNode until the lease expires.
func (s *Stream) Abort(cause error) {
	s.cancel(cause)
	s.mu.Lock()
	s.work.Signal()
	s.mu.Unlock()
}

// Done is closed when the stream has ended.
func (s *Stream) Done() <-chan struct{} { return s.ended }

// complete has the NameNode close the file, which it does when the last blocks have
// enough replicas.
func (s *Stream) complete(ctx context.Context) error {
	req := &hdfspb.CompleteRequestProto{Src: &s.file.Path, ClientName: &s.cfg.Client, FileId: &s.file.ID, Last: s.pipe.last}
	pause := completePause
	for began := time.Now(); ; {
		var resp hdfspb.CompleteResponseProto
		if err := s.cfg.Names.Call(ctx, "complete", req, &resp); err != nil {
			return err
		}
		if resp.GetResult() {
			return nil
		}
		if time.Since(began) > s.patience() {
			return fmt.Errorf("complete %s: %w", s.file.Path, ErrTooFewReplicas)
		}
		if !sleep(ctx, pause) {
			return context.Cause(ctx)
		}
		pause = min(2*pause, 4*s.cfg.LocatePause)
	}
}

// completePause is the first pause before the NameNode is asked again to complete a file.
const completePause = 5 * time.Millisecond

// patience is how long the NameNode is asked again in all: for all pauses, and the first one
// once more.
func (s *Stream) patience() time.Duration {
	all, pause := s.cfg.LocatePause, s.cfg.LocatePause
	for range s.cfg.LocateRetries {
		all += pause
		pause = longer(pause)
	}
	return all
}

// longestPause is where pauses cease to double, as in HDFS.
const longestPause = time.Minute

func longer(pause time.Duration) time.Duration {
	return max(pause, min(2*pause, longestPause))
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
