package namenode

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/topology"
)

// placeSoon is place, but after a start it gives the DataNodes a moment to come: all that are expected, so
// that the first blocks are not written to whichever came first.
func (nn *NameNode) placeSoon(ctx context.Context, req *hdfspb.AddBlockRequestProto, s namespace.Status, host string) ([]string, error) {
	from := nn.placeOf(ctx, host)
	limit := time.NewTimer(nn.cfg.CompleteWait)
	defer limit.Stop()
	for late := false; ; {
		targets, grown, err := nn.place(req, int(s.Replication), s.BlockSize, from)
		if grown == nil || late || !nn.InSafeMode() {
			return targets, err
		}
		nn.blocks.unplace(targets)
		select {
		case <-grown:
		case <-limit.C:
			late = true
		case <-ctx.Done():
			return nil, fmt.Errorf("namenode: wait for DataNodes after the start: %w", context.Cause(ctx))
		}
	}
}

// awaits tells whether a DataNode that was not dead before the start has yet to say what room it has. The caller has m.mu.
func (m *blockMap) awaits() bool {
	for _, n := range m.nodes {
		if n.expected && n.capacity == 0 && n.inService() {
			return true
		}
	}
	return false
}

// place chooses DataNodes for a new block, and counts the block as scheduled on each of
// them. With an error, or with fewer DataNodes than replicas while others are expected, it returns grown, which
// closes when another DataNode can take blocks.
func (nn *NameNode) place(req *hdfspb.AddBlockRequestProto, replication int, blockSize uint64, from place) (targets []string, grown chan struct{}, err error) {
	m := nn.blocks
	m.mu.Lock()
	defer m.mu.Unlock()
	excluded := exclusion(m.nodesNamed(req.GetExcludeNodes()))
	w := want{count: replication, writer: from, exclude: excluded, size: blockSize, fresh: true, favoured: m.favoured(req.GetFavoredNodes())}
	avoidLocal := false
	for _, f := range req.GetFlags() {
		switch f {
		case hdfspb.AddBlockFlagProto_IGNORE_CLIENT_LOCALITY:
			w.writer = place{}
		case hdfspb.AddBlockFlagProto_NO_LOCAL_WRITE:
			avoidLocal = true
		}
	}
	var nodes []*node
	if avoidLocal {
		apart := w
		apart.exclude = exclusion(m.nodesNamed(req.GetExcludeNodes()))
		for _, n := range m.nodes {
			if n.dn.Host == from.host {
				apart.exclude[n] = true
			}
		}
		nodes = m.choose(apart)
	}
	if !avoidLocal || len(nodes) < replication {
		nodes = m.choose(w)
	}
	if len(nodes) > 0 {
		for _, n := range nodes {
			n.scheduled.add(m.cfg.now())
		}
		if len(nodes) < replication && m.awaits() {
			grown = m.grown
		}
		return uuids(nodes), grown, nil
	}
	live, full := 0, 0
	for _, n := range m.nodes {
		if n.alive && n.registered {
			live++
			if n.room(blockSize, m.cfg.now()) < blockSize {
				full++
			}
		}
	}
	return nil, m.grown, exception.New(exception.IO, "File %s could only be written to 0 of the 1 minReplication nodes. There are %d datanode(s) running, %d node(s) are excluded in this operation and %d have less room than a block of %d bytes.", req.GetSrc(), live, len(excluded), full, blockSize)
}

// unplace takes back that a block is scheduled.
func (m *blockMap) unplace(targets []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uuid := range targets {
		if n := m.nodes[uuid]; n != nil {
			n.scheduled.done(m.cfg.now())
		}
	}
}

// scheduleRoll is how long a block that was scheduled on a DataNode counts, at
// least, if no report of it comes; at most twice as long. HDFS has the same.
const scheduleRoll = 10 * time.Minute

// scheduled counts the blocks that a DataNode was chosen for and has not reported.
// It is approximate, as HDFS's blocksScheduled: blocks given up count until the
// second roll after they were scheduled.
type scheduled struct {
	now, before int
	rolled      time.Time
}

func (s *scheduled) roll(at time.Time) {
	if s.rolled.IsZero() {
		s.rolled = at
	}
	switch since := at.Sub(s.rolled); {
	case since >= 2*scheduleRoll:
		s.before, s.now, s.rolled = 0, 0, at
	case since >= scheduleRoll:
		s.before, s.now, s.rolled = s.now, 0, at
	}
}

