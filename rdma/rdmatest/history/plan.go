package history

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/verbena-data/verbena/rdma"
)

// A Role is which end of a link this is.
type Role int

const (
	Initiator Role = iota // connects
	Target                // accepts
)

func (r Role) String() string {
	if r == Target {
		return "target"
	}
	return "initiator"
}

const (
	maxMessages = 48 // of a round and direction, beside the two that end the round
	maxSteps    = 192
	controls    = 4 // receives beside those for random messages
	maxPosters  = 3
)

// The exposed memory of an end is three regions with different rights. Its local
// memory is two regions that no peer may reach.
const (
	partAll = iota
	partReadable
	partWritable
	exposedParts

	localParts = 2
)

// exposedPart returns where a part of the exposed memory lies.
func exposedPart(part, area int) span {
	return [...]span{partAll: {0, area / 2}, partReadable: {area / 2, area * 3 / 4}, partWritable: {area * 3 / 4, area}}[part]
}

func localPart(part, area int) span {
	return span{part * area / localParts, (part + 1) * area / localParts}
}

// exposedRights are the remote rights of a part.
func exposedRights(part int, atomics bool) rdma.Access {
	access := [...]rdma.Access{
		partAll:      rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic,
		partReadable: rdma.AccessRemoteRead,
		partWritable: rdma.AccessLocalWrite | rdma.AccessRemoteWrite,
	}[part]
	if !atomics {
		access &^= rdma.AccessRemoteAtomic
	}
	return access
}

// terms are what both ends have agreed on. The arrays are by role.
type terms struct {
	seed     uint64
	rounds   int
	area     int // bytes of the local and of the exposed memory of an end
	class    [2]rdma.Class
	caps     [2]rdma.Capabilities
	sendSGE  [2]int
	readSGE  [2]int
	inline   [2]int
	depth    [2]int // send queue
	slot     [2]int // bytes of each receive
	mayTell  bool   // both devices tell by its own status that a message was too long
	laxReads bool   // a device goes on after a Read that it must refuse
	// oneWayReads says that only the initiator reads.
	oneWayReads bool
	unfenced    bool // no request of a round is fenced
	endingBy    ending
}

// can tells whether both devices have the capabilities.
func (t *terms) can(c rdma.Capabilities) bool { return t.caps[0].Has(c) && t.caps[1].Has(c) }

// An ending is how a link ends, in its last round.
type ending struct {
	kind endingKind
	by   Role // which end closes, or sends what is refused
	// close closes the queue pair instead of disconnecting it.
	close bool
}

type endingKind int

const (
	endsInOrder  endingKind = iota // after the last round
	endsAbruptly                   // in the middle of it
	endsRefused                    // by a request that the peer must refuse
	endsTooLong                    // by a message that is longer than its receive
	endingKinds
)

func (k endingKind) String() string {
	return [...]string{"in order", "abruptly", "by a refused access", "by a message that is too long"}[k]
}

func planEnding(t *terms) ending {
	random := rand.New(rand.NewPCG(t.seed, 1))
	e := ending{by: Role(random.IntN(2)), close: random.IntN(2) == 0}
	switch random.IntN(8) {
	case 0, 1:
		e.kind = endsInOrder
	case 2, 3:
		e.kind = endsAbruptly
	case 4, 5, 6:
		e.kind = endsRefused
	default:
		e.kind = endsTooLong
	}
	return e
}

type span struct{ from, to int }

func (s span) length() int { return s.to - s.from }

func overlaps(spans []span, s span) bool {
	for _, each := range spans {
		if s.from < each.to && each.from < s.to {
			return true
		}
	}
	return false
}

type stepKind uint8

const (
	stepPost   stepKind = iota
	stepFill            // this side's processor writes the span
	stepSettle          // wait until all that is posted is done, and compare what was fetched
	stepWrong           // a post that PostSend must refuse
)

