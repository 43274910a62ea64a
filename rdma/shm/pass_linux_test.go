package shm

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

const passSize = 1 << 16

// A chain is an owner of memory, a relay, and a reader to which the relay passes it on.
// Each has a device of its own, as processes have.
type chain struct {
	owner, relay, reader *side
	up, down             *queuePair // the relay's, to the owner and to the reader
}

func newChain(t *testing.T) *chain {
	t.Helper()
	return newChainOf(t, passSize)
}

// newChainOf is newChain with so many bytes at the owner and the reader.
func newChainOf(t *testing.T, size int) *chain {
	t.Helper()
	c := &chain{owner: newSide(t, openDevice(t, Config{}), size), relay: newSide(t, openDevice(t, Config{}), passSize), reader: newSide(t, openDevice(t, Config{}), size)}
	c.connectUp(t)
	c.connectDown(t)
	return c
}

func (c *chain) connectUp(t *testing.T) {
	t.Helper()
	c.owner.qp = c.owner.pair(nil)
	c.up = c.relay.pair(nil).(*queuePair)
	connect(t, c.relay.domain.Device(), c.owner.qp, c.up)
}

func (c *chain) connectDown(t *testing.T) {
	t.Helper()
	c.reader.qp = c.reader.pair(nil)
	c.down = c.relay.pair(nil).(*queuePair)
	connect(t, c.reader.domain.Device(), c.down, c.reader.qp)
}

// view has the relay view the beginning of a region of the owner.
func (c *chain) view(t *testing.T, r rdma.Region) rdma.Pin {
	t.Helper()
	from := rdma.Remote{Address: r.Address(), Key: r.Key()}
	c.relay.qp = c.up
	c.relay.send(rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: c.relay.sge(0, 8), Remote: from})
	c.relay.expect(1, rdma.StatusSuccess)
	_, pin, ok := c.up.View(from, len(r.Bytes()))
	if !ok {
		t.Fatal("no view of memory that was read just now")
	}
	return pin
}

// pass has the relay pass on what it views.
func (c *chain) pass(t *testing.T, pin rdma.Pin) (r rdma.Region, use rdma.Pin) {
	t.Helper()
	eventually(t, "the memory can be passed on", func() (ok bool) {
		r, use, ok = c.up.PassOn(pin)
		return ok
	})
	return r, use
}

func (c *chain) read(r rdma.Region) rdma.SendRequest {
	return rdma.SendRequest{ID: 5, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: c.reader.sge(0, len(c.reader.memory.Bytes())), Remote: rdma.Remote{Address: r.Address(), Key: r.Key()}}
}

func (c *chain) readRight(t *testing.T, r rdma.Region, want []byte) {
	t.Helper()
	c.reader.send(c.read(r))
	c.reader.expect(5, rdma.StatusSuccess)
	if !bytes.Equal(c.reader.memory.Bytes(), want) {
		t.Fatal("the reader has other bytes")
	}
}

// The reader has the bytes from the owner's memory, may do nothing else there, and all is
// as before when nobody uses it any more.
func TestPassOn(t *testing.T) {
	withAlarms(t, false) // descriptors are counted
	c := newChain(t)
	region, err := c.owner.domain.Allocate(passSize, rdma.AccessRemoteRead|rdma.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	fill(region.Bytes(), 3)
	if err := errors.Join(c.up.Close(), c.owner.qp.Close()); err != nil {
		t.Fatal(err)
	}
	before := countHeld(t)
	c.connectUp(t)
	pin := c.view(t, region)
	if _, _, ok := c.up.PassOn(pin); ok {
		t.Error("memory is passed on that the owner has not been asked for")
	}
	passed, use := c.pass(t, pin)
	c.readRight(t, passed, region.Bytes())
	fill(region.Bytes(), 4)
	c.readRight(t, passed, region.Bytes())
	known := c.reader.qp.(*queuePair).peer.Load().find(want{value: passed.Key()})
	if got := mappedRights(t, known.memory); got != "r--s" {
		t.Errorf("what is passed on is mapped %s", got)
	}
	if _, _, ok := c.reader.qp.(*queuePair).View(c.read(passed).Remote, 8); ok {
		t.Error("a view of what is passed on, whose end nobody would tell")
	}
	into := make([]byte, 8)
	if c.reader.qp.(*queuePair).ReadNow(into, c.read(passed).Remote) {
		t.Error("a Read behind which nobody looks whether the memory was kept")
	}
	// No request of the relay may name it: its mapping goes with the last use.
	if _, err := c.down.PostSend([]rdma.SendRequest{{Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: passed, Length: 64}}}}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("the relay sends from it: %v", err)
	}
	// Nor does the reader pass it on in turn.
	if c.reader.qp.(*queuePair).askPass(passed.Key()); c.reader.qp.Err() != nil {
		t.Error(c.reader.qp.Err())
	}
	c.readRight(t, passed, region.Bytes())
	if all := &c.reader.qp.(*queuePair).passing; len(all.all) != 0 {
		t.Error("the reader passes it on in turn")
	}
	use.Release()
	pin.Release()
	if err := errors.Join(c.up.Close(), c.owner.qp.Close()); err != nil {
		t.Fatal(err)
	}
	c.reader.send(c.read(passed))
	c.reader.expect(5, rdma.StatusRemoteAccess)
	if err := errors.Join(c.down.Close(), c.reader.qp.Close()); err != nil {
		t.Fatal(err)
	}
	if n := c.relay.domain.(*domain).passed.Load(); n != 0 {
		t.Errorf("%d regions are passed on", n)
	}
	awaitHeld(t, before)
}

