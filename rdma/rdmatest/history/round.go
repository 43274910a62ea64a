package history

import (
	"fmt"
	"math/rand/v2"

	"github.com/verbena-data/verbena/rdma"
)

// ready allows the next round: the sender has compared its memory.
type ready struct {
	Mark, Round uint32
	Exposed     [exposedParts]remoteKey
	Stale       remoteKey
	Revocable   remoteKey // what the peer may revoke, where it can
}

// greet exchanges what the ends must know of each other. The initiator sends first:
// on iWARP the target may not.
func (e *end) greet() error {
	e.round = -1
	e.controls = 1 // the greeting is one control message, a round has two
	if e.role == Target {
		if err := e.await("the greeting", func() bool { return e.controls == 2 }); err != nil {
			return err
		}
	}
	a := e.side.attributes
	g := greeting{
		Seed: e.link.Seed, Rounds: uint32(e.link.Rounds), Area: uint32(e.t.area), Class: uint8(a.Class), Capabilities: uint32(a.Capabilities &^ e.side.options.Without),
		SendSGE: uint32(e.t.sendSGE[e.role]), ReadSGE: uint32(e.t.readSGE[e.role]), Inline: uint32(e.t.inline[e.role]),
		Slot: uint32(e.slot), Depth: uint32(e.t.depth[e.role]), Stale: e.stale,
		Foreign: remoteKey{e.side.forbidden.region.Address(), e.side.forbidden.region.Key()},
	}
	if e.side.options.Shallow {
		g.Shallow = 1
	}
	if e.side.options.OneWayReads {
		g.OneWayReads = 1
	}
	if e.side.options.Unfenced {
		g.Unfenced = 1
	}
	if e.side.options.LaxReads {
		g.LaxReads = 1
	}
	for part, m := range e.exposed {
		g.Exposed[part] = remoteKey{m.region.Address(), m.region.Key()}
	}
	if err := e.tell(0, &g); err != nil {
		return err
	}
	if err := e.await("the answer to the greeting", func() bool { return e.controls == 2 && e.allDone() }); err != nil {
		return err
	}
	if e.theirs.Seed != e.link.Seed || int(e.theirs.Area) != e.t.area || e.theirs.Rounds != uint32(e.link.Rounds) {
		return fmt.Errorf("the ends were given different links: %+v and %+v", g, e.theirs)
	}
	for _, each := range []struct {
		role Role
		g    *greeting
	}{{e.role, &g}, {1 - e.role, &e.theirs}} {
		t, r, g := e.t, each.role, each.g
		t.class[r], t.caps[r] = rdma.Class(g.Class), rdma.Capabilities(g.Capabilities)
		t.sendSGE[r], t.readSGE[r], t.inline[r] = int(g.SendSGE), int(g.ReadSGE), int(g.Inline)
		t.slot[r], t.depth[r] = int(g.Slot), int(g.Depth)
	}
	e.t.mayTell = g.Shallow == 0 && e.theirs.Shallow == 0
	e.t.oneWayReads = g.OneWayReads != 0 || e.theirs.OneWayReads != 0
	e.t.unfenced = g.Unfenced != 0 || e.theirs.Unfenced != 0
	e.t.laxReads = g.LaxReads != 0 || e.theirs.LaxReads != 0
	// A link of 1 MiB compares 32 times as many bytes in each round: it gets fewer.
	e.t.rounds = 1 + rand.New(rand.NewPCG(e.t.seed, 3)).IntN(max(1, e.link.Rounds/max(1, e.t.area/(32<<10))))
	e.t.endingBy = planEnding(e.t)
	e.out, e.in = newDirection(e.t, e.role), newDirection(e.t, 1-e.role)
	for part := range e.exposed {
		if err := e.writeArea(true, part, e.in.exposed, exposedPart(part, e.t.area)); err != nil {
			return err
		}
	}
	for part := range e.local {
		if err := e.writeArea(false, part, e.out.local, localPart(part, e.t.area)); err != nil {
			return err
		}
	}
	return e.barrier(change{-1, -1})
}

func (e *end) part(exposed bool, part int) memory {
	if exposed {
		return e.exposed[part]
	}
	return e.local[part]
}

func (e *end) writeArea(exposed bool, part int, model []byte, place span) error {
	return e.part(exposed, part).write(0, model[place.from:place.to])
}

func (e *end) allDone() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for p := range e.posted {
		if e.done[p] < len(e.posted[p]) {
			return false
		}
	}
	return true
}