// A step is one thing that a poster does. Places are offsets in the areas of memory.
type step struct {
	kind                  stepKind
	op                    rdma.Opcode
	flags                 rdma.Flags
	immediate             uint32
	compareAdd, swap      uint64
	part                  int // of the peer's exposed memory
	at                    int
	length                int
	firstSpan, spanCount  int // of direction.spans
	refusal               refusal
	wrong                 int    // which wrong post
	fill                  uint64 // seed of a fill
	dataFrom, dataTo      int    // of direction.data: what a fetch brings, or a Write puts
	putsAt                int    // where a Write or atomic changes the exposed memory
	putsFrom, putsTo      int    // of direction.data: what it puts there
	changesPeer, fetching bool
}

// A message is what a receive must get.
type message struct {
	op        rdma.Opcode
	length    int
	immediate bool
	value     uint32
	from, to  int // of direction.data: the payload; a Write's is elsewhere
}

// A poster is what one goroutine posts in a round.
type poster struct {
	steps    []step
	messages []message
}

// A direction is the requests of one end to the other, and the model of the
// memory that they are about.
type direction struct {
	t    *terms
	from Role

	local, exposed []byte // what the memory must hold
	// What the memory held when the round began. A round that fails leaves each byte
	// as it was or as some request made it.
	localBefore, exposedBefore []byte

	posters [maxPosters]poster
	count   int // of posters in this round
	spans   []span
	data    []byte
	// brokenAt is the step that must fail, or -1. Such a round has one poster.
	brokenAt int

	random *rand.Rand
	source *rand.PCG
	use    [maxPosters]use
}

// use is the memory that a poster's outstanding requests touch. Planning keeps new
// requests out of it, so that the model's order is the only one that can be seen.
type use struct {
	sources, targets []span // in the local memory
	looked           []span // in the exposed memory, read by fetches that no fence has followed yet
	late             []span // targets of those fetches
}

func (u *use) clear() {
	u.sources, u.targets, u.looked, u.late = u.sources[:0], u.targets[:0], u.looked[:0], u.late[:0]
}

func newDirection(t *terms, from Role) *direction {
	d := &direction{t: t, from: from, local: make([]byte, t.area), exposed: make([]byte, t.area),
		localBefore: make([]byte, t.area), exposedBefore: make([]byte, t.area), source: rand.NewPCG(0, 0)}
	d.random = rand.New(d.source)
	pattern(d.local, t.seed+uint64(from))
	pattern(d.exposed, t.seed+2+uint64(from))
	return d
}

// window is the share of a part that one poster uses: posters are not ordered.
func (d *direction) window(part span, poster int) span {
	size := part.length() / d.count &^ 7
	return span{part.from + poster*size, part.from + (poster+1)*size}
}

// plan plans a round.
func (d *direction) plan(round int) {
	d.source.Seed(d.t.seed, uint64(round)<<8|uint64(d.from)<<1|1<<40)
	random := d.random
	copy(d.localBefore, d.local)
	copy(d.exposedBefore, d.exposed)
	d.spans, d.data, d.brokenAt = d.spans[:0], d.data[:0], -1
	last := round == d.t.rounds-1
	end := d.t.endingBy
	broken := last && (end.kind == endsRefused || end.kind == endsTooLong) && end.by == d.from
	d.count = 1
	if !broken && random.IntN(6) == 0 {
		d.count = 2 + random.IntN(maxPosters-1)
	}
	for p := range d.count {
		d.posters[p].steps, d.posters[p].messages = d.posters[p].steps[:0], d.posters[p].messages[:0]
		d.use[p].clear()
	}
	steps := 1 + random.IntN(maxSteps)
	breaks := -1
	if broken {
		breaks = random.IntN(steps)
		steps = min(steps, breaks+1+random.IntN(6))
	}
	messages := 0
	for i := range steps {
		p := random.IntN(d.count)
		if i == breaks {
			d.planBroken(p)
			continue
		}
		d.planStep(p, &messages)
	}
	for p := range d.count {
		d.signalOften(p)
	}
}

