package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/datanode"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

const (
	dataPort     = 9866
	nameNodeHost = "10.0.0.100"
	nameNodeAddr = nameNodeHost + ":9866"
	superuser    = "root"
)

// process is one life of a NameNode or DataNode.
type process struct {
	mount *mount
	alive atomic.Bool
	stop  func() error
	nn    *namenode.NameNode
	dn    *datanode.DataNode
}

// machine is what a process runs on.
type machine struct {
	host string
	disk *disk
	boot int
	old  *vfs.MemFS // an old copy of the disk
	dirs []string   // of a DataNode
	// native says that the DataNode has the native path.
	native bool
	// failed is the process that has had one of its directories fail, and runs without it.
	failed *process

	// turn is held by whoever starts or ends the process, or changes the disk meanwhile. It is
	// no sync.Mutex because time passes for who waits.
	turn chan struct{}

	mu      sync.Mutex
	process *process // nil: none runs
}

func (m *machine) running() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

func (m *machine) address() string { return net.JoinHostPort(m.host, fmt.Sprint(dataPort)) }

// system is the whole cluster.
type system struct {
	h         *history
	net       *network
	rng       *rand.Rand // of the faults alone
	cfg       settings
	secret    *cluster.Secret
	nameNode  *machine
	dataNodes []*machine
	model     *model
	leap      atomic.Int64 // nanoseconds by which the NameNode's clock is ahead
	ending    sync.WaitGroup
	end       atomic.Pointer[error] // of a DataNode that should have gone on
	now       *errgroup.Group       // of all that goes on in this round
	ambushes  ambushes
}

// settings are drawn from the seed.
type settings struct {
	dataNodes   int
	clients     int
	replication uint32
	blockSize   uint64
	rounds      int
	hardLimit   time.Duration
	softLimit   time.Duration
	deadAfter   time.Duration
	windows     int64 // bytes of native windows that a DataNode has memory for
	faults      faultKinds
}

func (s *system) logger(node string) *slog.Logger {
	return slog.New(s.h.handler(node))
}

// start starts the process of a machine, unless it runs.
func (s *system) start(m *machine) error {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	if m.running() != nil {
		return nil
	}
	p := &process{mount: m.disk.mount()}
	p.alive.Store(true)
	var err error
	if m == s.nameNode {
		err = s.startNameNode(m, p)
	} else {
		err = s.startDataNode(m, p)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", m.host, err)
	}
	return nil
}

func (s *system) run(m *machine, p *process) {
	m.mu.Lock()
	m.process = p
	m.mu.Unlock()
}

func (s *system) startNameNode(m *machine, p *process) error {
	nn, err := namenode.Open(context.Background(), namenode.Config{
		Dir: "/nn", FS: p.mount, Logger: s.logger("namenode"), Superuser: superuser, Secret: s.secret,
		Groups: func(string) []string { return nil }, BlockSize: s.cfg.blockSize, MinBlockSize: 512, Replication: s.cfg.replication,
		DeadAfter: s.cfg.deadAfter, LeaseSoftLimit: s.cfg.softLimit, LeaseHardLimit: s.cfg.hardLimit, SnapshotEntries: 200,
		Clock: func() time.Time { return time.Now().Add(time.Duration(s.leap.Load())) },
	})
	if err != nil {
		return err
	}
	srv := rpc.NewServer(rpc.Config{Logger: s.logger("namenode")})
	nn.RegisterRPC(srv)
	p.nn = nn
	p.stop = func() error { return errors.Join(srv.Close(), nn.Close()) }
	s.run(m, p)
	s.net.listen(nameNodeAddr, srv.ServeConn)
	return nil
}