func (s *scheduled) add(at time.Time) {
	s.roll(at)
	s.now++
}

// done counts one block less, the older ones first.
func (s *scheduled) done(at time.Time) {
	s.roll(at)
	switch {
	case s.before > 0:
		s.before--
	case s.now > 0:
		s.now--
	}
}

func (s *scheduled) count(at time.Time) int {
	s.roll(at)
	return s.now + s.before
}

// room is what is left for further blocks of size bytes: the blocks that are
// scheduled will take as much each, as HDFS assumes.
func (n *node) room(size uint64, now time.Time) uint64 {
	taken := uint64(n.scheduled.count(now)) * size
	left := n.storages.room(size)
	return left - min(left, taken)
}

// place is where a writer or a reader is; the zero value is nowhere.
type place struct{ host, rack string }

// placeOf tells where a client's host is.
func (nn *NameNode) placeOf(ctx context.Context, host string) place {
	if host == "" {
		return place{}
	}
	if rack, ok := nn.blocks.rackOf(host); ok {
		return place{host, rack}
	}
	return place{host, nn.topology.Rack(ctx, host, "")}
}

// rackOf is the rack of the DataNodes on a host.
func (m *blockMap) rackOf(host string) (rack string, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.nodes {
		if n.dn.Host == host {
			return n.rack, true
		}
	}
	return "", false
}

// want is what choose is asked for.
type want struct {
	count    int
	writer   place
	chosen   []*node // that have the block already
	exclude  map[*node]bool
	favoured []*node
	size     uint64 // bytes that each needs room for
	fresh    bool   // a new block, not another replica
}

// choose picks up to want.count DataNodes by HDFS's rule: the first is on the writer's
// host, or at least its rack; the second on another rack; the third on the second's
// rack; the others anywhere, but not too many on one rack. It returns them in the
// order of a short pipeline. DataNodes that are silent or twice as busy as the average are chosen
// only if there are too few others. The caller has m.mu.
func (m *blockMap) choose(w want) []*node {
	p := &placer{m: m, want: w, now: m.cfg.now(), hesitant: true, racks: make(map[string]int)}
	for _, n := range m.nodes {
		if n.alive && n.registered && n.inService() {
			p.load += n.transfers
			p.live++
			p.racks[n.rack]++
		}
	}
	p.run()
	if len(p.out) < w.count {
		p.hesitant = false
		p.run()
	}
	return p.pipeline()
}

// placer is one run of choose.
type placer struct {
	m *blockMap
	want
	now        time.Time
	out        []*node
	hesitant   bool // avoid silent and busy DataNodes
	live       int
	load       uint32
	racks      map[string]int
	maxPerRack int
}

func (p *placer) run() {
	missing := func() int { return p.count - len(p.out) }
	for _, n := range p.favoured {
		if missing() > 0 {
			p.pick(func(o *node) bool { return o == n })
		}
	}
	p.limitRacks(missing())
	if missing() > 0 && len(p.all()) == 0 {
		p.near(p.writer)
	}
	if all := p.all(); missing() > 0 && len(all) == 1 {
		p.apart(all[0].rack)
	}
	if all := p.all(); missing() > 0 && len(all) == 2 {
		switch {
		case all[0].rack == all[1].rack:
			p.apart(all[0].rack)
		case p.fresh || p.writer == (place{}):
			p.near(place{rack: all[1].rack})
		default:
			p.near(place{rack: p.writer.rack})
		}
	}
	for missing() > 0 && p.pick(func(*node) bool { return true }) {
	}
}

// limitRacks computes how many replicas one rack may have.
func (p *placer) limitRacks(missing int) {
	total := min(len(p.all())+missing, p.live)
	switch {
	case len(p.racks) <= 1 || total <= 1:
		p.maxPerRack = max(total, 1)
	default:
		p.maxPerRack = (total-1)/len(p.racks) + 2
		if p.maxPerRack == total {
			p.maxPerRack--
		}
	}
}

// all are the DataNodes that have, or will have, the block.
func (p *placer) all() []*node { return slices.Concat(p.chosen, p.out) }

// near picks a DataNode on a host, or on its rack, or anywhere.
func (p *placer) near(at place) bool {
	return at.host != "" && p.pick(func(n *node) bool { return n.dn.Host == at.host }) ||
		at.rack != "" && p.pick(func(n *node) bool { return n.rack == at.rack }) ||
		p.pick(func(*node) bool { return true })
}