// signalOften signals at least one request in half a send queue, and the last one,
// so that the queue never fills with requests that nothing completes.
func (d *direction) signalOften(p int) {
	every := max(1, d.t.depth[d.from]/2/d.count)
	quiet, last := 0, -1
	steps := d.posters[p].steps
	for i := range steps {
		s := &steps[i]
		switch s.kind {
		case stepPost:
			last = i
			if quiet++; quiet >= every {
				s.flags |= rdma.Signaled
			}
			if s.flags&rdma.Signaled != 0 {
				quiet = 0
			}
		case stepSettle:
			if last >= 0 {
				steps[last].flags |= rdma.Signaled
			}
		}
	}
	if last >= 0 && last != d.brokenAt {
		steps[last].flags |= rdma.Signaled
	}
}

// requests counts the requests of a round, and the two messages that end it.
func (d *direction) requests() int {
	n := 2
	for p := range d.count {
		for i := range d.posters[p].steps {
			if d.posters[p].steps[i].kind == stepPost {
				n++
			}
		}
	}
	return n
}

// planStep adds a step to what a poster does. It adds none if the request that it draws
// would touch memory that the poster's outstanding requests use in another order.
func (d *direction) planStep(p int, messages *int) {
	random, u, out := d.random, &d.use[p], &d.posters[p]
	switch random.IntN(40) {
	case 0:
		if d.brokenAt < 0 {
			out.steps = append(out.steps, step{kind: stepSettle})
			u.clear()
		}
		return
	case 1:
		out.steps = append(out.steps, step{kind: stepWrong, wrong: random.IntN(wrongPosts)})
		return
	case 2:
		d.planFill(p)
		return
	}
	r := d.draw(p, d.randomOp(*messages < maxMessages))
	if !r.fits(u) || r.fence && d.t.unfenced {
		d.spans = d.spans[:r.firstSpan]
		return
	}
	d.complete(&r, u)
	if r.op < rdma.OpWrite || r.op == rdma.OpWriteImmediate {
		*messages++
	}
	if d.brokenAt < 0 {
		d.carryOut(&r.step, out)
	}
	u.add(&r)
	out.steps = append(out.steps, r.step)
	if r.flags&rdma.Inline != 0 && random.IntN(2) == 0 {
		d.fill(p, r.spans[random.IntN(len(r.spans))])
	}
}

// A draft is a request that is being planned.
type draft struct {
	step
	fetches bool   // a Read or an atomic operation, which writes the spans
	atomic  bool   // an atomic operation
	spans   []span // in the local memory
	there   span   // in the exposed memory
	fence   bool   // it has to wait for fetches before it
	inline  bool   // it may be posted inline
}

// draw draws a request: where it reads and writes, and how long it is.
func (d *direction) draw(p int, op rdma.Opcode) draft {
	random, t := d.random, d.t
	r := draft{fetches: op >= rdma.OpRead, atomic: op > rdma.OpRead}
	part := partAll
	if d.brokenAt < 0 && !r.atomic && op >= rdma.OpWrite && random.IntN(3) == 0 {
		if part = partWritable; r.fetches {
			part = partReadable
		}
	}
	place := d.window(exposedPart(part, t.area), p)
	length := d.randomLength()
	if op < rdma.OpWrite {
		length = min(length, t.slot[1-d.from])
	}
	length = min(length, place.length())
	at := place.from + random.IntN(place.length()-length+1)
	entries := 1
	if r.atomic {
		length, at = 8, place.from+random.IntN(place.length()/8)*8
	} else {
		most := t.sendSGE[d.from]
		if r.fetches {
			most = t.readSGE[d.from]
		}
		entries += random.IntN(most)
	}
	first := len(d.spans)
	length -= d.drawSpans(p, entries, length, r.atomic)
	r.spans, r.there = d.spans[first:], span{at, at + length}
	r.step = step{op: op, part: part, at: at, length: length, firstSpan: first, spanCount: len(r.spans)}
	r.inline = !r.fetches && length <= t.inline[d.from]
	return r
}