func (s *system) startDataNode(m *machine, p *process) error {
	var srv *server
	var table *native.TableConfig
	if m.native {
		var err error
		if srv, err = s.newServer(m, p); err != nil {
			return err
		}
		table = &srv.table
	}
	var dirs []datanode.Directory
	for _, d := range m.dirs {
		dirs = append(dirs, datanode.Directory{Path: d})
	}
	dn, err := datanode.Open(context.Background(), datanode.Config{
		Dirs: dirs, FailedDirs: min(1, len(dirs)-1), Ended: func(err error) { s.ended(m, p, err) }, FS: p.mount, Logger: s.logger("datanode " + m.host), BootID: fmt.Sprint("boot ", m.boot), Secret: s.secret,
		Host: m.host, Port: dataPort, NameNode: &nameNodeLink{s, p, m.host},
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			if !p.alive.Load() {
				return nil, syscall.ENETUNREACH
			}
			return s.net.dial(ctx, m.host, addr)
		},
		Holder: func(addr string) cluster.DataNode { return &holderLink{s, p, m.host, addr} },
		Native: table, NativeMemory: s.cfg.windows, SyncAfter: time.Minute, ReportInterval: 10 * time.Minute, ScanRate: 1 << 30, ScanDelay: 2 * time.Minute, ScanInterval: 5 * time.Minute,
	})
	if err != nil {
		if srv != nil {
			err = errors.Join(err, srv.close())
		}
		return err
	}
	p.dn, p.stop = dn, func() error { return s.stopDataNode(dn) }
	s.run(m, p)
	if srv == nil {
		s.net.listen(m.address(), dn.ServeConn)
		return nil
	}
	p.stop = func() error { return errors.Join(s.stopDataNode(dn), srv.close()) }
	srv.serve(dn)
	s.net.listen(m.address(), srv.gate.take)
	return nil
}

// stopDataNode closes a DataNode, and counts the copies that it has sent.
func (s *system) stopDataNode(dn *datanode.DataNode) error {
	err := dn.Close()
	copies := dn.Copies()
	s.h.count("replicas copied by "+ownNative.String(), int(copies.Native.Blocks))
	s.h.count("replicas copied by "+ownLegacy.String(), int(copies.Legacy.Blocks))
	for why, n := range copies.Fallbacks {
		s.h.count("copies that took the other protocol: "+why, int(n))
	}
	return err
}

// ended takes note that a DataNode can't go on, which must not happen: no more directories of a
// machine fail than may.
func (s *system) ended(m *machine, p *process, err error) {
	if p.alive.Load() {
		err = fmt.Errorf("DATANODE ENDED: %s: %w", m.host, err)
		s.end.CompareAndSwap(nil, &err)
	}
}

// kill ends the process of a machine as SIGKILL does, and then changes what the machine is left
// with by f, which may be nil, before anybody starts it again.
func (s *system) kill(m *machine, rng *rand.Rand, f func() error) error {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	m.mu.Lock()
	p := m.process
	m.process = nil
	m.mu.Unlock()
	if p != nil {
		p.mount.kill(rng)
		p.alive.Store(false)
		s.net.kill(m.host)
		s.ending.Go(func() { _ = p.stop() }) // whatever it says, nobody hears it
	}
	if f == nil {
		return nil
	}
	return f()
}

// cutPower ends the process, and what the machine had not synced may be gone.
func (s *system) cutPower(m *machine, rng *rand.Rand) {
	_ = s.kill(m, rng, func() error {
		m.disk.cutPower(rng)
		m.boot++
		return nil
	})
	if m != s.nameNode {
		s.model.loses(m.host, false)
	}
}

// stop ends everything.
func (s *system) stop() {
	for _, m := range append([]*machine{s.nameNode}, s.dataNodes...) {
		_ = s.kill(m, s.rng, nil)
	}
	s.ending.Wait()
}

// errLost is the error of a call whose outcome the caller does not learn.
var errLost = errors.New("the connection ended")

// remote makes a call from one process to another as the pool of calls does: a call
// whose answer is lost is made again, once; the first one may be carried out late.
func remote[Req, Resp proto.Message](ctx context.Context, s *system, from *process, host, to string, target func() *process, req Req,
	f func(*process, context.Context, Req) (Resp, error)) (none Resp, err error) {
	for attempt := range 2 {
		if !from.alive.Load() {
			return none, errLost
		}
		if err := s.net.pass(ctx, host, to); err != nil {
			return none, err
		}
		p := target()
		if p == nil {
			err = syscall.ECONNREFUSED
			if !sleep(ctx, time.Duration(100+100*attempt)*time.Millisecond) {
				return none, context.Cause(ctx)
			}
			continue
		}
		copied := proto.Clone(req).(Req)
		if attempt == 0 && s.net.chance(500) {
			// The connection hangs: the call is carried out after its repetition, or not.
			late := time.Duration(s.net.chanceOf(int64(20 * time.Second)))
			s.ending.Go(func() {
				time.Sleep(late)
				if p.alive.Load() {
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
					defer cancel()
					_, _ = f(p, ctx, copied)
				}
			})
			err = errLost
			continue
		}
		resp, ferr := f(p, ctx, copied)
		if !p.alive.Load() || s.net.chance(500) {
			err = errLost
			continue
		}
		if err := s.net.pass(ctx, to, host); err != nil {
			return none, err
		}
		if ferr != nil {
			return none, ferr
		}
		return proto.Clone(resp).(Resp), nil
	}
	return none, err
}

