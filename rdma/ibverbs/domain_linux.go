//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// A work request has an identifier, which its completion brings back. It consists of
// 2 bits for the kind, 20 for the index of the queue pair or shared receive queue, 10
// that change whenever an index is used again, and 32 for the number of the request in
// its queue, or of the place in a shared receive queue.
const (
	kindProbe  = uint64(0) << 62
	kindSend   = uint64(1) << 62
	kindRecv   = uint64(2) << 62
	kindShared = uint64(3) << 62
	kindMask   = uint64(3) << 62

	indexBits       = 20
	indexShift      = 42
	generationShift = 32
	tagMask         = uint64(1)<<62 - 1<<generationShift
)

// domain implements [rdma.Domain]. It has the device open for itself, so that nothing
// that happens to it concerns other domains.
type domain struct {
	device *Device
	ctx    *verbs.Context
	pd     *verbs.PD
	first  *verbs.CQ // see [quirks.Driver.FirstQueue]; nil where there is none
	vector atomic.Uint32

	async     *os.File
	asyncDone chan struct{}
	events    domains.Events
	// sentinel hears that the device is being removed, if it has an address.
	sentinel *sentinel
	// empty is memory for requests that have none, on iWARP: see atLeastOne.
	empty *region

	// background has the goroutines that end queue pairs and free what the driver
	// lets go of late. watch and keepAlive, which end when closing is closed, are others.
	background sync.WaitGroup
	closing    chan struct{}
	sleepers   sleepers

	// pairs by index, for completions. The slice is replaced as a whole.
	table atomic.Pointer[[]*pairEntry]
	// Queue pairs that receive from a shared receive queue, by number.
	byNumber sync.Map
	// Shared receive queues by index.
	sharedTable atomic.Pointer[[]*sharedReceives]

	freed chan struct{} // closed when the device is

	members domains.Members[*queuePair, *sharedReceives, *completionQueue, *region]
	// By the members' lock:
	removed    error // why nothing works any more, if the device is gone
	lastCookie uint64
	cookies    map[uint64]any // what asynchronous events are about
	indices    []uint32       // free
}

type pairEntry struct {
	pair       atomic.Pointer[queuePair]
	generation uint32 // by the domain's lock
}

// OpenDomain implements [rdma.Device].
func (d *Device) OpenDomain(config rdma.DomainConfig) (rdma.Domain, error) {
	m := &domain{
		device:  d,
		cookies: make(map[uint64]any), freed: make(chan struct{}), closing: make(chan struct{}),
	}
	m.table.Store(new([]*pairEntry))
	m.sharedTable.Store(new([]*sharedReceives))
	if err := m.open(config); err != nil {
		return nil, fmt.Errorf("ibverbs: open a domain on %s: %w", d.attributes.Name, err)
	}
	if d.attributes.Class == rdma.ClassIWARP {
		m.empty = &region{domain: m}
		if err := m.empty.allocate(1); err != nil {
			return nil, errors.Join(fmt.Errorf("ibverbs: open a domain on %s: %w", d.attributes.Name, err), m.Close())
		}
	}
	return m, nil
}

func (m *domain) open(config rdma.DomainConfig) (err error) {
	lib, err := verbs.Load()
	if err != nil {
		return unavailable(err)
	}
	if err := m.device.manager.acquire(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			m.device.manager.release()
		}
	}()
	if m.ctx, err = lib.Open(m.device.attributes.Name, quirks.CallAuto); err != nil {
		return unavailable(err)
	}
	defer func() {
		if err != nil {
			_ = m.ctx.Close()
		}
	}()
	if depth := m.device.quirks.FirstQueue; depth > 0 {
		if m.first, err = m.ctx.CreateCQ(depth, 0, nil, 0); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				_ = m.first.Destroy()
			}
		}()
	}
	if m.pd, err = m.ctx.AllocPD(); err != nil {
		return err
	}
	if m.async, err = m.ctx.AsyncEventFile(); err != nil {
		_ = m.pd.Dealloc()
		return err
	}
	raw, err := m.async.SyscallConn()
	if err != nil {
		_ = m.async.Close()
		_ = m.pd.Dealloc()
		return err
	}
	m.events.Start(config.OnEvent)
	m.asyncDone = make(chan struct{})
	go m.listen(raw)
	m.sentinel = newSentinel(m)
	if m.device.provider.config.RetryCount == m.device.quirks.EndlessRetryCount {
		m.background.Go(m.watch)
	}
	if m.device.probes() {
		m.background.Go(m.keepAlive)
	}
	return nil
}

