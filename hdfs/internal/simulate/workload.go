package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// user is a client with files of its own, on which it does one thing after the other.
type user struct {
	s     *system
	index int
	lives int
	rng   *rand.Rand
	c     *client
	files []*modelFile
	outs  map[*modelFile]*output
	made  int

	mu   sync.Mutex
	name string // of the leases that are renewed
}

func newUser(s *system, seed uint64, index int) *user {
	u := &user{s: s, index: index, rng: rand.New(rand.NewPCG(seed, 100+uint64(index))), outs: map[*modelFile]*output{}}
	u.begin()
	return u
}

// begin is the start of the client's process.
func (u *user) begin() {
	u.lives++
	name := fmt.Sprintf("client-%d.%d", u.index, u.lives)
	u.c = newClient(u.s, fmt.Sprintf("10.0.1.%d", u.index+1), name)
	u.mu.Lock()
	u.name = name
	u.mu.Unlock()
}

// die ends the client's process in the middle of everything.
func (u *user) die() {
	u.s.h.add("%s dies", u.c.name)
	u.s.net.kill(u.c.host)
	for f, o := range u.outs {
		o.release()
		u.change(func() { f.open, f.failed = false, true })
		delete(u.outs, f)
	}
	u.c.close()
}

func (u *user) change(f func()) {
	u.s.model.mu.Lock()
	defer u.s.model.mu.Unlock()
	f()
}

// renew keeps the leases, as every client does.
func (u *user) renew(ctx context.Context) {
	for sleep(ctx, u.s.cfg.softLimit/3) {
		u.mu.Lock()
		name := u.name
		u.mu.Unlock()
		c := newClient(u.s, fmt.Sprintf("10.0.1.%d", u.index+1), name)
		_ = c.call(ctx, "renewLease", &hdfspb.RenewLeaseRequestProto{ClientName: &name}, &hdfspb.RenewLeaseResponseProto{}, rpc.Idempotent)
		c.close()
	}
}

// work does things until ctx ends.
func (u *user) work(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := u.step(ctx); err != nil {
			return err
		}
		if u.rng.IntN(3) > 0 {
			sleep(ctx, time.Duration(u.rng.Int64N(int64(3*time.Second))))
		}
	}
	return nil
}

// pick returns a file for which want holds, nil if there is none.
func (u *user) pick(want func(f *modelFile) bool) *modelFile {
	var some []*modelFile
	u.change(func() {
		for _, f := range u.files {
			if !f.gone && want(f) {
				some = append(some, f)
			}
		}
	})
	if len(some) == 0 {
		return nil
	}
	return some[u.rng.IntN(len(some))]
}

// step does one thing. The error is one of the checks'.
func (u *user) step(ctx context.Context) error {
	closed := func(f *modelFile) bool { return f.closed && !f.open && !f.failed && !f.maybe && len(f.paths) == 1 }
	switch k := u.rng.IntN(100); {
	case k < 15 || len(u.outs) == 0 && k < 45:
		u.create(ctx)
	case k < 60:
		if f := u.pick(func(f *modelFile) bool { return f.open }); f != nil {
			u.write(ctx, f)
		}
	case k < 72:
		if f := u.pick(func(f *modelFile) bool { return f.open }); f != nil {
			u.close(ctx, f)
		}
	case k < 80:
		if f := u.pick(closed); f != nil {
			u.append(ctx, f)
		}
	case k < 83:
		if f := u.pick(closed); f != nil {
			u.truncate(ctx, f)
		}
	case k < 86:
		if f := u.pick(closed); f != nil {
			u.rename(ctx, f)
		}
	case k < 88:
		if f := u.pick(closed); f != nil {
			u.delete(ctx, f)
		}
	case k < 96:
		if f := u.pick(func(f *modelFile) bool { return !f.maybe && len(f.paths) == 1 }); f != nil {
			return u.read(ctx, f)
		}
	case k < 98:
		u.die()
		u.begin()
	default:
		if f := u.pick(func(f *modelFile) bool { return f.failed && !f.maybe && len(f.paths) == 1 }); f != nil {
			_ = u.c.call(ctx, "recoverLease", &hdfspb.RecoverLeaseRequestProto{Src: &f.paths[0], ClientName: &u.c.name}, &hdfspb.RecoverLeaseResponseProto{}, rpc.Idempotent)
		}
	}
	return nil
}