// apart picks a DataNode on another rack, or, if there is none, on this one.
func (p *placer) apart(rack string) bool {
	return p.pick(func(n *node) bool { return n.rack != rack }) || p.pick(func(*node) bool { return true })
}

// pick takes one of the DataNodes that fit: the emptier of two at random, which
// fills them evenly and does not send every writer to the emptiest one.
func (p *placer) pick(fits func(*node) bool) bool {
	var candidates []*node
	for _, n := range p.m.byIndex {
		if fits(n) && p.good(n) {
			candidates = append(candidates, n)
		}
	}
	if len(candidates) == 0 {
		return false
	}
	a, b := candidates[rand.IntN(len(candidates))], candidates[rand.IntN(len(candidates))]
	if b.room(p.size, p.now) > a.room(p.size, p.now) {
		a = b
	}
	p.out = append(p.out, a)
	return true
}

func (p *placer) good(n *node) bool {
	if !n.alive || !n.registered || !n.inService() || p.exclude[n] || p.m.nodes[n.dn.UUID] != n || n.room(p.size, p.now) < p.size {
		return false
	}
	if p.hesitant && (p.now.Sub(n.lastSeen) > p.m.cfg.StaleAfter || uint64(n.transfers)*uint64(p.live) > 2*uint64(p.load)) {
		return false
	}
	onRack := 1
	for _, o := range p.chosen {
		if o == n {
			return false
		}
		if o.rack == n.rack {
			onRack++
		}
	}
	for _, o := range p.out {
		if o == n {
			return false
		}
		if o.rack == n.rack {
			onRack++
		}
	}
	return onRack <= p.maxPerRack || p.maxPerRack == 0 // 0: favoured ones
}

// pipeline orders what was chosen so that each DataNode is near the one before.
func (p *placer) pipeline() []*node {
	at := p.writer
	for i := range p.out {
		if at != (place{}) {
			nearest := i
			for k := i + 1; k < len(p.out); k++ {
				if distance(at, p.out[k]) < distance(at, p.out[nearest]) {
					nearest = k
				}
			}
			// What comes between stays in its order.
			n := p.out[nearest]
			copy(p.out[i+1:nearest+1], p.out[i:nearest])
			p.out[i] = n
		}
		at = place{p.out[i].dn.Host, p.out[i].rack}
	}
	return p.out
}

func distance(from place, to *node) int {
	return topology.Distance(from.rack, from.host, to.rack, to.dn.Host)
}

// enoughRacks tells whether replicas on these DataNodes keep HDFS's rule: two
// racks at least, if there are as many.
func (m *blockMap) enoughRacks(nodes []*node, replication int) bool {
	if replication < 2 || len(nodes) == 0 || !m.manyRacks() {
		return true
	}
	return slices.ContainsFunc(nodes, func(n *node) bool { return n.rack != nodes[0].rack })
}

// manyRacks tells whether live DataNodes are on more than one rack.
func (m *blockMap) manyRacks() bool {
	first := ""
	for _, n := range m.nodes {
		if n.alive && n.registered && n.inService() {
			if first == "" {
				first = n.rack
			} else if n.rack != first {
				return true
			}
		}
	}
	return false
}

// favoured finds the DataNodes that a client names as host:port or host.
func (m *blockMap) favoured(names []string) []*node {
	var out []*node
	for _, name := range names {
		host, port, err := net.SplitHostPort(name)
		if err != nil {
			host, port = name, ""
		}
		// Java writes an address that it has looked up as "name/address".
		before, after, looked := strings.Cut(host, "/")
		for _, n := range m.byIndex {
			at := n.dn.Host == before || n.dn.Hostname == before || looked && n.dn.Host == after
			if m.nodes[n.dn.UUID] == n && at && (port == "" || port == strconv.FormatUint(uint64(n.dn.Port), 10)) && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

// nodesNamed finds DataNodes that a client names. The caller has m.mu.
func (m *blockMap) nodesNamed(infos []*hdfspb.DatanodeInfoProto) []*node {
	var out []*node
	for _, info := range infos {
		if n := m.nodes[info.GetId().GetDatanodeUuid()]; n != nil {
			out = append(out, n)
		}
	}
	return out
}

func exclusion(lists ...[]*node) map[*node]bool {
	out := make(map[*node]bool)
	for _, l := range lists {
		for _, n := range l {
			out[n] = true
		}
	}
	return out
}

func uuids(nodes []*node) []string {
	out := make([]string, len(nodes))
	for i, n := range nodes {
		out[i] = n.dn.UUID
	}
	return out
}