func (m *domain) Device() rdma.Device { return m.device }

func (m *domain) newCookie() uint64 {
	m.lastCookie++
	return m.lastCookie
}

// addPair gives a queue pair its place in the table. The lock is held.
func (m *domain) addPair(p *queuePair) {
	table := *m.table.Load()
	if len(m.indices) == 0 {
		grown := make([]*pairEntry, len(table), 2*len(table)+16)
		copy(grown, table)
		for i := len(table); i < cap(grown) && i < 1<<indexBits; i++ {
			grown = append(grown, &pairEntry{})
			m.indices = append(m.indices, uint32(i))
		}
		m.table.Store(&grown)
		table = grown
	}
	index := m.indices[0]
	m.indices = m.indices[1:]
	e := table[index]
	e.generation++
	p.tag = uint64(index)<<indexShift | uint64(e.generation&1023)<<generationShift
	e.pair.Store(p)
	m.members.AddPair(p, p.uses)
	m.cookies[p.cookie] = p
	for _, u := range p.usages() {
		u.hwUsers++
	}
	if p.shared != nil {
		m.byNumber.Store(p.number, p)
	}
}

// dropPair takes a queue pair out of the tables. From then on its queues can be closed
// and none of its completions is emitted.
func (m *domain) dropPair(p *queuePair) {
	m.members.Lock()
	defer m.members.Unlock()
	index := uint32(p.tag >> indexShift)
	(*m.table.Load())[index].pair.Store(nil)
	m.indices = append(m.indices, index)
	m.members.DropPair(p, p.uses)
	delete(m.cookies, p.cookie)
	if p.shared != nil {
		m.byNumber.CompareAndDelete(p.number, p)
	}
	// A poll that has found it in the table before ends before this returns.
	p.sendCQ.mu.Lock()
	p.sendCQ.mu.Unlock() //nolint:staticcheck // the passing through is the point
	p.endProbe()
	p.recvCQ.mu.Lock()
	p.recvCQ.mu.Unlock() //nolint:staticcheck // as above
}

// freePair destroys the device's object and, with the last of its users, the
// queues that the application has closed before.
func (m *domain) freePair(p *queuePair) {
	if err := p.hw.Destroy(); err != nil && m.removedError() == nil {
		m.device.provider.config.Logger.Warn("ibverbs cannot free a queue pair", "device", m.device.attributes.Name, "error", err)
	}
	_ = p.arena.Close()
	m.members.Lock()
	var free []func()
	for _, u := range p.usages() {
		if u.hwUsers--; u.hwUsers == 0 && u.closed {
			free = append(free, u.destroy)
		}
	}
	m.members.Unlock()
	for _, f := range free {
		f()
	}
}

// usage counts the uses of a device's completion queue or shared receive queue. The
// count is by the members' lock.
type usage struct {
	domain  *domain
	cookie  uint64
	destroy func() // frees what the driver has

	// hwUsers are the uses by queue pairs that the driver holds, among them those
	// that the application has closed.
	hwUsers int
	closed  bool
}

// usages are what the queue pair uses; one of them may be there twice.
func (p *queuePair) usages() []*usage {
	list := []*usage{&p.sendCQ.usage, &p.recvCQ.usage}
	if p.shared != nil {
		list = append(list, &p.shared.usage)
	}
	return list
}