// drawSpans draws the local memory of a request, an entry for each span. It returns how
// many bytes of length the last one had no room for.
func (d *direction) drawSpans(p, entries, length int, atomic bool) (left int) {
	random := d.random
	left = length
	for i := range entries {
		piece := left
		if i < entries-1 {
			piece = random.IntN(left + 1)
		}
		home := d.window(localPart(random.IntN(localParts), d.t.area), p)
		piece = min(piece, home.length())
		from := home.from + random.IntN(home.length()-piece+1)
		if atomic {
			from &^= 7
		}
		d.spans = append(d.spans, span{from, from + piece})
		left -= piece
	}
	return left
}

// fits tells whether the request may go out beside the outstanding ones: whether the bytes
// are the same in every order in which devices may carry them out. It sets fence if that
// takes a fence, and clears inline if the data must not be taken when it is posted.
func (r *draft) fits(u *use) bool {
	for i, s := range r.spans {
		if r.fetches {
			// A fetch writes its target at any time until it completes.
			if overlaps(u.sources, s) || overlaps(u.targets, s) || overlaps(r.spans[:i], s) {
				return false
			}
			continue
		}
		// A request may send what an earlier fetch brings if it is fenced. It may not do
		// so inline: PostSend takes inline data before the fetch is done.
		r.fence = r.fence || overlaps(u.late, s)
		r.inline = r.inline && !overlaps(u.targets, s)
	}
	if r.op == rdma.OpWrite || r.op == rdma.OpWriteImmediate || r.atomic {
		// A fetch without a fence behind it may read after this request has written.
		r.fence = r.fence || overlaps(u.looked, r.there)
	}
	return true
}

// complete draws what is left of a request that fits: flags, immediate and operands.
func (d *direction) complete(r *draft, u *use) {
	random := d.random
	if r.fence || !d.t.unfenced && random.IntN(10) == 0 {
		r.flags |= rdma.Fence
		u.late, u.looked = u.late[:0], u.looked[:0]
	}
	if random.IntN(3) == 0 {
		r.flags |= rdma.Signaled
	}
	if random.IntN(3) == 0 {
		r.flags |= rdma.Solicited
	}
	if r.inline && random.IntN(2) == 0 {
		r.flags |= rdma.Inline
	}
	if r.op == rdma.OpSendImmediate || r.op == rdma.OpWriteImmediate {
		r.immediate = random.Uint32()
	}
	if r.atomic {
		r.compareAdd, r.swap = random.Uint64(), random.Uint64()
		if r.op == rdma.OpCompareSwap && random.IntN(2) == 0 {
			r.compareAdd = binary.NativeEndian.Uint64(d.exposed[r.at:])
		}
	}
}

// add notes what an outstanding request touches. An inline one has been read already.
func (u *use) add(r *draft) {
	switch {
	case r.fetches:
		u.targets = append(u.targets, r.spans...)
		u.late = append(u.late, r.spans...)
		u.looked = append(u.looked, r.there)
	case r.flags&rdma.Inline == 0:
		u.sources = append(u.sources, r.spans...)
	}
}

func (d *direction) randomOp(messages bool) rdma.Opcode {
	for {
		op := rdma.Opcode(d.random.IntN(int(rdma.OpFetchAdd) + 1))
		switch {
		case !messages && (op < rdma.OpWrite || op == rdma.OpWriteImmediate),
			op == rdma.OpSendImmediate && !d.t.can(rdma.CapSendImmediate),
			op == rdma.OpWriteImmediate && !d.t.can(rdma.CapWriteImmediate),
			op == rdma.OpRead && d.t.oneWayReads && d.from == Target,
			op > rdma.OpRead && !d.t.can(rdma.CapAtomics):
			continue
		}
		return op
	}
}

func (d *direction) randomLength() int {
	switch n := d.random.IntN(64); {
	case n < 40:
		return d.random.IntN(64)
	case n < 50:
		return d.random.IntN(256)
	case n < 62:
		return d.random.IntN(2048)
	}
	return d.random.IntN(d.t.area / 4)
}