// Once the owner has begun to end its connection, no Read succeeds: it may have written to
// the memory. A use, and the region, last all the same.
func TestPassedOnByOneWhoseOwnerEnds(t *testing.T) {
	c := newChain(t)
	fill(c.owner.memory.Bytes(), 3)
	pin := c.view(t, c.owner.memory)
	passed, use := c.pass(t, pin)
	c.readRight(t, passed, c.owner.memory.Bytes())
	if err := c.owner.qp.Close(); err != nil {
		t.Fatal(err)
	}
	fill(c.owner.memory.Bytes(), 4)
	c.reader.send(c.read(passed))
	c.reader.expect(5, rdma.StatusRetryExceeded)
	<-c.reader.qp.Done()
	if err := c.reader.qp.Err(); !errors.Is(err, rdma.ErrDisconnected) {
		t.Errorf("error %v", err)
	}
	if err := c.up.Close(); err != nil {
		t.Error(err)
	}
	_ = bytes.Count(passed.Bytes(), []byte{0})
	use.Release()
	pin.Release()
}

// A Read that is under way while the owner ends and writes to its memory never succeeds with
// what was written.
func TestPassedOnIsNeverTorn(t *testing.T) {
	rounds := 100
	if testing.Short() {
		rounds = 30
	}
	const size = 4 << 20 // so that a Read takes longer than the end
	c := newChainOf(t, size)
	want := make([]byte, size)
	fill(want, 3)
	succeeded := 0
	for range rounds {
		copy(c.owner.memory.Bytes(), want)
		pin := c.view(t, c.owner.memory)
		passed, use := c.pass(t, pin)
		spinning, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			close(spinning)
			for n := 0; n < 1<<20 && c.down.inbox.access().Load()&1 == 0; n++ { // the reader is not inside
			}
			_ = c.owner.qp.Disconnect()
			clear(c.owner.memory.Bytes())
		}()
		<-spinning
		for ok := true; ok; {
			if _, err := c.reader.qp.PostSend([]rdma.SendRequest{c.read(passed)}); err != nil {
				t.Fatal(err)
			}
			if ok = c.reader.await().Status == rdma.StatusSuccess; ok {
				if succeeded++; !bytes.Equal(c.reader.memory.Bytes(), want) {
					t.Fatal("a Read succeeded with other bytes")
				}
			}
		}
		<-ended
		use.Release()
		pin.Release()
		for _, qp := range []rdma.QueuePair{c.owner.qp, c.up, c.down, c.reader.qp} {
			if err := qp.Close(); err != nil {
				t.Fatal(err)
			}
		}
		c.connectUp(t)
		c.connectDown(t)
	}
	t.Logf("%d Reads succeeded, %d failed", succeeded, rounds)
}

// The memory of an owner that was killed stays as it was, and is read on.
func TestPassedOnByOneWhoseOwnerIsKilled(t *testing.T) {
	if !startsItself() {
		t.Skip(emulated)
	}
	c := &chain{relay: newSide(t, openDevice(t, Config{}), (buffers+1)*bufferBytes), reader: newSide(t, openDevice(t, Config{}), passSize)}
	c.up = c.relay.pair(func(q *rdma.QueuePairConfig) { q.RecvDepth = buffers * 4 }).(*queuePair)
	c.relay.qp, c.relay.rotation = c.up, buffers
	remote := c.relay.start("lender", nil)
	c.connectDown(t)
	c.relay.await() // its message
	c.relay.qp = c.up
	c.relay.send(rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: c.relay.sge(0, 8), Remote: remote})
	c.relay.expect(1, rdma.StatusSuccess)
	_, pin, ok := c.up.View(remote, passSize)
	if !ok {
		t.Fatal("no view")
	}
	passed, use := c.pass(t, pin)
	c.relay.send(rdma.SendRequest{Op: rdma.OpSend})
	<-c.up.Done()
	want := make([]byte, passSize)
	fill(want, 9)
	c.readRight(t, passed, want)
	if err := c.up.Close(); err != nil {
		t.Error(err)
	}
	c.readRight(t, passed, want) // as long as somebody uses it
	use.Release()
	pin.Release()
	c.reader.send(c.read(passed))
	c.reader.expect(5, rdma.StatusRemoteAccess)
}

