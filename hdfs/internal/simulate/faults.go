package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// faultKinds are those that a seed has.
type faultKinds struct {
	kill, power, nameNode, partition, full, leap, damage, blackout, nameNodeFull, slow, broken, restart, ambush bool
}

func (k faultKinds) String() string {
	var out []string
	for _, f := range []struct {
		on   bool
		name string
	}{
		{k.kill, "kills"}, {k.power, "power cuts"}, {k.nameNode, "NameNode too"}, {k.partition, "partitions"},
		{k.full, "full disks"}, {k.leap, "clock leaps"}, {k.damage, "damaged disks"}, {k.blackout, "blackouts"},
		{k.nameNodeFull, "the NameNode's disk full"}, {k.slow, "slow disks"}, {k.broken, "connections that break"},
		{k.restart, "restarts"}, {k.ambush, "ambushes"},
	} {
		if f.on {
			out = append(out, f.name)
		}
	}
	return strings.Join(out, ", ")
}

func drawFaults(rng *rand.Rand) faultKinds {
	some := func(of int) bool { return rng.IntN(of) == 0 }
	return faultKinds{
		kill: !some(4), power: some(2), nameNode: some(2), partition: some(2), full: some(4), leap: some(4), damage: some(3), blackout: some(8),
		nameNodeFull: some(3), slow: some(3), broken: !some(3), restart: some(2), ambush: !some(3),
	}
}

// faults has things go wrong until ctx ends.
func (s *system) faults(ctx context.Context, victim *machine) error {
	for sleep(ctx, time.Duration(s.rng.Int64N(int64(8*time.Second)))) {
		if err := s.fault(ctx, victim); err != nil {
			return err
		}
	}
	return nil
}

func (s *system) fault(ctx context.Context, victim *machine) error {
	k := s.cfg.faults
	dn := s.dataNodes[s.rng.IntN(len(s.dataNodes))]
	down := s.downtime(s.rng)
	switch n := s.rng.IntN(24); {
	case n < 4 && k.kill:
		s.h.count("DataNodes killed", 1)
		s.h.add("kill -9 of DataNode %s", dn.host)
		_ = s.kill(dn, s.rng, nil)
		return s.startLater(ctx, dn, down)
	case n < 7 && k.power:
		s.h.count("power cuts of DataNodes", 1)
		s.h.add("power cut of DataNode %s", dn.host)
		s.cutPower(dn, s.rng)
		return s.startLater(ctx, dn, down)
	case n < 9 && k.nameNode:
		s.h.count("NameNodes killed", 1)
		s.h.add("kill -9 of the NameNode")
		_ = s.kill(s.nameNode, s.rng, nil)
		return s.startLater(ctx, s.nameNode, down/4)
	case n < 10 && k.nameNode && k.power:
		s.h.count("power cuts of NameNodes", 1)
		s.h.add("power cut of the NameNode")
		s.cutPower(s.nameNode, s.rng)
		return s.startLater(ctx, s.nameNode, down/4)
	case n < 12 && k.partition:
		a, b := s.anyHost(), s.anyHost()
		s.h.count("partitions", 1)
		s.h.add("%s and %s are cut off from each other", a, b)
		s.net.cut(a, b, true)
		sleep(ctx, down)
		s.net.cut(a, b, false)
	case n < 13 && k.full:
		s.h.count("full disks", 1)
		s.h.add("the disk of %s is full", dn.host)
		dn.disk.setFull(true)
		sleep(ctx, down)
		dn.disk.setFull(false)
	case n < 14 && k.leap:
		to := time.Duration(s.rng.Int64N(int64(8*time.Hour))) - 4*time.Hour
		s.h.count("clock leaps", 1)
		s.h.add("the NameNode's clock leaps to %v from the right time", to)
		s.leap.Store(int64(to))
	case n < 15 && k.damage:
		return s.damage(ctx, victim, down)
	case n > 21 && k.restart:
		return s.restart(ctx, dn, down)
	case n > 19 && k.broken:
		a, b := s.anyHost(), s.anyHost()
		s.h.count("pairs of hosts whose connections broke", 1)
		s.h.add("all connections between %s and %s break", a, b)
		s.net.breakAll(a, b)
	case n > 17 && n < 20 && k.slow:
		s.slowDisk(ctx, dn, down)
	case n > 15 && n < 18 && k.nameNodeFull:
		return s.fillNameNode(ctx, down)
	case n == 15 && k.blackout && s.rng.IntN(3) == 0:
		s.h.count("power cuts of everything", 1)
		s.h.add("power cut of everything")
		for _, m := range append(s.dataNodes[:len(s.dataNodes):len(s.dataNodes)], s.nameNode) {
			s.cutPower(m, s.rng)
		}
		for _, m := range append([]*machine{s.nameNode}, s.dataNodes...) {
			if err := s.startLater(ctx, m, down/10); err != nil {
				return err
			}
		}
	}
	return nil
}