// close is Close of such a queue. remove takes it out of the members, and end makes
// all use of the queue fail. The device's object goes with the last of its users.
func (u *usage) close(what string, remove func() (bool, error), end func()) error {
	m := u.domain
	m.members.Lock()
	was, err := remove()
	if err != nil || !was {
		m.members.Unlock()
		if err != nil {
			return fmt.Errorf("ibverbs: close a %s on %s: %w", what, m.device.attributes.Name, err)
		}
		return nil
	}
	u.closed = true
	delete(m.cookies, u.cookie)
	now := u.hwUsers == 0
	m.members.Unlock()
	end()
	if now {
		u.destroy()
	}
	return nil
}

func (m *domain) addShared(s *sharedReceives) {
	table := *m.sharedTable.Load()
	index := -1
	for i, each := range table {
		if each == nil || each.closed && each.hwUsers == 0 {
			index = i
			break
		}
	}
	grown := append([]*sharedReceives(nil), table...)
	if index < 0 {
		index = len(grown)
		grown = append(grown, nil)
	}
	grown[index] = s
	s.index = uint32(index)
	m.sharedTable.Store(&grown)
	m.members.Shared.Add(s)
	m.cookies[s.cookie] = s
}

// completed takes a completion from the device. q's lock is held.
func (m *domain) completed(q *completionQueue, wc *verbs.WC) {
	if wc.ID&kindMask == kindShared {
		m.completedShared(q, wc)
		return
	}
	table := *m.table.Load()
	index := wc.ID & tagMask >> indexShift
	if index >= uint64(len(table)) {
		return
	}
	p := table[index].pair.Load()
	if p == nil || p.tag != wc.ID&tagMask {
		return // of a queue pair that has been closed
	}
	switch kind := wc.ID & kindMask; {
	case kind == kindSend && p.sendCQ == q:
		p.sent(q, wc)
	case kind == kindRecv && p.recvCQ == q && p.shared == nil:
		p.received(q, wc)
	case kind == kindProbe && p.sendCQ == q:
		p.probed(wc)
	}
}

func (m *domain) completedShared(q *completionQueue, wc *verbs.WC) {
	table := *m.sharedTable.Load()
	index := wc.ID & tagMask >> indexShift
	if index >= uint64(len(table)) || table[index] == nil {
		return
	}
	id, ok := table[index].redeem(uint32(wc.ID))
	if !ok {
		return
	}
	found, _ := m.byNumber.Load(wc.QPNumber)
	p, _ := found.(*queuePair)
	if p == nil || p.recvCQ != q || p.shared != table[index] {
		m.device.provider.counters.lostCompletions.Add(1) // it came later than awaitShared waits
		return
	}
	p.endRecv(q, id, wc)
}

// queueFailed fails the queue pairs that use q. It does not wait.
func (m *domain) queueFailed(q *completionQueue, err error) {
	m.background.Go(func() {
		for _, p := range m.allPairs() {
			if p.sendCQ == q || p.recvCQ == q {
				p.fail(err, rdma.EventQueuePairError, true)
			}
		}
	})
}

func (m *domain) allPairs() []*queuePair {
	m.members.Lock()
	defer m.members.Unlock()
	return m.members.Pairs.List()
}

func (m *domain) removedError() error {
	m.members.Lock()
	defer m.members.Unlock()
	return m.removed
}

// watchPeriod is how often queue pairs are looked at that may have failed in silence.
const watchPeriod = 500 * time.Millisecond

// watch fails queue pairs that have failed in the driver and were not told of, see
// [quirks.Driver.EndlessRetryCount]. If nothing is posted here no completion tells
// either. The peer hears it by the refusal; where that is lost, and the peer repeats
// its request for ever, this side has to end the connection.
func (m *domain) watch() {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for {
		select {
		case <-m.closing:
			return
		case <-tick.C:
		}
		for _, p := range m.allPairs() {
			p.look()
		}
	}
}