// chance is true once in so many times.
func (n *network) chance(of int) bool { return n.chanceOf(int64(of)) == 0 }

func (n *network) chanceOf(of int64) int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.Int64N(of)
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// nameNodeLink is the NameNode as a DataNode reaches it.
type nameNodeLink struct {
	s    *system
	from *process
	host string
}

func toNameNode[Req, Resp proto.Message](ctx context.Context, l *nameNodeLink, req Req, f func(*namenode.NameNode, context.Context, Req) (Resp, error)) (Resp, error) {
	return remote(ctx, l.s, l.from, l.host, nameNodeHost, l.s.nameNode.running, req, func(p *process, ctx context.Context, req Req) (Resp, error) {
		return f(p.nn, ctx, req)
	})
}

func (l *nameNodeLink) Register(ctx context.Context, req *clusterpb.RegisterRequest) (*clusterpb.RegisterResponse, error) {
	return toNameNode(ctx, l, req, (*namenode.NameNode).Register)
}

func (l *nameNodeLink) Heartbeat(ctx context.Context, req *clusterpb.HeartbeatRequest) (*clusterpb.HeartbeatResponse, error) {
	return toNameNode(ctx, l, req, (*namenode.NameNode).Heartbeat)
}

func (l *nameNodeLink) BlockReport(ctx context.Context, req *clusterpb.BlockReportRequest) (*clusterpb.BlockReportResponse, error) {
	return toNameNode(ctx, l, req, (*namenode.NameNode).BlockReport)
}

func (l *nameNodeLink) BlocksChanged(ctx context.Context, req *clusterpb.BlocksChangedRequest) (*clusterpb.BlocksChangedResponse, error) {
	return toNameNode(ctx, l, req, (*namenode.NameNode).BlocksChanged)
}

func (l *nameNodeLink) CommitRecovery(ctx context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
	return toNameNode(ctx, l, req, func(nn *namenode.NameNode, ctx context.Context, req *clusterpb.CommitRecoveryRequest) (*clusterpb.CommitRecoveryResponse, error) {
		resp, err := nn.CommitRecovery(ctx, req)
		if err == nil {
			var hosts []string
			for _, d := range req.GetDatanodes() {
				hosts = append(hosts, d.GetHost())
			}
			l.s.model.recovered(req.GetBlock().GetId(), req.GetNewGeneration(), hosts)
		}
		return resp, err
	})
}

// holderLink is a DataNode as the leader of a recovery reaches it.
type holderLink struct {
	s    *system
	from *process
	host string
	addr string
}

func (l *holderLink) target() *process {
	for _, m := range l.s.dataNodes {
		if m.address() == l.addr {
			return m.running()
		}
	}
	return nil
}

func (l *holderLink) InitRecovery(ctx context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
	return remote(ctx, l.s, l.from, l.host, hostOf(l.addr), l.target, req, func(p *process, ctx context.Context, req *clusterpb.InitRecoveryRequest) (*clusterpb.InitRecoveryResponse, error) {
		return p.dn.Recoveries().InitRecovery(ctx, req)
	})
}

func (l *holderLink) UpdateRecovery(ctx context.Context, req *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
	return remote(ctx, l.s, l.from, l.host, hostOf(l.addr), l.target, req, func(p *process, ctx context.Context, req *clusterpb.UpdateRecoveryRequest) (*clusterpb.UpdateRecoveryResponse, error) {
		return p.dn.Recoveries().UpdateRecovery(ctx, req)
	})
}

func (l *holderLink) ExtendRecovery(ctx context.Context, req *clusterpb.ExtendRecoveryRequest) (*clusterpb.ExtendRecoveryResponse, error) {
	return remote(ctx, l.s, l.from, l.host, hostOf(l.addr), l.target, req, func(p *process, ctx context.Context, req *clusterpb.ExtendRecoveryRequest) (*clusterpb.ExtendRecoveryResponse, error) {
		return p.dn.Recoveries().ExtendRecovery(ctx, req)
	})
}