// downtime draws for how long a machine is away.
func (s *system) downtime(rng *rand.Rand) time.Duration {
	k, most := s.cfg.faults, 5*time.Second
	if rng.IntN(5) == 0 {
		// Who is away for longer than a recovery waits may be the only one with bytes that
		// others have lost: that is told to be a loss.
		most = s.cfg.hardLimit / 4
		if !k.power && !k.damage && !k.blackout {
			most = s.cfg.deadAfter * 2
		}
	}
	return time.Duration(rng.Int64N(int64(most)))
}

// anyHost draws one of all hosts.
func (s *system) anyHost() string {
	hosts := []string{nameNodeHost}
	for _, m := range s.dataNodes {
		hosts = append(hosts, m.host)
	}
	for i := range s.cfg.clients {
		hosts = append(hosts, fmt.Sprintf("10.0.1.%d", i+1))
	}
	return hosts[s.rng.IntN(len(hosts))]
}

// slowDisk has writes and hsyncs of blocks on a DataNode take long, or all of them wait until the
// disk goes on.
func (s *system) slowDisk(ctx context.Context, m *machine, down time.Duration) {
	slow, hangs := time.Duration(s.rng.Int64N(int64(4*time.Second))), time.Duration(0)
	if s.rng.IntN(2) == 0 {
		// Longer than a recovery waits for a writer (10 s), and than a client for an answer (30 s).
		slow, hangs = 0, time.Duration(s.rng.Int64N(int64(45*time.Second)))
		s.h.count("disks that hung", 1)
		s.h.add("the disk of %s hangs for %v", m.host, hangs)
	} else {
		s.h.count("slow disks", 1)
		s.h.add("the disk of %s is slow: up to %v for a write", m.host, slow)
	}
	m.disk.setSlow(slow, hangs)
	sleep(ctx, max(down, hangs))
	s.h.add("the disk of %s is as fast as ever", m.host)
	m.disk.setSlow(0, 0)
}

// fillNameNode has the NameNode's disk fill up. There is less room than the NameNode reserves for its
// log before there is none: it looks each second, and writes nothing more.
func (s *system) fillNameNode(ctx context.Context, down time.Duration) error {
	s.h.count("full disks of NameNodes", 1)
	s.h.add("the NameNode's disk is low on room")
	d := s.nameNode.disk
	d.setLeft(50 << 20)
	defer func() {
		s.h.add("the NameNode's disk has room again")
		d.setFull(false)
		d.setLeft(room)
	}()
	if !sleep(ctx, 3*time.Second) {
		return nil
	}
	if err := s.refusesChanges(ctx); err != nil {
		return err
	}
	s.h.add("the NameNode's disk is full")
	d.setFull(true)
	sleep(ctx, down)
	return nil
}