// The relay's end keeps the reader out, as from its own memory.
func TestPassedOnByOneThatEnds(t *testing.T) {
	c := newChain(t)
	pin := c.view(t, c.owner.memory)
	passed, use := c.pass(t, pin)
	c.readRight(t, passed, c.owner.memory.Bytes())
	reader := c.reader.qp.(*queuePair)
	known := reader.peer.Load().find(want{value: passed.Key()})
	if !reader.wasKept(known) {
		t.Error("what is passed on is not kept")
	}
	// As when it ends in the middle of a copy.
	c.down.setGate(gateClosed)
	if reader.wasKept(known) {
		t.Error("what is passed on is kept after the relay's gate was shut")
	}
	use.Release()
	pin.Release()
}

// Regions are passed on up to the limit, and others when these have gone.
func TestPassOnLimit(t *testing.T) {
	c := newChain(t)
	var regions []rdma.Region
	var uses []rdma.Pin
	var pins []rdma.Pin
	allocate := func() rdma.Pin {
		r, err := c.owner.domain.Allocate(4096, rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		regions = append(regions, r)
		pin := c.view(t, r)
		pins = append(pins, pin)
		return pin
	}
	for range maxPassed {
		_, use := c.pass(t, allocate())
		uses = append(uses, use)
	}
	more := allocate()
	for range 3 {
		if _, _, ok := c.up.PassOn(more); ok {
			t.Fatal("more regions are passed on than may be")
		}
	}
	c.up.passing.mu.Lock()
	n := len(c.up.passing.all)
	c.up.passing.mu.Unlock()
	if n != maxPassed || c.relay.domain.(*domain).passed.Load() != maxPassed {
		t.Errorf("%d are counted", n)
	}
	// The owner closes one that is not used, and one that is.
	uses[0].Release()
	for _, r := range regions[:2] {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, use := c.pass(t, more)
	use.Release()
	for _, use := range uses[1:] {
		use.Release()
	}
	for _, pin := range pins {
		pin.Release()
	}
	eventually(t, "the closed ones have gone", func() bool { return c.relay.domain.(*domain).passed.Load() == maxPassed-1 })
}

// A domain does not pass on more than it may either.
func TestPassOnLimitOfDomain(t *testing.T) {
	c := newChain(t)
	c.relay.domain.(*domain).passed.Store(maxPassedOfDomain)
	pin := c.view(t, c.owner.memory)
	defer pin.Release()
	if _, _, ok := c.up.PassOn(pin); ok || len(c.up.passing.all) != 0 || c.relay.domain.(*domain).passed.Load() != maxPassedOfDomain {
		t.Error("more regions are passed on than a domain may")
	}
	c.relay.domain.(*domain).passed.Store(0)
	_, use := c.pass(t, pin)
	use.Release()
}

// What may not be read by peers may not be passed on, nor what is not there.
func TestPassOnRefused(t *testing.T) {
	c := newChain(t)
	writable, err := c.owner.domain.Allocate(4096, rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	pin := c.view(t, c.owner.memory)
	defer pin.Release()
	for _, key := range []uint32{writable.Key(), c.owner.memory.Key() + 1} {
		other := &peerRegion{grant: pin.(*peerRegion).grant}
		other.key = key
		other.users.Store(1)
		c.up.passing.mu.Lock()
		entry := c.up.passing.begin(c.up, other)
		c.up.passing.mu.Unlock()
		if !c.up.askPass(key) {
			t.Fatal("the question was not sent")
		}
		eventually(t, "an answer has come", func() bool {
			c.up.conn.wantsMu.Lock()
			defer c.up.conn.wantsMu.Unlock()
			return len(c.up.conn.wants) == 0
		})
		c.up.passing.mu.Lock()
		if entry.region != nil {
			t.Errorf("the region of key %#x is passed on", key)
		}
		c.up.passing.mu.Unlock()
		c.up.passing.drop(entry)
	}
	if c.up.Err() != nil {
		t.Error(c.up.Err())
	}
}

// Peers of an older version are neither asked nor given anything of this.
func TestPassOnWithOlderPeers(t *testing.T) {
	c := newChain(t)
	pin := c.view(t, c.owner.memory)
	defer pin.Release()
	passed, use := c.pass(t, pin)
	defer use.Release()
	l, err := c.relay.domain.Device().Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	old := dialAttacker(t, l.Address())
	h, descriptors := old.hello()
	h.greatest = versionPassed - 1
	old.send(h.append(packetHello, nil), descriptors...)
	old.send([]byte{byte(packetReady)})
	qp := c.relay.pair(nil).(*queuePair)
	if err := accept(t.Context(), l, qp); err != nil {
		t.Fatal(err)
	}
	old.answer()
	if _, _, ok := qp.PassOn(pin); ok || qp.ReadsPassed() || len(qp.passing.all) != 0 {
		t.Error("an older peer is to pass memory on, or to read what is")
	}
	old.send(want{value: passed.Key()}.append(nil))
	if got := old.answer(); got != "region" {
		t.Errorf("an older reader is sent a %s", got)
	}
	if _, given := qp.granted.Load(passed.(*region).handle); given {
		t.Error("an older reader is given what is passed on")
	}
	old.send(want{pass: true, value: c.relay.memory.Key()}.append(nil))
	if got := old.answer(); got != "region" || qp.views.Load() != nil {
		t.Errorf("an older relay is sent a %s, or a promise", got)
	}
}

// What is of another user is not passed on, nor to another user.
func TestPassOnAmongOthers(t *testing.T) {
	a, b := connectOthers(t)
	if a.qp.(*queuePair).ReadsPassed() || b.qp.(*queuePair).ReadsPassed() {
		t.Error("memory is passed on to another user")
	}
	a.send(rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(0, 8), Remote: b.remote(0)})
	a.expect(1, rdma.StatusSuccess)
	_, pin, ok := a.qp.(*queuePair).View(b.remote(0), 8)
	if !ok {
		t.Fatal("no view")
	}
	defer pin.Release()
	if _, _, ok := a.qp.(*queuePair).PassOn(pin); ok || len(a.qp.(*queuePair).passing.all) != 0 {
		t.Error("another user's memory is passed on")
	}
	// One that asks all the same is refused.
	if !a.qp.(*queuePair).conn.want(want{pass: true, value: b.memory.Key()}) {
		t.Fatal("the question was not sent")
	}
	eventually(t, "an answer has come", func() bool {
		c := a.qp.(*queuePair).conn
		c.wantsMu.Lock()
		defer c.wantsMu.Unlock()
		return len(c.wants) == 0
	})
	if b.qp.(*queuePair).views.Load() != nil {
		t.Error("another user has been promised something")
	}
}

// An owner that answers with other memory than it has shown, or another's table, loses its
// connection.
func TestPassOnOfAnother(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, g *grant, kept *promise, files []int) []int{
		"memory": func(_ *testing.T, _ *grant, _ *promise, files []int) []int { return []int{files[1], files[1]} },
		"table":  func(_ *testing.T, _ *grant, _ *promise, files []int) []int { return []int{files[0], files[0]} },
		"length": func(_ *testing.T, g *grant, _ *promise, files []int) []int { g.length /= 2; return files },
		"state":  func(_ *testing.T, g *grant, _ *promise, files []int) []int { g.state += 2; return files },
		"rights": func(_ *testing.T, g *grant, _ *promise, files []int) []int {
			g.access = uint8(everything)
			return files
		},
		"descriptors": func(_ *testing.T, _ *grant, _ *promise, files []int) []int { return files[:1] },
		"no promise":  func(_ *testing.T, _ *grant, kept *promise, files []int) []int { kept.state = 2; return files },
	} {
		t.Run(name, func(t *testing.T) {
			c := newChain(t)
			pin := c.view(t, c.owner.memory)
			defer pin.Release()
			owner, r := c.owner.qp.(*queuePair), c.owner.memory.(*region)
			w := want{pass: true, value: r.key}
			c.up.passing.mu.Lock()
			c.up.passing.begin(c.up, pin.(*peerRegion))
			c.up.passing.mu.Unlock()
			c.up.conn.wantsMu.Lock()
			c.up.conn.wants = append(c.up.conn.wants, w)
			c.up.conn.wantsMu.Unlock()
			fd, err := r.file.OpenReadOnly()
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(fd)
			g := grant{want: w, found: true, handle: r.handle, key: r.key, access: uint8(rdma.AccessRemoteRead), address: r.base(), length: r.size, state: r.state}
			kept := promise{handle: r.handle, state: r.state}
			files := change(t, &g, &kept, []int{fd, owner.domain.tableFile.FD()})
			if err := owner.conn.write(appendPassed(nil, g, kept), files...); err != nil {
				t.Fatal(err)
			}
			<-c.up.Done()
			if err := c.up.Err(); !errors.Is(err, errPacket) {
				t.Errorf("error %v", err)
			}
		})
	}
}
