package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"golang.org/x/sync/errgroup"
)

// Outcome is what a run was about.
type Outcome struct {
	History string         // a line for each thing that happened
	Counts  map[string]int // of what happened
}

// draw makes the settings of a seed.
func draw(rng *rand.Rand) settings {
	c := settings{
		dataNodes: 3 + rng.IntN(3), clients: 2 + rng.IntN(4), blockSize: 512 << (rng.IntN(8)), rounds: 1 + rng.IntN(3),
		hardLimit: time.Duration(20+rng.IntN(100)) * time.Second, deadAfter: time.Duration(20+rng.IntN(100)) * time.Second,
		faults: drawFaults(rng),
	}
	c.replication = uint32(2 + rng.IntN(2))
	c.softLimit = c.hardLimit / 2
	c.windows = []int64{32 << 10, 300 << 10, 16 << 20}[rng.IntN(3)]
	return c
}

// Run runs the histories of one seed, within a synctest bubble. The error is what was
// found to be lost or wrong.
func Run(seed uint64) (out Outcome, err error) {
	h := &history{began: time.Now(), counts: map[string]int{}}
	rng := rand.New(rand.NewPCG(seed, 0))
	s := &system{h: h, net: newNetwork(seed), rng: rng, cfg: draw(rng), model: newModel()}
	defer func() {
		if err != nil {
			h.add("%v", err)
		}
		out.History, out.Counts = h.String(), h.counts
	}()
	c := s.cfg
	h.add("seed %d: %d DataNodes, %d clients, replication %d, blocks of %d bytes, leases of %v, dead after %v, %d rounds; %v",
		seed, c.dataNodes, c.clients, c.replication, c.blockSize, c.hardLimit, c.deadAfter, c.rounds, c.faults)
	if s.secret, err = cluster.NewSecret([]byte(strings.Repeat("simulated secret", 3))); err != nil {
		return out, err
	}
	s.nameNode = &machine{host: nameNodeHost, disk: newDisk(rng), turn: make(chan struct{}, 1)}
	for i := range c.dataNodes {
		m := &machine{host: fmt.Sprintf("10.0.0.%d", i+1), disk: newDisk(rng), turn: make(chan struct{}, 1), native: rng.IntN(8) > 0}
		for d := range 1 + rng.IntN(3) {
			m.dirs = append(m.dirs, fmt.Sprintf("/dn%d", d))
		}
		s.dataNodes = append(s.dataNodes, m)
	}
	defer s.stop()
	for _, m := range append([]*machine{s.nameNode}, s.dataNodes...) {
		if err := s.start(m); err != nil {
			return out, err
		}
	}
	var users []*user
	for i := range c.clients {
		users = append(users, newUser(s, seed, i))
	}
	defer func() {
		for _, u := range users {
			u.c.close()
		}
	}()
	for round := range c.rounds {
		if err := s.round(users); err != nil {
			return out, fmt.Errorf("round %d: %w", round, err)
		}
	}
	return out, nil
}

// round is a while of work and faults, then of rest, after which all must be well.
func (s *system) round(users []*user) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute+time.Duration(s.rng.Int64N(int64(3*time.Minute))))
	defer cancel()
	victim := s.dataNodes[s.rng.IntN(len(s.dataNodes))]
	began := time.Now()
	defer func() { s.h.count("virtual seconds", int(time.Since(began).Seconds())) }()
	group, ctx := errgroup.WithContext(ctx)
	s.now = group
	for _, u := range users {
		group.Go(func() error { return u.work(ctx) })
		group.Go(func() error { u.renew(ctx); return nil })
	}
	group.Go(func() error { return s.faults(ctx, victim) })
	if err := group.Wait(); err != nil {
		return err
	}
	for _, u := range users {
		u.die()
		u.begin()
	}
	s.h.add("all faults end")
	s.h.count("rounds", 1)
	if err := s.end.Load(); err != nil {
		return *err
	}
	s.net.heal()
	for _, m := range append([]*machine{s.nameNode}, s.dataNodes...) {
		m.disk.setFull(false)
		m.disk.setBroken("")
		m.disk.setSlow(0, 0)
		if err := s.start(m); err != nil {
			return err
		}
	}
	return s.check()
}

// disks adds what all DataNodes have of a file's blocks to the history.
func (s *system) disks(located *hdfspb.LocatedBlocksProto) {
	for _, lb := range located.GetBlocks() {
		s.h.add("block %d, generation %d, %d bytes, is at %d DataNodes", lb.GetB().GetBlockId(), lb.GetB().GetGenerationStamp(), lb.GetB().GetNumBytes(), len(lb.GetLocs()))
		prefix := fmt.Sprintf("blk_%d", lb.GetB().GetBlockId())
		for _, m := range s.dataNodes {
			m.each(func(dir, name string, size int64) {
				if strings.HasPrefix(name, prefix) {
					s.h.add("  %s has %s/%s, %d bytes", m.host, dir, name, size)
				}
			})
		}
	}
}