// refused tells that the NameNode has answered with an exception: nothing has changed.
func refused(err error) bool {
	var e *exception.Error
	return errors.As(err, &e)
}

func (u *user) create(ctx context.Context) {
	u.made++
	path := fmt.Sprintf("/c%d-%d", u.index, u.made)
	f := &modelFile{paths: []string{path}, open: true}
	replication := u.s.cfg.replication
	err := u.c.call(ctx, "create", &hdfspb.CreateRequestProto{
		Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o644)}, ClientName: &u.c.name, CreateFlag: proto.Uint32(1),
		CreateParent: proto.Bool(true), Replication: &replication, BlockSize: &u.s.cfg.blockSize,
	}, &hdfspb.CreateResponseProto{}, rpc.AtMostOnce)
	if err != nil {
		f.open, f.failed, f.maybe = false, true, true
		u.s.h.add("%s: create %s: %v", u.c.name, path, err)
	} else {
		u.s.h.count("files created", 1)
		u.s.h.add("%s: created %s", u.c.name, path)
		u.outs[f] = u.newOutput(f, path)
	}
	u.files = append(u.files, f)
	u.change(func() { u.s.model.files = append(u.s.model.files, f) })
}

// fails ends an output whose pipeline or lease is lost.
func (u *user) fails(f *modelFile, what string, err error) {
	u.s.h.add("%s: %s %s: %v", u.c.name, what, f, err)
	if o := u.outs[f]; o != nil {
		o.release()
		delete(u.outs, f)
	}
	u.change(func() { f.open, f.failed = false, true })
	if u.rng.IntN(2) == 0 {
		// Or its leases would be renewed for ever.
		u.die()
		u.begin()
	}
}

func (u *user) write(ctx context.Context, f *modelFile) {
	o := u.outs[f]
	more := make([]byte, 1+u.rng.IntN(1<<u.rng.IntN(15)))
	for i := range more {
		more[i] = byte(u.rng.Uint32())
	}
	u.change(func() { f.data = append(f.data, more...) })
	if err := o.write(ctx, u.rng.IntN(4) == 0); err != nil {
		u.fails(f, "write", err)
		return
	}
	u.ambush(ctx, o)
}

func (u *user) close(ctx context.Context, f *modelFile) {
	o := u.outs[f]
	if o.start+o.acked < len(f.data) {
		panic("simulate: a file is closed before it is written")
	}
	if err := o.close(ctx); err != nil {
		u.fails(f, "close", err)
		return
	}
	delete(u.outs, f)
	u.s.h.add("%s: closed %s with %d bytes", u.c.name, f, len(f.data))
	u.change(func() { f.open, f.closed = false, true })
	u.ambush(ctx, o)
}

func (u *user) append(ctx context.Context, f *modelFile) {
	resp := &hdfspb.AppendResponseProto{}
	path := f.paths[0]
	u.change(func() { f.closed = false })
	if err := u.c.call(ctx, "append", &hdfspb.AppendRequestProto{Src: &path, ClientName: &u.c.name}, resp, rpc.AtMostOnce); err != nil {
		if refused(err) {
			u.change(func() { f.closed = true })
			return
		}
		u.fails(f, "append", err)
		return
	}
	o := u.newOutput(f, path)
	u.outs[f] = o
	u.change(func() { f.open = true })
	u.s.h.add("%s: appends to %s at %d", u.c.name, f, len(f.data))
	lb := resp.GetBlock()
	if lb == nil || lb.GetB().GetBlockId() == 0 {
		o.start = len(f.data)
		return
	}
	o.block, o.token, o.nodes = lb.GetB(), lb.GetBlockToken(), lb.GetLocs()
	o.acked = int(lb.GetB().GetNumBytes())
	o.sent, o.start = o.acked, len(f.data)-o.acked
	err := u.continueBlock(ctx, o)
	if err != nil {
		u.fails(f, "append", err)
		return
	}
	o.acknowledged(o.acked, false)
}