// refusesChanges returns an error if the NameNode says that it takes changes. It may not be reached.
func (s *system) refusesChanges(ctx context.Context) error {
	c := newClient(s, "10.0.1.251", "operator")
	defer c.close()
	resp := &hdfspb.SetSafeModeResponseProto{}
	err := c.call(ctx, "setSafeMode", &hdfspb.SetSafeModeRequestProto{Action: hdfspb.SafeModeActionProto_SAFEMODE_GET.Enum()}, resp, rpc.Idempotent)
	if err == nil && !resp.GetResult() {
		return errors.New("NO SAFE MODE: the NameNode takes changes, though its disk has less room than it reserves")
	}
	if err == nil {
		s.h.count("NameNodes in safe mode for want of room", 1)
	}
	return nil
}

// startLater starts the process of a machine after a while. Nobody starts a DataNode on a disk
// that takes nothing, which does not last.
func (s *system) startLater(ctx context.Context, m *machine, after time.Duration) error {
	sleep(ctx, after)
	for m.disk.unfit() {
		time.Sleep(time.Second)
	}
	s.h.add("%s starts", m.host)
	return s.start(m)
}

// damage has a DataNode come back with less than it had, or with wrong bytes. One
// machine alone is damaged in a round.
func (s *system) damage(ctx context.Context, m *machine, down time.Duration) error {
	switch s.rng.IntN(4) {
	case 3:
		s.breakDirectory(ctx, m, down)
		return nil
	case 0:
		s.h.count("DataNodes that came back with an old disk", 1)
		s.h.add("%s comes back with an old copy of its disk", m.host)
		old := m.disk.image(s.rng)
		if m.old != nil {
			old, m.old = m.old, old
		} else {
			m.old = old
			return nil
		}
		_ = s.kill(m, s.rng, func() error {
			m.disk.mem = old
			m.boot++
			return nil
		})
	case 1:
		s.h.count("DataNodes that came back without blocks", 1)
		s.h.add("%s comes back without its blocks", m.host)
		err := s.kill(m, s.rng, func() error {
			m.boot++
			for _, d := range m.dirs {
				if err := m.disk.mem.RemoveAll(d + "/blocks"); err != nil {
					return err
				}
				_ = m.disk.mem.Remove(d + "/boot")
			}
			return nil
		})
		if err != nil {
			return err
		}
	default:
		name, err := m.flip(s.rng)
		if err != nil {
			return err
		}
		if name != "" {
			s.h.count("flipped bits", 1)
			s.h.add("a bit of %s flips on %s", name, m.host)
			s.model.loses(m.host, true)
		}
		return nil
	}
	s.model.loses(m.host, true)
	return s.startLater(ctx, m, down)
}

// breakDirectory has one of a DataNode's directories fail for a while. The DataNode goes on
// without it until its process ends, and may find old replicas in it when it starts again.
func (s *system) breakDirectory(ctx context.Context, m *machine, down time.Duration) {
	p := m.running()
	if p == nil || len(m.dirs) == 1 || m.failed == p {
		return
	}
	m.failed = p
	dir := m.dirs[s.rng.IntN(len(m.dirs))]
	s.h.count("directories that failed", 1)
	s.h.add("directory %s of %s fails", dir, m.host)
	s.model.loses(m.host, true)
	m.disk.setBroken(dir)
	sleep(ctx, down)
	s.h.add("directory %s of %s works again", dir, m.host)
	m.disk.setBroken("")
}

// flip changes a bit of a block.
func (m *machine) flip(rng *rand.Rand) (string, error) {
	m.turn <- struct{}{}
	defer func() { <-m.turn }()
	var files []string
	m.each(func(dir, name string, size int64) {
		if size > 0 && !strings.HasSuffix(name, ".meta") {
			files = append(files, dir+"/"+name)
		}
	})
	if len(files) == 0 {
		return "", nil
	}
	name := files[rng.IntN(len(files))]
	f, err := m.disk.mem.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if oserror.IsNotExist(err) {
		return "", nil // it has just been deleted
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return "", err
	}
	var b [1]byte
	at := rng.Int64N(info.Size())
	if _, err := f.ReadAt(b[:], at); err != nil {
		return "", err
	}
	b[0] ^= 1 << rng.IntN(8)
	_, err = f.WriteAt(b[:], at)
	return name, err
}