// each calls f for all files of a DataNode's blocks.
func (m *machine) each(f func(dir, name string, size int64)) {
	fs := m.disk.mem
	for _, in := range m.dirs {
		dirs, err := fs.List(in + "/blocks")
		if err != nil {
			continue
		}
		for _, d := range dirs {
			d = in + "/blocks/" + d
			names, err := fs.List(d)
			if err != nil {
				continue
			}
			for _, name := range names {
				if info, err := fs.Stat(d + "/" + name); err == nil {
					f(d, name, info.Size())
				}
			}
		}
	}
}

// patience is how long leases, recoveries and copies may take once nothing goes wrong
// any more.
const patience = 20 * time.Minute

// check waits until every lease has ended and every block has its replicas, and then
// reads every replica.
func (s *system) check() error {
	c := newClient(s, "10.0.1.250", "checker")
	defer c.close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, f := range s.model.files {
		if f.gone {
			continue
		}
		for {
			// What a read says counts, not that the time was up in the middle of it.
			err := s.checkFile(context.WithoutCancel(ctx), c, f)
			if err == nil {
				break
			}
			var unfinished *unfinishedError
			if !errors.As(err, &unfinished) || !sleep(ctx, 2*time.Second) {
				if _, located, lerr := s.find(context.Background(), c, f); lerr == nil {
					s.disks(located)
				}
				return err
			}
		}
	}
	s.model.forgetRecoveries()  // all have their replicas
	time.Sleep(2 * time.Minute) // until replicas that were closed without hsync are synced
	return nil
}

// unfinishedError says that something has yet to happen.
type unfinishedError struct{ what string }

func (e *unfinishedError) Error() string { return "STILL SO: " + e.what }

func (s *system) checkFile(ctx context.Context, c *client, f *modelFile) error {
	path, located, err := s.find(ctx, c, f)
	if err != nil || path == "" {
		return err
	}
	if located.GetUnderConstruction() {
		return &unfinishedError{fmt.Sprintf("%s is open; its writer is gone", path)}
	}
	least, all, record := s.model.promised(f, located.GetBlocks())
	want := min(int(s.cfg.replication), s.cfg.dataNodes)
	var data []byte
	for _, lb := range located.GetBlocks() {
		id, n := lb.GetB().GetBlockId(), int(lb.GetB().GetNumBytes())
		if len(lb.GetLocs()) != want && all {
			return &unfinishedError{fmt.Sprintf("block %d of %s has %d replicas, of %d (%s)", id, path, len(lb.GetLocs()), want, record)}
		}
		var replica []byte
		for _, at := range lb.GetLocs() {
			b, err := c.readReplica(ctx, lb, at, n)
			if err != nil && !all {
				continue
			}
			if err != nil {
				return &unfinishedError{fmt.Sprintf("block %d of %s can't be read from %s: %v", id, path, at.GetId().GetIpAddr(), err)}
			}
			if err := sameBytes(f.data, b, len(data)); err != nil {
				return fmt.Errorf("replica of block %d of %s at %s: %w", id, path, at.GetId().GetIpAddr(), err)
			}
			replica = b
		}
		if replica == nil {
			break
		}
		data = append(data, replica...)
	}
	if err := s.model.judge(f, data); err != nil {
		if !all {
			return &unfinishedError{err.Error()}
		}
		return err
	}
	if !all {
		f.maybe = true // from now on it may be gone
		// The NameNode may not have seen yet that its disk has room again.
		if err := c.call(ctx, "delete", &hdfspb.DeleteRequestProto{Src: &path, Recursive: proto.Bool(false)}, &hdfspb.DeleteResponseProto{}, rpc.AtMostOnce); err != nil {
			return &unfinishedError{fmt.Sprintf("delete of %s: %v", path, err)}
		}
		fate, acked, excuse := "lost acknowledged bytes", f.acknowledged(), s.model.excuse(f)
		if len(data) >= acked {
			fate = "kept all acknowledged bytes"
		}
		s.h.count(fmt.Sprintf("files that %s (%s)", fate, excuse), 1)
		s.h.add("%s %s: %d are left, %d were acknowledged, %d must be there; %s", path, fate, len(data), acked, least, excuse)
		f.gone = true
		return nil
	}
	s.h.count("files checked", 1)
	s.model.settle(f, path, len(data))
	return nil
}

// find returns where a file is.
func (s *system) find(ctx context.Context, c *client, f *modelFile) (path string, located *hdfspb.LocatedBlocksProto, err error) {
	var found []string
	for _, p := range f.paths {
		resp := &hdfspb.GetFileInfoResponseProto{}
		if err := c.call(ctx, "getFileInfo", &hdfspb.GetFileInfoRequestProto{Src: &p}, resp, rpc.Idempotent); err != nil {
			return "", nil, &unfinishedError{fmt.Sprintf("getFileInfo of %s: %v", p, err)}
		}
		if resp.Fs != nil {
			found = append(found, p)
		}
	}
	switch {
	case len(found) == 0 && f.maybe:
		f.gone = true
		return "", nil, nil
	case len(found) != 1:
		return "", nil, fmt.Errorf("LOST NAME: of %v there are %v", f.paths, found)
	}
	located, err = c.locations(ctx, found[0])
	if err != nil {
		return "", nil, &unfinishedError{fmt.Sprintf("getBlockLocations of %s: %v", found[0], err)}
	}
	return found[0], located, nil
}
