package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/shortcircuit"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// node is a DataNode of this host.
type node struct {
	path  *Path
	until time.Time // it is left alone until then; path.mu guards it

	// turn is taken for a request: whoever waits for it can be ended, and looks at until again.
	turn chan struct{}

	mu       sync.Mutex // is held during a request, and guards what follows
	closed   bool
	socket   string
	user     int // who must be behind the socket, or -1
	conn     *net.UnixConn
	segments []*segment

	freeMu  sync.Mutex
	freed   []slot // to be released
	freeing bool   // somebody does
}

// segment is the slots that one connection stands for.
type segment struct {
	id     shortcircuit.ID
	memory *shortcircuit.Memory
	conn   *net.UnixConn
	gone   atomic.Bool // the DataNode has ended it, or this side
	taken  []bool      // node.mu guards these three
	used   int
	ended  bool // the memory has been given back
}

// slot is one of a segment's.
type slot struct {
	segment *segment
	index   int
}

// valid tells whether what was handed over for the slot may be read.
func (s slot) valid() bool { return !s.segment.gone.Load() && s.segment.memory.Valid(s.index) }

func (s slot) id() shortcircuit.SlotID {
	return shortcircuit.SlotID{Segment: s.segment.id, Index: s.index}
}

// enter waits until no other request is under way. Unless it fails, leave ends the turn.
func (n *node) enter(ctx context.Context) error {
	select {
	case n.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if n.path.leaves(n) {
		n.leave()
		return errLeft
	}
	return nil
}

func (n *node) leave() { <-n.turn }

// open gets the descriptors of a replica. It is the caller's turn.
func (n *node) open(ctx context.Context, r *replica, req *data.ReadRequest) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return net.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, n.path.cfg.Timeout)
	defer cancel()
	if err := n.find(ctx, req.Node); err != nil {
		return err
	}
	s, err := n.slot(ctx)
	if err != nil {
		return err
	}
	if err := n.request(ctx, r, s, req); err != nil {
		if !errors.Is(err, errRefused) {
			s.segment.conn.Close() // the DataNode may count the slot as in use
		}
		n.give(s)
		return err
	}
	r.slot = s
	return nil
}

// errRefused says that the DataNode has answered, and that the slot is as free as before.
var errRefused = errors.New("refused")

// errLeft says that a request before has failed meanwhile, and that the DataNode is left alone.
var errLeft = errors.New("the DataNode is left alone")

// find finds out where the DataNode's socket is.
func (n *node) find(ctx context.Context, info *hdfspb.DatanodeInfoProto) error {
	if n.socket != "" {
		return nil
	}
	if path := n.path.cfg.Socket; path != "" {
		n.socket, n.user = strings.ReplaceAll(path, "_PORT", strconv.Itoa(int(info.GetId().GetXferPort()))), -1
		return nil
	}
	socket, user, err := n.path.cfg.Ask(ctx, info)
	if err != nil {
		return fmt.Errorf("ask for its socket: %w", err)
	}
	if socket == "" {
		return errors.New("it has no socket for processes of this host")
	}
	n.socket, n.user = socket, user
	return nil
}

// dial makes a connection.
func (n *node) dial(ctx context.Context) (*net.UnixConn, error) {
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", n.socket)
	if err != nil {
		n.socket = "" // one that starts anew has another
		return nil, err
	}
	c := nc.(*net.UnixConn)
	if err := n.checkUser(c); err != nil {
		n.socket = ""
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// checkUser tells whether the DataNode's user is behind a connection.
func (n *node) checkUser(c *net.UnixConn) error {
	if n.user < 0 {
		return nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return cerr
	}
	if err != nil {
		return fmt.Errorf("socket %s: %w", n.socket, err)
	}
	if int(cred.Uid) != n.user {
		return fmt.Errorf("socket %s is user %d's, the DataNode's user is %d: somebody has taken its name", n.socket, cred.Uid, n.user)
	}
	return nil
}

// exchange sends a request and reads the answer, on the connection that is kept or, if the
// DataNode has closed that, on another. The connection is kept again.
func (n *node) exchange(ctx context.Context, op transfer.Op, msg, response proto.Message, ok func() bool, want int) (a shortcircuit.Answer, err error) {
	for {
		c, again := n.conn, n.conn != nil
		n.conn = nil
		if c == nil {
			if c, err = n.dial(ctx); err != nil {
				return a, err
			}
		}
		if a, err = call(ctx, c, op, msg, response, ok, want); err == nil {
			n.conn = c
			return a, nil
		}
		err = errors.Join(err, c.Close())
		if !again || errors.Is(err, transfer.ErrMalformed) || ctx.Err() != nil {
			return a, fmt.Errorf("%v at %s: %w", op, n.socket, err)
		}
	}
}

func call(ctx context.Context, c *net.UnixConn, op transfer.Op, msg, response proto.Message, ok func() bool, want int) (shortcircuit.Answer, error) {
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := transfer.WriteRequest(c, op, msg); err != nil {
		return shortcircuit.Answer{}, err
	}
	return shortcircuit.Receive(c, response, ok, want)
}

// slot takes a free slot, of a new segment if need be.
func (n *node) slot(ctx context.Context) (slot, error) {
	for _, g := range n.segments {
		if g.gone.Load() || g.used == len(g.taken) {
			continue
		}
		for i, taken := range g.taken {
			if !taken {
				return g.take(i)
			}
		}
	}
	g, err := n.share(ctx)
	if err != nil {
		return slot{}, err
	}
	return g.take(0)
}

func (g *segment) take(i int) (slot, error) {
	if err := g.memory.Claim(i); err != nil {
		return slot{}, err
	}
	g.taken[i] = true
	g.used++
	return slot{g, i}, nil
}

// share asks for a segment, on a connection of its own.
func (n *node) share(ctx context.Context) (*segment, error) {
	c, err := n.dial(ctx)
	if err != nil {
		return nil, err
	}
	resp := &hdfspb.ShortCircuitShmResponseProto{}
	a, err := call(ctx, c, transfer.OpRequestShortCircuitShm, &hdfspb.ShortCircuitShmRequestProto{ClientName: &n.path.cfg.Client}, resp,
		func() bool { return resp.GetStatus() == hdfspb.Status_SUCCESS }, 1)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%v at %s: %w", transfer.OpRequestShortCircuitShm, n.socket, err), c.Close())
	}
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		return nil, errors.Join(fmt.Errorf("%v at %s: %v: %s", transfer.OpRequestShortCircuitShm, n.socket, resp.GetStatus(), resp.GetError()), c.Close())
	}
	memory, err := shortcircuit.Adopt(a.FDs[0])
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	g := &segment{id: shortcircuit.IDOf(resp.GetId()), memory: memory, conn: c, taken: make([]bool, memory.Slots())}
	n.segments = append(n.segments, g)
	n.path.work.Go(func() { n.watch(g) })
	return g, nil
}

