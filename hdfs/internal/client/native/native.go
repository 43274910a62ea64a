// Package native is the path to DataNodes over messages of registered memory: hdfs-data/1,
// which package hdfs/internal/native and docs/hdfs-data.md describe. It takes the legacy
// path to DataNodes that do not have it, and for what it does not do: to have replicas
// copied and summed up, and to ask for a visible length.
package native

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

// Config configures a path.
type Config struct {
	Table  *native.Table     // connections for pipelines
	Calls  *verbena.CallPool // of [native.CallService]
	Legacy data.Path
	// Sockets is the data transfer protocol over plain TCP connections, for long reads from
	// DataNodes to which there is nothing better than TCP. Nil: those are made by calls, too.
	Sockets data.Path
	// UseHostname dials DataNodes by their names, not their addresses.
	UseHostname bool
	// SocketTimeout is for how long a DataNode may owe an answer. A pipeline has 5 s more
	// for each of its DataNodes. Default 60 s.
	SocketTimeout time.Duration
	// NoWindows reads by messages alone, not from memory that DataNodes expose.
	NoWindows bool
	Logger    *slog.Logger
}

// perNode is added to timeouts for each DataNode of a pipeline, as in HDFS.
const perNode = 5 * time.Second

// Path is the path.
type Path struct {
	data.Path // the legacy one, for what is not here
	cfg       Config

	mu    sync.Mutex
	known map[string]struct{} // DataNodes that have been in a native pipeline
	// addresses are what addressOf has returned.
	addresses map[place]string

	windows windows
	rings   rings
	sockets sockets
}

// New returns a path. Close it when nothing uses it any more.
func New(cfg Config) *Path {
	if cfg.SocketTimeout == 0 {
		cfg.SocketTimeout = time.Minute
	}
	p := &Path{Path: cfg.Legacy, cfg: cfg, known: map[string]struct{}{}, addresses: map[place]string{}}
	p.windows.init(p)
	p.rings.init()
	p.sockets.init()
	return p
}

// host is the one by which a DataNode is dialled.
func (p *Path) host(n *hdfspb.DatanodeInfoProto) string {
	if p.cfg.UseHostname && n.GetId().GetHostName() != "" {
		return n.GetId().GetHostName()
	}
	return n.GetId().GetIpAddr()
}

// address is where a DataNode takes transfers.
func (p *Path) address(n *hdfspb.DatanodeInfoProto) string {
	return net.JoinHostPort(p.host(n), strconv.FormatUint(uint64(n.GetId().GetXferPort()), 10))
}

// native tells whether all of some DataNodes may have the native path, and whether they
// are known to.
func (p *Path) native(nodes []*hdfspb.DatanodeInfoProto) (may, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known = true
	for _, n := range nodes {
		if _, native := p.cfg.Table.Peek(data.Name(n)); !native {
			return false, false
		}
		if _, ok := p.known[data.Name(n)]; !ok {
			known = false
		}
	}
	return true, known
}

// learn notes the DataNodes of a pipeline that has begun. A next block may go to any of them first, so
// they are connected to now.
func (p *Path) learn(nodes []*hdfspb.DatanodeInfoProto) {
	for _, n := range nodes[1:] {
		p.cfg.Table.Prepare(p.address(n))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range nodes {
		p.known[data.Name(n)] = struct{}{}
	}
}

// forget has the next block on some DataNodes wait for their answer.
func (p *Path) forget(nodes []*hdfspb.DatanodeInfoProto) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range nodes {
		delete(p.known, data.Name(n))
	}
}

// deny notes that a DataNode does not have the native path.
func (p *Path) deny(name string, why error) {
	p.cfg.Table.Deny(name, why)
	p.cfg.Logger.Info("hdfs: blocks go to a DataNode by the data transfer protocol", "datanode", name, "reason", why)
	p.mu.Lock()
	delete(p.known, name)
	p.mu.Unlock()
}

// Explain tells how blocks go to a DataNode now, host:port as the NameNode knows it.
func (p *Path) Explain(name string) string {
	c, may := p.cfg.Table.Peek(name)
	switch {
	case !may:
		return "legacy: the DataNode does not take " + native.Service
	case c == nil:
		return native.Service + ", not connected"
	}
	return native.Service + " over " + c.Endpoint().Selection().Transport
}

const (
	firstPause = 10 * time.Millisecond
	// busyFor is for how long a DataNode is asked again that has no memory for a window.
	busyFor = 2 * time.Second
)

// Write is [data.Path].Write. A block whose DataNodes are all known to take native
// pipelines is begun without waiting for their answer: Ack tells of a refusal.
func (p *Path) Write(ctx context.Context, req *data.WriteRequest) (data.Pipeline, error) {
	may, known := p.native(req.Nodes)
	if !may {
		return p.Path.Write(ctx, req)
	}
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, time.Second) {
		l, err := p.begin(ctx, req)
		if err != nil {
			var not *native.NotNativeError
			switch {
			case errors.As(err, &not):
				p.deny(data.Name(req.Nodes[0]), not)
				return p.Path.Write(ctx, req)
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			}
			return nil, &data.PipelineError{Err: err}
		}
		if known && req.Stage == hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE {
			return l, nil
		}
		if err = l.accepted(); err == nil {
			p.learn(req.Nodes)
			return l, nil
		}
		l.Close()
		var broken *data.PipelineError
		if !errors.As(err, &broken) {
			return nil, err
		}
		broken.SetUp = false // nothing was sent
		if !broken.Blameless || data.Full(broken) {
			return nil, broken
		}
		if may, _ := p.native(req.Nodes); !may || time.Since(began) > busyFor {
			return p.Path.Write(ctx, req)
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// begin sends a set-up.
func (p *Path) begin(ctx context.Context, req *data.WriteRequest) (*pipeline, error) {
	message, err := native.AppendSetUp(nil, min(req.Window, native.MaxWindow), req.Op())
	if err != nil {
		return nil, err
	}
	l := &pipeline{p: p, req: req, stream: ctx, acked: -1, heard: time.Now()}
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	l.changed.L = &l.mu
	l.wait = p.cfg.SocketTimeout + perNode*time.Duration(len(req.Nodes))
	err = p.cfg.Table.Join(ctx, p.address(req.Nodes[0]), l, func(c *native.Conn, id uint32) error {
		l.conn, l.id = c, id
		return nil
	})
	if err != nil {
		l.cancel(nil)
		return nil, err
	}
	l.stop = context.AfterFunc(ctx, func() { l.fail(context.Cause(ctx)) })
	l.mu.Lock()
	l.timer = time.AfterFunc(l.wait, l.silent)
	l.mu.Unlock()
	if err := l.conn.Endpoint().Send(l.ctx, l.id, message); err != nil {
		err = cmp.Or(l.failed(), err)
		l.Close()
		return nil, err
	}
	return l, nil
}