// listen takes the device's asynchronous events.
func (m *domain) listen(raw syscall.RawConn) {
	defer close(m.asyncDone)
	for {
		var event verbs.AsyncEvent
		var ok bool
		var failed error
		err := raw.Read(func(uintptr) bool {
			event, ok, failed = m.ctx.AsyncEvent()
			return ok || failed != nil
		})
		if err != nil {
			return // closed
		}
		if !ok {
			if errors.Is(failed, syscall.EIO) || errors.Is(failed, syscall.ENODEV) {
				m.remove(failed)
				return
			}
			m.device.provider.config.Logger.Warn("ibverbs cannot read an asynchronous event", "device", m.device.attributes.Name, "error", failed)
			time.Sleep(10 * time.Millisecond) // it may last, and must not take a processor
			continue
		}
		m.members.Lock()
		about := m.cookies[event.Cookie]
		m.members.Unlock()
		m.ctx.AckAsyncEvent(event)
		m.happened(event, about)
	}
}

// happened acts on an asynchronous event.
func (m *domain) happened(event verbs.AsyncEvent, about any) {
	c := &m.device.provider.counters
	switch event.Type {
	case verbs.AsyncQPFatal, verbs.AsyncQPRequestError, verbs.AsyncQPAccessError:
		p, ok := about.(*queuePair)
		if !ok {
			break
		}
		why := fmt.Errorf("the device reports: %s", event.Type)
		if event.Type == verbs.AsyncQPFatal && m.device.attributes.Class == rdma.ClassIWARP {
			p.suspect(why) // the TCP connection has ended; the connection manager will say why
		} else {
			p.fail(why, rdma.EventQueuePairError, true)
		}
	case verbs.AsyncQPLastWQEReached:
		if p, ok := about.(*queuePair); ok {
			p.lastReceiveOnce.Do(func() { close(p.lastReceive) })
		}
	case verbs.AsyncCQError:
		if q, ok := about.(*completionQueue); ok {
			m.overrun(q)
		}
	case verbs.AsyncSRQLimitReached:
		if s, ok := about.(*sharedReceives); ok {
			m.events.Add(rdma.Event{Kind: rdma.EventReceiveLimit, SharedReceive: s})
		}
	case verbs.AsyncSRQError:
		if s, ok := about.(*sharedReceives); ok {
			for _, p := range m.allPairs() {
				if p.shared == s {
					p.fail(errors.New("its shared receive queue has failed"), rdma.EventQueuePairError, true)
				}
			}
		}
	case verbs.AsyncPortError:
		c.portsDown.Add(1)
		m.events.Add(rdma.Event{Kind: rdma.EventPortDown, Err: fmt.Errorf("ibverbs: port %d of %s is down; see its link: rdma link show", event.Port, m.device.attributes.Name)})
	case verbs.AsyncPortActive:
		m.events.Add(rdma.Event{Kind: rdma.EventPortUp})
	case verbs.AsyncDeviceFatal:
		m.remove(errors.New("the device reports a fatal error"))
	}
}

// overrun notes that the device dropped completions of q.
func (m *domain) overrun(q *completionQueue) {
	q.mu.Lock()
	first := !q.overrun
	q.overrun = true
	q.mu.Unlock()
	if !first {
		return
	}
	m.device.provider.counters.overruns.Add(1)
	m.events.Add(rdma.Event{Kind: rdma.EventCompletionOverrun, Completions: q, Err: fmt.Errorf("ibverbs: on %s: %w", m.device.attributes.Name, rdma.ErrOverrun)})
	for _, p := range m.allPairs() {
		if p.sendCQ == q || p.recvCQ == q {
			p.fail(rdma.ErrOverrun, rdma.EventQueuePairError, true)
		}
	}
	q.notify()
}