// carryOut carries a request out on the model, and notes the message that it makes.
func (d *direction) carryOut(s *step, out *poster) {
	spans := d.spans[s.firstSpan:][:s.spanCount]
	s.dataFrom = len(d.data)
	switch s.op {
	case rdma.OpSend, rdma.OpSendImmediate, rdma.OpWrite, rdma.OpWriteImmediate:
		for _, piece := range spans {
			d.data = append(d.data, d.local[piece.from:piece.to]...)
		}
		if s.op >= rdma.OpWrite {
			s.changesPeer, s.putsAt, s.putsFrom, s.putsTo = true, s.at, s.dataFrom, len(d.data)
			copy(d.exposed[s.at:], d.data[s.dataFrom:])
		}
	case rdma.OpRead:
		d.data = append(d.data, d.exposed[s.at:s.at+s.length]...)
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		was := binary.NativeEndian.Uint64(d.exposed[s.at:])
		now := was + s.compareAdd
		if s.op == rdma.OpCompareSwap {
			if now = was; was == s.compareAdd {
				now = s.swap
			}
		}
		binary.NativeEndian.PutUint64(d.exposed[s.at:], now)
		s.changesPeer, s.putsAt, s.putsFrom = true, s.at, len(d.data)
		d.data = binary.NativeEndian.AppendUint64(d.data, now)
		s.putsTo = len(d.data)
		s.dataFrom = len(d.data)
		d.data = binary.NativeEndian.AppendUint64(d.data, was)
	}
	s.dataTo = len(d.data)
	if s.op >= rdma.OpRead {
		s.fetching = true
		from := d.data[s.dataFrom:s.dataTo]
		for _, piece := range spans {
			from = from[copy(d.local[piece.from:piece.to], from):]
		}
		return
	}
	if s.op == rdma.OpWrite {
		return
	}
	m := message{op: rdma.OpRecv, length: s.length, from: s.dataFrom, to: s.dataTo}
	if s.op == rdma.OpWriteImmediate {
		m.op, m.from, m.to = rdma.OpRecvWriteImmediate, 0, 0
	}
	if s.op != rdma.OpSend {
		m.immediate, m.value = true, s.immediate
	}
	out.messages = append(out.messages, m)
}

// planFill has this side's processor write to memory that no request touches.
func (d *direction) planFill(p int) {
	home := d.window(localPart(d.random.IntN(localParts), d.t.area), p)
	length := min(d.randomLength(), home.length())
	from := home.from + d.random.IntN(home.length()-length+1)
	d.fill(p, span{from, from + length})
}

func (d *direction) fill(p int, s span) {
	u := &d.use[p]
	if overlaps(u.sources, s) || overlaps(u.targets, s) {
		return
	}
	f := step{kind: stepFill, fill: d.random.Uint64(), firstSpan: len(d.spans), spanCount: 1, dataFrom: len(d.data)}
	d.spans = append(d.spans, s)
	at := len(d.data)
	d.data = append(d.data, make([]byte, s.length())...)
	pattern(d.data[at:], f.fill)
	f.dataTo = len(d.data)
	copy(d.local[s.from:s.to], d.data[at:])
	d.posters[p].steps = append(d.posters[p].steps, f)
}

// A refusal is why the peer must refuse a request.
type refusal uint8

const (
	refuseNothing refusal = iota
	refuseKey
	refuseStale
	refuseForeign
	refuseBounds
	refuseBefore
	refuseWrap
	refuseRight
	refuseUnaligned
	refuseTooLong
	refusals
)

func (r refusal) String() string {
	return [...]string{"nothing", "a wrong key", "the key of a closed region", "the key of another domain", "past the end", "before the start",
		"wrapping around", "a missing right", "an unaligned atomic", "a message that is too long"}[r]
}