// watch notices the end of a segment.
func (n *node) watch(g *segment) {
	if err := g.conn.SetDeadline(time.Time{}); err == nil {
		var b [1]byte
		_, _ = g.conn.Read(b[:]) // it comes back when the DataNode ends, or this side closes
	}
	g.gone.Store(true)
	g.conn.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, other := range n.segments {
		if other == g {
			n.segments = append(n.segments[:i], n.segments[i+1:]...)
			break
		}
	}
	g.end()
}

// end gives the memory back when the segment has ended and no slot is in use any more.
// node.mu is held.
func (g *segment) end() {
	if g.gone.Load() && g.used == 0 && !g.ended {
		g.ended = true
		_ = g.memory.Close()
	}
}

// request gets a replica's descriptors for a slot.
func (n *node) request(ctx context.Context, r *replica, s slot, req *data.ReadRequest) error {
	resp := &hdfspb.BlockOpResponseProto{}
	a, err := n.exchange(ctx, transfer.OpRequestShortCircuitFDs, &hdfspb.OpRequestShortCircuitAccessProto{
		Header:     &hdfspb.BaseHeaderProto{Block: req.Block, Token: req.Token},
		MaxVersion: proto.Uint32(shortcircuit.VersionOwn), SlotId: s.id().Proto(), SupportsReceiptVerification: proto.Bool(true),
	}, resp, func() bool { return resp.GetStatus() == hdfspb.Status_SUCCESS }, 2)
	if err != nil {
		return err
	}
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		var err error = &data.StatusError{Status: resp.GetStatus(), Message: resp.GetMessage()}
		if resp.GetStatus() != hdfspb.Status_ERROR_ACCESS_TOKEN && resp.ShortCircuitAccessVersion == nil {
			err = errors.New(err.Error()) // not of this block alone
		}
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	if a.With == shortcircuit.Receipt {
		if _, err := n.conn.Write([]byte{0}); err != nil {
			n.conn.Close()
			n.conn = nil
			return errors.Join(err, a.Close())
		}
	}
	r.data, r.meta = a.FDs[0], a.FDs[1]
	if err := r.describe(resp); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", n.socket, err), a.Close())
	}
	return nil
}

// give gives a slot back that the DataNode does not know. n.mu is held.
func (n *node) give(s slot) {
	s.segment.taken[s.index] = false
	s.segment.used--
	s.segment.end()
}

// free has a slot released, in its own time. path.mu is held.
func (n *node) free(s slot) {
	if n.path.closed {
		n.mu.Lock() // whose holder is about to let go: its connections are closed
		defer n.mu.Unlock()
		n.give(s)
		return
	}
	n.freeMu.Lock()
	defer n.freeMu.Unlock()
	n.freed = append(n.freed, s)
	if !n.freeing {
		n.freeing = true
		n.path.work.Go(n.releaseFreed)
	}
}

// releaseFreed tells the DataNode which slots it need not watch any more.
func (n *node) releaseFreed() {
	for {
		n.freeMu.Lock()
		freed := n.freed
		n.freed = nil
		n.freeing = len(freed) > 0
		n.freeMu.Unlock()
		if len(freed) == 0 {
			return
		}
		for _, s := range freed {
			n.releaseSlot(s)
		}
	}
}

// releaseSlot releases one. If that fails, its segment ends, and all others of it with it.
func (n *node) releaseSlot(s slot) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed && !s.segment.gone.Load() {
		ctx, cancel := context.WithTimeout(context.Background(), n.path.cfg.Timeout)
		defer cancel()
		resp := &hdfspb.ReleaseShortCircuitAccessResponseProto{}
		_, err := n.exchange(ctx, transfer.OpReleaseShortCircuitFDs, &hdfspb.ReleaseShortCircuitAccessRequestProto{SlotId: s.id().Proto()}, resp, func() bool { return false }, 0)
		if err != nil || resp.GetStatus() != hdfspb.Status_SUCCESS || s.segment.used == 1 {
			s.segment.conn.Close() // its watcher ends it
		}
	}
	n.give(s)
}

// close ends all segments, and with them what the DataNode has handed over.
func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.conn != nil {
		n.conn.Close()
		n.conn = nil
	}
	for _, g := range n.segments {
		g.conn.Close()
	}
}
