package local

import (
	"container/list"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Path wraps a path. Close it when nothing uses it any more.
type Path struct {
	data.Path
	filler data.Filler // the path that it wraps, or nil
	cfg    Config

	mu       sync.Mutex
	closed   bool
	nodes    map[string]*node // by UUID
	replicas map[key]*replica
	idle     list.List // of *replica that nobody uses, the oldest first
	sweeper  *time.Timer
	work     sync.WaitGroup // watchers of segments, and who releases slots
	stats    Stats
}

// key names what descriptors are of.
type key struct {
	node, pool     string
	id, generation uint64
}

// Stats tell what a path has done.
type Stats struct {
	Local  uint64 // reads by descriptor, of a range each
	Passed uint64 // reads that were left to the other path
	Opened uint64 // replicas that were handed over
}

// New returns a path that leaves to next what it can't do.
func New(cfg Config, next data.Path) *Path {
	cfg.complete()
	filler, _ := next.(data.Filler)
	return &Path{Path: next, filler: filler, cfg: cfg, nodes: map[string]*node{}, replicas: map[key]*replica{}}
}

// Stats returns what the path has done so far.
func (p *Path) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Close closes all descriptors that are not being read from, and waits for what runs. Reads
// that are under way go on.
func (p *Path) Close() {
	p.mu.Lock()
	p.closed = true
	if p.sweeper != nil {
		p.sweeper.Stop()
	}
	for e := p.idle.Front(); e != nil; e = p.idle.Front() {
		p.drop(e.Value.(*replica))
	}
	nodes := make([]*node, 0, len(p.nodes))
	for _, n := range p.nodes {
		nodes = append(nodes, n)
	}
	p.mu.Unlock()
	for _, n := range nodes {
		n.close()
	}
	p.work.Wait()
}

// acquire returns the replica of a request, to be given back with release; nil if there is
// none to be had. An error is one that the other path would meet, too.
func (p *Path) acquire(ctx context.Context, req *data.ReadRequest) (*replica, error) {
	k := key{req.Node.GetId().GetDatanodeUuid(), req.Block.GetPoolId(), req.Block.GetBlockId(), req.Block.GetGenerationStamp()}
	p.mu.Lock()
	if req.Growing { // Apache's DataNodes would hand it over; HDFS's client does not ask for it
		p.stats.Passed++
		p.mu.Unlock()
		return nil, nil
	}
	r := p.replicas[k]
	if r != nil && r.state == opened && !r.valid() || r != nil && r.state == refused && time.Now().After(r.until) {
		p.drop(r)
		r = nil
	}
	if r == nil {
		return p.open(ctx, k, req) // unlocks
	}
	switch r.state {
	case refused:
		p.stats.Passed++
		p.mu.Unlock()
		return nil, nil
	case opening:
		p.mu.Unlock()
		select {
		case <-r.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		p.mu.Lock()
		if r.state != opened || r.dropped {
			p.stats.Passed++
			p.mu.Unlock()
			return nil, nil
		}
	}
	p.use(r)
	p.stats.Local++
	p.mu.Unlock()
	return r, nil
}

// open asks for a replica. It is called with the lock and returns without.
func (p *Path) open(ctx context.Context, k key, req *data.ReadRequest) (*replica, error) {
	n := p.node(k.node, req.Node)
	if p.closed || n == nil {
		p.stats.Passed++
		p.mu.Unlock()
		return nil, nil
	}
	r := &replica{key: k, node: n, state: opening, ready: make(chan struct{}), data: -1, meta: -1}
	p.replicas[k] = r
	p.mu.Unlock()
	err := n.enter(ctx)
	if err == nil {
		defer n.leave() // when what comes of it is known to those who wait
		err = n.open(ctx, r, req)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(r.ready)
	var status *data.StatusError
	switch {
	case err == nil && !p.closed:
		r.state = opened
		p.use(r)
		p.stats.Opened++
		p.stats.Local++
		p.bound()
		return r, nil
	case err == nil, errors.Is(err, errLeft):
		p.drop(r)
	case errors.Is(err, data.ErrToken):
		p.drop(r)
		return nil, err
	case errors.As(err, &status):
		// The DataNode does not hand over this one now: it is being written, for example.
		p.cfg.Logger.Debug("hdfs: a block on this host is read over a connection", "block", k.id, "datanode", data.Name(req.Node), "err", err)
		r.state, r.until = refused, time.Now().Add(p.cfg.RefusalTime)
		r.place = p.idle.PushBack(r)
		p.bound()
	default:
		p.drop(r)
		if ctx.Err() == nil {
			pause := p.cfg.RetryTime
			if away(err) {
				pause = p.cfg.RefusalTime // it may be back soon
			}
			p.cfg.Logger.Info("hdfs: blocks on this host are read over connections for a while", "datanode", data.Name(req.Node), "for", pause, "err", err)
			n.until = time.Now().Add(pause)
		}
	}
	p.stats.Passed++
	return nil, nil
}

// away tells whether an error says that nobody is there, or not any more.
func away(err error) bool {
	for _, e := range []error{syscall.ECONNREFUSED, syscall.ENOENT, syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// node returns the DataNode if it is on this host and may be asked. p.mu is held.
func (p *Path) node(uuid string, info *hdfspb.DatanodeInfoProto) *node {
	if uuid == "" {
		return nil
	}
	n := p.nodes[uuid]
	now := time.Now()
	if n != nil && now.Before(n.until) {
		return nil
	}
	if n == nil {
		n = &node{path: p, turn: make(chan struct{}, 1)}
		p.nodes[uuid] = n
	}
	if !onThisHost(info.GetId().GetIpAddr()) {
		n.until = now.Add(p.cfg.RetryTime)
		return nil
	}
	return n
}

// leaves tells whether a DataNode is left alone now.
func (p *Path) leaves(n *node) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(n.until)
}

// use counts a reader of r. p.mu is held.
func (p *Path) use(r *replica) {
	if r.users == 0 && r.place != nil {
		p.idle.Remove(r.place)
		r.place = nil
	}
	r.users++
}

// release gives a replica back.
func (p *Path) release(r *replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.users--; r.users > 0 {
		return
	}
	if r.dropped || p.closed {
		p.drop(r)
		return
	}
	r.since = time.Now()
	r.place = p.idle.PushBack(r)
	p.bound()
	if p.sweeper == nil {
		p.sweeper = time.AfterFunc(p.cfg.Expiry/4, p.sweep)
	}
}

// bound drops the replicas that have been idle for longest while there are too many. p.mu
// is held.
func (p *Path) bound() {
	for len(p.replicas) > p.cfg.Replicas && p.idle.Len() > 0 {
		p.drop(p.idle.Front().Value.(*replica))
	}
}

// drop forgets a replica, and closes it when nobody uses it. p.mu is held.
func (p *Path) drop(r *replica) {
	if p.replicas[r.key] == r {
		delete(p.replicas, r.key)
	}
	r.dropped = true
	if r.place != nil {
		p.idle.Remove(r.place)
		r.place = nil
	}
	if r.users == 0 {
		r.close()
	}
}

// discard is drop for who has found out that r is of no more use.
func (p *Path) discard(r *replica) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(r)
}

// sweep closes what has been idle for too long or was taken back: descriptors of deleted
// blocks keep their disk full.
func (p *Path) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	now := time.Now()
	for e := p.idle.Front(); e != nil; {
		r := e.Value.(*replica)
		e = e.Next()
		if r.state == refused && now.After(r.until) || r.state == opened && (now.Sub(r.since) >= p.cfg.Expiry || !r.valid()) {
			p.drop(r)
		}
	}
	if len(p.replicas) == 0 {
		p.sweeper = nil
		return
	}
	p.sweeper.Reset(p.cfg.Expiry / 4)
}

// Fill is [data.Filler].
func (p *Path) Fill(ctx context.Context, req *data.ReadRequest, b []byte) (bool, error) {
	r, err := p.acquire(ctx, req)
	if err != nil {
		return false, err
	}
	if r == nil {
		if p.filler == nil {
			return false, nil
		}
		return p.filler.Fill(ctx, req, b)
	}
	defer p.release(r)
	return p.fillFrom(ctx, r, req, b)
}

// fillFrom is Fill from a replica, which may be taken back at any time: the flag is looked at
// before each piece. The end of ctx is seen after a piece: nothing ends a pread.
func (p *Path) fillFrom(ctx context.Context, r *replica, req *data.ReadRequest, b []byte) (bool, error) {
	verify := !req.Unverified && !p.cfg.SkipChecksum
	for at := 0; at < len(b); {
		n := min(len(b)-at, piece)
		if !r.valid() {
			p.discard(r)
			return false, nil
		}
		if err := r.readAt(b[at:at+n], req.Offset+int64(at), verify); err != nil {
			return p.failed(r, err)
		}
		if at += n; at < len(b) && ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
	}
	return true, nil
}

// failed decides what becomes of a read by descriptor that has failed: bytes that do not
// match are the replica's fault, unless it has been taken back meanwhile, or has grown. Anything else
// the other path may do better, or has better words for.
func (p *Path) failed(r *replica, err error) (bool, error) {
	valid := r.valid()
	p.discard(r)
	if valid && errors.Is(err, transfer.ErrChecksum) {
		return false, err
	}
	p.cfg.Logger.Debug("hdfs: a read goes on over a connection", "block", r.key.id, "err", err)
	return false, nil
}

var _ interface {
	data.Path
	data.Filler
} = (*Path)(nil)