// planBroken plans the request that the peer must refuse, which ends the link.
func (d *direction) planBroken(p int) {
	random, t, out := d.random, d.t, &d.posters[p]
	s := step{part: partAll, firstSpan: len(d.spans)}
	if random.IntN(2) == 0 {
		s.flags |= rdma.Signaled
	}
	if t.endingBy.kind == endsTooLong {
		s.op, s.refusal = rdma.OpSend, refuseTooLong
		s.length = t.slot[1-d.from] + 1 + random.IntN(64)
	} else {
		for s.op < rdma.OpWrite || s.op == rdma.OpRead && t.laxReads {
			s.op = d.randomOp(true)
		}
		isAtomic := s.op > rdma.OpRead
		for {
			s.refusal = refuseKey + refusal(random.IntN(int(refuseUnaligned)))
			if s.refusal == refuseUnaligned && !isAtomic {
				continue
			}
			break
		}
		s.length = 16 + 8*random.IntN(64)
		if isAtomic {
			s.length = 8
		}
		place := exposedPart(partAll, t.area)
		s.at = place.from + random.IntN((place.length()-s.length)/8)*8
		switch s.refusal {
		case refuseUnaligned:
			s.at += 1 + random.IntN(7)
		case refuseBounds:
			if s.at = place.to - s.length + 1 + random.IntN(s.length); isAtomic {
				s.at = place.to
			}
		case refuseBefore:
			if s.at = place.from - 1 - random.IntN(s.length); isAtomic {
				s.at = place.from - 8
			}
		case refuseRight:
			switch {
			case s.op == rdma.OpRead:
				s.part = partWritable
			case isAtomic && random.IntN(2) == 0:
				s.part = partWritable
			default:
				s.part = partReadable
			}
			s.at = exposedPart(s.part, t.area).from
		}
	}
	// Nothing outstanding writes the local place; if the request fetches, nothing
	// reads it either. After 100 tries everything outstanding is waited for.
	u := &d.use[p]
	for try := 0; ; try++ {
		home := localPart(random.IntN(localParts), t.area)
		from := (home.from + random.IntN(home.length()-s.length+1)) &^ 7
		place := span{from, from + s.length}
		if try == 100 {
			out.steps = append(out.steps, step{kind: stepSettle})
			u.clear()
		}
		if s.op >= rdma.OpRead && (overlaps(u.sources, place) || overlaps(u.targets, place)) || overlaps(u.late, place) {
			continue
		}
		d.spans = append(d.spans, place)
		break
	}
	s.spanCount = 1
	if s.op >= rdma.OpRead {
		u.targets = append(u.targets, d.spans[s.firstSpan])
	} else {
		u.sources = append(u.sources, d.spans[s.firstSpan])
	}
	d.brokenAt = len(out.steps)
	out.steps = append(out.steps, s)
}

// A change names the regions that an end closes after a round and replaces by new
// ones; -1 is none.
type change struct{ exposed, local int }

// planChange plans what an end replaces after a round, and changes the model so. out
// is the direction from that end, in the direction to it.
func planChange(t *terms, who Role, round int, out, in *direction) change {
	random := rand.New(rand.NewPCG(t.seed, uint64(round)<<8|uint64(who)<<1|1<<41))
	c := change{-1, -1}
	if random.IntN(4) == 0 {
		c.exposed = random.IntN(exposedParts)
		place := exposedPart(c.exposed, t.area)
		memory := in.exposed[place.from:place.to]
		clear(memory)
		pattern(memory[len(memory)/2:], t.seed^uint64(round))
	}
	if random.IntN(6) == 0 {
		c.local = random.IntN(localParts)
		place := localPart(c.local, t.area)
		memory := out.local[place.from:place.to]
		clear(memory)
		pattern(memory[len(memory)/2:], t.seed^uint64(round))
	}
	return c
}

// fetches tells whether an operation brings data.
func fetches(op rdma.Opcode) bool { return op >= rdma.OpRead && op <= rdma.OpFetchAdd }

// planRevocation tells whether an end revokes a key of its peer by the message that
// ends its requests of a round.
func planRevocation(t *terms, who Role, round int) bool {
	random := rand.New(rand.NewPCG(t.seed, uint64(round)<<8|uint64(who)<<1|1<<42))
	return t.can(rdma.CapSendInvalidate) && random.IntN(4) == 0
}

// pattern is data that differs from place to place and from seed to seed.
func pattern(b []byte, seed uint64) {
	x := seed*0x9E3779B97F4A7C15 | 1
	for len(b) >= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(x >> (8*i + 8))
	}
}