// continueBlock sets up the pipeline of an append, under a new generation stamp.
func (u *user) continueBlock(ctx context.Context, o *output) error {
	if len(o.nodes) == 0 {
		return errors.New("append: no DataNodes")
	}
	resp := &hdfspb.UpdateBlockForPipelineResponseProto{}
	if err := u.c.call(ctx, "updateBlockForPipeline", &hdfspb.UpdateBlockForPipelineRequestProto{Block: o.block, ClientName: &u.c.name}, resp, rpc.Idempotent); err != nil {
		return err
	}
	generation := resp.GetBlock().GetB().GetGenerationStamp()
	if err := o.setUp(ctx, appending, generation, resp.GetBlock().GetBlockToken()); err != nil {
		return o.recover(ctx, appendRecovery, err)
	}
	if err := o.update(ctx, generation); err != nil {
		return err
	}
	o.token = resp.GetBlock().GetBlockToken()
	return nil
}

func (u *user) truncate(ctx context.Context, f *modelFile) {
	if len(f.data) == 0 {
		return
	}
	to := u.rng.IntN(len(f.data))
	u.s.h.add("%s: truncates %s from %d to %d", u.c.name, f, len(f.data), to)
	resp := &hdfspb.TruncateResponseProto{}
	before := *f
	// Until it is known to have happened it may have or not.
	u.change(func() {
		f.closed = false
		f.least = min(f.least, to)
		for _, b := range f.blocks {
			keep := max(0, to-b.start)
			b.more = b.more || b.acked > keep
			b.acked, b.synced = min(b.acked, keep), min(b.synced, keep)
		}
	})
	err := u.c.call(ctx, "truncate", &hdfspb.TruncateRequestProto{Src: &f.paths[0], NewLength: proto.Uint64(uint64(to)), ClientName: &u.c.name}, resp, rpc.AtMostOnce)
	switch {
	case err == nil:
		u.change(func() {
			f.data, f.closed, f.failed = f.data[:to], resp.GetResult(), !resp.GetResult()
			for _, b := range f.blocks {
				b.more = false
			}
		})
	case refused(err):
		u.change(func() { f.failed, f.closed, f.least = true, false, min(before.least, to) })
	default:
		u.change(func() { f.failed = true })
	}
}

func (u *user) rename(ctx context.Context, f *modelFile) {
	u.made++
	from, to := f.paths[0], fmt.Sprintf("/r%d-%d", u.index, u.made)
	u.change(func() { f.paths = []string{from, to} })
	err := u.c.call(ctx, "rename2", &hdfspb.Rename2RequestProto{Src: &from, Dst: &to, OverwriteDest: proto.Bool(false)}, &hdfspb.Rename2ResponseProto{}, rpc.AtMostOnce)
	u.s.h.add("%s: renames %s to %s: %v", u.c.name, from, to, err)
	switch {
	case err == nil:
		u.change(func() { f.paths = []string{to} })
	case refused(err):
		u.change(func() { f.paths = []string{from} })
	}
}

func (u *user) delete(ctx context.Context, f *modelFile) {
	u.change(func() { f.maybe = true })
	err := u.c.call(ctx, "delete", &hdfspb.DeleteRequestProto{Src: &f.paths[0], Recursive: proto.Bool(false)}, &hdfspb.DeleteResponseProto{}, rpc.AtMostOnce)
	u.s.h.add("%s: deletes %s: %v", u.c.name, f, err)
	switch {
	case err == nil:
		u.change(func() { f.gone = true })
	case refused(err):
		u.change(func() { f.maybe = false })
	}
}

// read reads a file while everything goes on. It may fail, but not return a wrong byte.
func (u *user) read(ctx context.Context, f *modelFile) error {
	var written []byte
	u.change(func() { written = slices.Clone(f.data) })
	u.s.h.count("reads", 1)
	got, open, err := u.c.readFile(ctx, f.paths[0])
	if werr := sameBytes(written, got, 0); werr != nil {
		return fmt.Errorf("read of %s: %w", f, werr)
	}
	if err == nil && !open {
		return u.s.model.judge(f, got)
	}
	return nil // it may fail
}