// remove gives up a device that is being removed, whose removal waits for that, or one
// that is dead. It does not wait.
func (m *domain) remove(why error) {
	err := fmt.Errorf("ibverbs: device %s is gone: %w: %w", m.device.attributes.Name, rdma.ErrUnavailable, why)
	m.members.Lock()
	if !m.members.Fail(err) {
		m.members.Unlock()
		return
	}
	m.removed = err
	m.background.Go(func() { m.letGo(err) })
	m.members.Unlock()
	m.device.provider.counters.devicesRemoved.Add(1)
	m.events.Add(rdma.Event{Kind: rdma.EventDeviceError, Err: err})
}

// letGo frees all that the driver has. The application's objects stay, and fail.
func (m *domain) letGo(err error) {
	var pairs sync.WaitGroup
	for _, p := range m.allPairs() {
		pairs.Go(func() {
			p.fail(err, rdma.EventQueuePairError, true)
			p.abandon()
		})
	}
	pairs.Wait()
	m.members.Lock()
	shared, queues, regions := m.members.Shared.List(), m.members.Completions.List(), m.members.Regions.List()
	m.members.Unlock()
	for _, s := range shared {
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
		s.destroy()
	}
	for _, q := range queues {
		q.mu.Lock()
		if q.err == nil {
			q.pollDevice()
			q.err = err
		}
		q.mu.Unlock()
		q.destroy()
	}
	for _, r := range regions {
		_ = r.deregister()
	}
	m.freeContext()
}

// freeContext closes the device, once.
func (m *domain) freeContext() {
	m.members.Lock()
	pd := m.pd
	m.pd = nil
	m.members.Unlock()
	if pd == nil {
		<-m.freed
		return
	}
	defer close(m.freed)
	if m.sentinel != nil {
		m.sentinel.close()
	}
	_ = m.async.Close()
	<-m.asyncDone
	m.sleepers.close()
	log := m.device.provider.config.Logger
	var err error
	if m.first != nil {
		err = m.first.Destroy()
	}
	if err = errors.Join(err, pd.Dealloc(), m.ctx.Close()); err != nil {
		log.Warn("ibverbs cannot close a device", "device", m.device.attributes.Name, "error", err)
	}
	if m.removedError() != nil {
		m.device.forgetContexts()
	}
	m.device.manager.release()
}

// Close implements [rdma.Domain].
func (m *domain) Close() error {
	first, err := m.members.Close((*queuePair).Close)
	if !first {
		return nil
	}
	close(m.closing)
	// Some drivers hold on to an attempt to connect for a while.
	free := make(chan struct{})
	go func() {
		defer close(free)
		m.background.Wait()
		m.freeContext()
		m.events.Stop()
	}()
	limit := m.device.provider.config.CloseTimeout
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-free:
	case <-timer.C:
		err = errors.Join(err, fmt.Errorf("%w: the driver has not given up a connection attempt within %v; the device is closed when it does", rdma.ErrTimeout, limit))
	}
	if err != nil {
		return fmt.Errorf("ibverbs: close a domain on %s: %w", m.device.attributes.Name, err)
	}
	return nil
}

// A sentinel is an identifier bound to the device that waits for the event of its
// removal. The kernel tells of that only by the connection manager.
type sentinel struct {
	domain *domain
	id     verbs.CMID
	cookie uint64
	once   sync.Once
}

func newSentinel(m *domain) *sentinel {
	s := &sentinel{domain: m}
	for _, a := range m.device.addresses() {
		id, cookie, err := m.device.manager.create(s)
		if err != nil {
			return nil
		}
		if id.Bind(netip.AddrPortFrom(a, 0)) == nil && id.DeviceName() == m.device.attributes.Name {
			s.id, s.cookie = id, cookie
			return s
		}
		_ = m.device.manager.destroy(id, cookie)
	}
	return nil
}

func (s *sentinel) handle(event verbs.CMEvent) {
	if event.Type == verbs.CMDeviceRemoval {
		s.domain.remove(errors.New("it is being removed"))
	}
}

func (s *sentinel) close() {
	s.once.Do(func() { _ = s.domain.device.manager.destroy(s.id, s.cookie) })
}

// deadline makes an error of a context's end.
func deadline(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", rdma.ErrTimeout, err)
	}
	return err
}