// barrier ends a round. It replaces regions, posts receives for the next round, tells
// the peer the new keys, and waits until the peer has done as much.
func (e *end) barrier(c change) error {
	r := ready{Mark: markReady, Round: uint32(e.round)}
	if c.exposed >= 0 {
		old := e.exposed[c.exposed]
		r.Stale = remoteKey{old.region.Address(), old.region.Key()}
		place := exposedPart(c.exposed, e.t.area)
		if err := e.replace(&e.exposed[c.exposed], e.side.rights(c.exposed), e.in.exposed[place.from:place.to]); err != nil {
			return err
		}
		e.stale = r.Stale
	}
	if c.local >= 0 {
		place := localPart(c.local, e.t.area)
		if err := e.replace(&e.local[c.local], rdma.AccessLocalWrite, e.out.local[place.from:place.to]); err != nil {
			return err
		}
	}
	if err := e.renewRevocable(); err != nil {
		return err
	}
	if e.revocable.region != nil {
		r.Revocable = remoteKey{e.revocable.region.Address(), e.revocable.region.Key()}
	}
	r.Stale = e.stale
	for part, m := range e.exposed {
		r.Exposed[part] = remoteKey{m.region.Address(), m.region.Key()}
	}
	e.mu.Lock()
	// Where a Send waits for a receive, some are posted only while messages come. But
	// a shared queue gets all of them: if this link ended before it had posted its
	// share, the other links would lack receives for ever.
	n := e.unposted
	if e.srq == nil && (e.t.can(rdma.CapReceiverNotReady) || e.t.can(rdma.CapReceiverWaits)) && e.random.IntN(2) == 0 {
		n = e.random.IntN(n + 1)
	}
	err := e.postReceives(n)
	if e.round < 0 {
		e.controls = min(e.controls, 1) // the greeting stands for the first of the two marks
	}
	e.mu.Unlock()
	if err != nil {
		return err
	}
	e.released = true
	if err := e.tell(1, &r); err != nil {
		return err
	}
	return e.await("the end of the round", func() bool { return e.controls == 2 && e.allDone() })
}

// renewRevocable makes a region whose key the peer may revoke, if there is none or
// the peer has just revoked it. The revoked region stays open for a round. Requests
// that must be refused name it, and its memory must not change.
func (e *end) renewRevocable() error {
	if !e.t.can(rdma.CapSendInvalidate) || e.round >= 0 && !planRevocation(e.t, 1-e.role, e.round) {
		return nil
	}
	if e.revoked.region != nil {
		got, err := e.revoked.read(0, e.revoked.size)
		if err == nil {
			err = same(got, make([]byte, len(got)), "a region whose key has been revoked")
		}
		if err != nil {
			return err
		}
		if err := e.revoked.region.Close(); err != nil {
			return fmt.Errorf("close revoked region: %w", err)
		}
	}
	if e.revoked = e.revocable; e.revoked.region != nil {
		e.stale = remoteKey{e.revoked.region.Address(), e.revoked.region.Key()}
	}
	var err error
	e.revocable, err = e.side.allocate(e.t.area/2, e.side.rights(partAll)|rdma.AccessRemoteInvalidate)
	return err
}

// replace closes a region, makes a new one, checks that it is zeroed, and fills it.
func (e *end) replace(m *memory, access rdma.Access, content []byte) error {
	size := m.size
	err := m.region.Close()
	m.region = nil
	if err != nil {
		return fmt.Errorf("close region: %w", err)
	}
	if *m, err = e.side.allocate(size, access); err != nil {
		return err
	}
	got, err := m.read(0, size)
	if err != nil {
		return err
	}
	for i, b := range got {
		if b != 0 {
			return fmt.Errorf("a new region of %d bytes holds %#x at %d", size, b, i)
		}
	}
	return m.write(0, content)
}

func (e *end) runRound() error {
	e.out.plan(e.round)
	e.in.plan(e.round)
	e.mu.Lock()
	for p := range e.posted {
		e.posted[p], e.done[p] = e.posted[p][:0], 0
	}
	e.expected.begin(e.in)
	e.controls = 0
	e.released = false
	e.mu.Unlock()
	if err := e.postRound(); err != nil {
		return err
	}
	var revoke []uint32
	if planRevocation(e.t, e.role, e.round) {
		revoke = append(revoke, e.theirRevocable.Key)
	}
	if err := e.tell(0, &ready{Mark: markDone, Round: uint32(e.round)}, revoke...); err != nil {
		return err
	}
	if err := e.await("the requests of the round", func() bool { return e.controls >= 1 && e.allDone() }); err != nil {
		return err
	}
	if err := e.compare(); err != nil {
		return fmt.Errorf("round %d: %w", e.round, err)
	}
	e.side.Stats.Rounds.Add(1)
	e.side.Stats.Answered.Add(uint64(e.in.requests()))
	planChange(e.t, 1-e.role, e.round, e.in, e.out)
	return e.barrier(planChange(e.t, e.role, e.round, e.out, e.in))
}

// compare compares all memory with the model. Everything has completed.
func (e *end) compare() error {
	for part := range e.exposed {
		place := exposedPart(part, e.t.area)
		got, err := e.exposed[part].read(0, place.length())
		if err != nil {
			return err
		}
		if err := same(got, e.in.exposed[place.from:place.to], fmt.Sprintf("region %d that the peer works on", part)); err != nil {
			return err
		}
	}
	for part := range e.local {
		place := localPart(part, e.t.area)
		got, err := e.local[part].read(0, place.length())
		if err != nil {
			return err
		}
		if err := same(got, e.out.local[place.from:place.to], fmt.Sprintf("local region %d", part)); err != nil {
			return err
		}
	}
	return nil
}
