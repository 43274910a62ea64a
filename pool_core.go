package verbena

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/backoff"
	"github.com/verbena-data/verbena/internal/lane"
)

// A poolCore is what pools of endpoints and of what is made of endpoints have in
// common. C is what is handed out.
type poolCore[C lane.Conn] struct {
	r     *Runtime
	cfg   PoolConfig
	share int // requests that use one at a time
	rules Rules
	// A way is an order of transports that some rules make, or none does. Its place
	// by that of the rule that decides; the last one is for no rule.
	ways []poolWay
	way  []int

	// Pauses between looks for a better transport that was left for a passing reason,
	// or for one that may last.
	soon, later backoff.Policy

	wrap     func(context.Context, *Endpoint, *poolSession) (C, error) // of a new endpoint; closes it if it fails
	endpoint func(C) *Endpoint
	closed   func(C) // waits for what ends with the endpoint; may be nil

	ctx    context.Context // ends with the pool
	cancel context.CancelFunc
	looks  sync.WaitGroup // for better transports

	mu    sync.RWMutex
	ended bool
	peers map[poolKey]*poolPeer[C]
	sweep int         // peers at which those are forgotten that have nothing
	past  lane.Counts // of lanes that are gone
}

// A poolWay is an order of transports, and the first rule that makes it.
type poolWay struct {
	order []string
	rule  *Rule
}

// A poolSession has endpoints of its own, to each of which begin says who calls.
type poolSession struct {
	begin func(context.Context, *Caller) (any, error) // nil: nobody says so
	ended bool                                        // guarded by the pool's mu
}

// A poolKey names what endpoints are shared by: an address, and a session or none.
type poolKey struct {
	addr    string
	session *poolSession
}

// A poolPeer is an address with its lanes, by way. Rules that cannot decide for the
// address are told apart once.
type poolPeer[C lane.Conn] struct {
	about []bool // by rule
	lanes []*poolLane[C]
}

// A poolLane is the endpoints to a peer over a way.
type poolLane[C lane.Conn] struct {
	*lane.Lane[C]
	core *poolCore[C]
	key  poolKey
	way  *poolWay

	mu     sync.Mutex
	sought []string // transports that the background is after
}

// firstSweep is the number of peers at which a pool first forgets idle ones.
const firstSweep = 1024

func newPoolCore[C lane.Conn](r *Runtime, cfg PoolConfig, share int, wrap func(context.Context, *Endpoint, *poolSession) (C, error), endpoint func(C) *Endpoint) (*poolCore[C], error) {
	numbered := cfg.Name == ""
	cfg, err := cfg.withDefaults()
	if err == nil {
		_, err = r.newDialer("", cfg.Service, cfg.Dial)
	}
	if err != nil {
		return nil, fmt.Errorf("verbena: pool %s: %w", cfg.Name, err)
	}
	p := &poolCore[C]{
		r: r, cfg: cfg, share: share, wrap: wrap, endpoint: endpoint, peers: map[poolKey]*poolPeer[C]{}, sweep: firstSweep,
		soon: betterPauses, later: returnPauses,
	}
	transports := r.cfg.transports()
	if d := (&dialer{wanted: cfg.Dial.Transport}); d.auto() {
		p.rules = slices.Concat(cfg.Dial.Rules, r.cfg.Rules)
	} else {
		transports = []string{cfg.Dial.Transport}
	}
	for i := range len(p.rules) + 1 {
		var rule *Rule
		if i < len(p.rules) {
			rule = p.rules.named(i)
		}
		order, _ := rule.order(transports)
		at := slices.IndexFunc(p.ways, func(w poolWay) bool { return slices.Equal(w.order, order) })
		if at < 0 {
			at = len(p.ways)
			p.ways = append(p.ways, poolWay{order, rule})
		}
		p.way = append(p.way, at)
	}
	p.ctx, p.cancel = context.WithCancel(r.ctx)
	if p.cfg.Name, err = r.addPool(cfg.Name, numbered, p); err != nil {
		p.cancel()
		return nil, err
	}
	return p, nil
}

// get returns a connection for one request. The caller puts it back.
func (p *poolCore[C]) get(ctx context.Context, key poolKey, intent Intent) (*lane.Held[C], error) {
	if intent == (Intent{}) {
		intent = p.cfg.Dial.Intent
	}
	for {
		l, err := p.lane(key, intent)
		var h *lane.Held[C]
		if err == nil {
			if h, err = l.Get(ctx); err == nil {
				return h, nil
			}
		}
		if errors.Is(err, lane.ErrClosed) {
			if !p.over(key.session) {
				continue // the lane was forgotten meanwhile
			}
			err = ErrClosed
		}
		return nil, fmt.Errorf("verbena: pool %s: %s: %w", p.cfg.Name, key.addr, err)
	}
}

// over tells whether the pool has ended, or a session of it.
func (p *poolCore[C]) over(s *poolSession) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.ended || s != nil && s.ended
}

// rule returns the place of the rule that decides, or of none.
func (p *poolCore[C]) rule(peer *poolPeer[C], intent Intent) int {
	operation := intent.operation(p.cfg.Service)
	for i := range p.rules {
		if peer.about[i] && p.rules[i].wants(operation, intent.Size) {
			return i
		}
	}
	return len(p.rules)
}

func (p *poolCore[C]) lane(key poolKey, intent Intent) (*poolLane[C], error) {
	p.mu.RLock()
	if peer := p.peers[key]; peer != nil && !p.ended {
		if l := peer.lanes[p.way[p.rule(peer, intent)]]; l != nil {
			p.mu.RUnlock()
			return l, nil
		}
	}
	p.mu.RUnlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || key.session != nil && key.session.ended {
		return nil, ErrClosed
	}
	peer := p.peers[key]
	if peer == nil {
		if len(p.peers) >= p.sweep {
			p.forget()
		}
		peer = p.newPeer(key.addr)
		p.peers[key] = peer
	}
	at := p.way[p.rule(peer, intent)]
	if peer.lanes[at] == nil {
		peer.lanes[at] = p.newLane(key, &p.ways[at])
	}
	return peer.lanes[at], nil
}

func (p *poolCore[C]) newPeer(addr string) *poolPeer[C] {
	peer := &poolPeer[C]{about: make([]bool, len(p.rules)), lanes: make([]*poolLane[C], len(p.ways))}
	for i := range p.rules {
		peer.about[i] = p.rules[i].about(addr)
	}
	return peer
}

// forget drops peers to which there is nothing. It needs mu.
func (p *poolCore[C]) forget() {
	for key, peer := range p.peers {
		left := 0
		for i, l := range peer.lanes {
			switch {
			case l == nil:
			case l.Forget():
				p.past.Add(l.Stats().Counts)
				peer.lanes[i] = nil
			default:
				left++
			}
		}
		if left == 0 {
			delete(p.peers, key)
		}
	}
	p.sweep = max(firstSweep, 2*len(p.peers))
}

func (p *poolCore[C]) newLane(key poolKey, way *poolWay) *poolLane[C] {
	l := &poolLane[C]{core: p, key: key, way: way}
	l.Lane = lane.New(lane.Config[C]{
		Most: p.cfg.Endpoints, Share: p.share, Idle: p.cfg.IdleTimeout, DialTimeout: p.cfg.DialTimeout,
		Pause: p.cfg.pauses().Pause, Proven: p.cfg.MaxBackoff,
		Dial: l.dial,
		Close: func(ctx context.Context, c C) {
			ctx, cancel := context.WithTimeout(ctx, p.r.cfg.Linger)
			defer cancel()
			e := p.endpoint(c)
			if err := e.closeWithin(ctx); err != nil {
				p.r.cfg.Logger.Debug("endpoint of a pool not closed in order", "pool", p.cfg.Name, "error", err)
			}
			if p.closed != nil {
				p.closed(c)
			}
		},
		KeepFor: func(c C, idle time.Duration) time.Duration { return p.endpoint(c).KeepFor(idle) },
		Lost:    func(c C) bool { return !errors.Is(p.endpoint(c).Err(), ErrClosed) },
		Cheap:   remembered,
	})
	return l
}

// remembered tells whether a dial failed for what was known without asking anybody,
// and will be known for a while.
func remembered(err error) bool {
	var legacy *LegacyPeerError
	return errors.As(err, &legacy) && time.Now().Before(legacy.Until)
}

// dial sets up an endpoint for the lane.
func (l *poolLane[C]) dial(ctx context.Context) (c C, err error) {
	p := l.core
	d, err := p.r.newDialer(l.key.addr, p.cfg.Service, p.cfg.Dial)
	if err != nil {
		return c, d.error(err)
	}
	d.rule, d.avoid = l.way.rule, l.avoided()
	e, err := d.run(ctx)
	if err != nil {
		return c, err
	}
	if c, err = p.wrap(ctx, e, l.key.session); err == nil {
		l.seek(e)
	}
	return c, err
}

func (p *poolCore[C]) explain(addr string, intent Intent) (rule string, transports []string) {
	if intent == (Intent{}) {
		intent = p.cfg.Dial.Intent
	}
	i := p.rule(p.newPeer(addr), intent)
	if i < len(p.rules) {
		rule = p.rules.named(i).String()
	}
	return rule, slices.Clone(p.ways[p.way[i]].order)
}

// all lists the lanes. It needs mu, at least to read.
func (p *poolCore[C]) all() (list []*poolLane[C]) {
	for _, peer := range p.peers {
		for _, l := range peer.lanes {
			if l != nil {
				list = append(list, l)
			}
		}
	}
	return list
}

// drain ends the pool. Requests may end until the first context does; what endpoints
// have still to hand over has until the second one ends, or the linger.
func (p *poolCore[C]) drain(requests, handing context.Context) error {
	p.mu.Lock()
	p.ended = true
	lanes := p.all()
	p.mu.Unlock()
	p.cancel()
	p.looks.Wait()
	err := p.drainLanes(requests, handing, lanes)
	p.r.removePool(p.cfg.Name)
	return err
}

// end ends a session as drain ends the pool.
func (p *poolCore[C]) end(requests, handing context.Context, s *poolSession) error {
	p.mu.Lock()
	s.ended = true
	lanes := p.all()
	p.mu.Unlock()
	lanes = slices.DeleteFunc(lanes, func(l *poolLane[C]) bool { return l.key.session != s })
	err := p.drainLanes(requests, handing, lanes)
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, peer := range p.peers {
		if key.session != s {
			continue
		}
		delete(p.peers, key)
		for _, l := range peer.lanes {
			if l != nil {
				p.past.Add(l.Stats().Counts)
			}
		}
	}
	return err
}

func (p *poolCore[C]) drainLanes(requests, handing context.Context, lanes []*poolLane[C]) error {
	errs := make([]error, len(lanes))
	var wg sync.WaitGroup
	for i, l := range lanes {
		wg.Go(func() {
			if err := l.Drain(requests, handing); err != nil {
				errs[i] = fmt.Errorf("verbena: pool %s: %s: %w", p.cfg.Name, l.key.addr, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close implements io.Closer for the runtime.
func (p *poolCore[C]) Close() error {
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.drain(now, context.Background()) // the caller wanted it so
	return nil
}

// stats are the pool's numbers.
func (p *poolCore[C]) stats() EndpointPoolStats {
	p.mu.RLock()
	defer p.mu.RUnlock()
	s := EndpointPoolStats{Name: p.cfg.Name, Service: p.cfg.Service, Peers: len(p.peers)}
	counts := p.past
	for _, l := range p.all() {
		one := l.Stats()
		s.Open, s.Busy, s.Waiting = s.Open+one.Open, s.Busy+one.Busy, s.Waiting+one.Waiting
		counts.Add(one.Counts)
	}
	s.PoolCounts = PoolCounts(counts)
	return s
}

func (p *poolCore[C]) peerStats() (list []PoolPeerStats) {
	p.mu.RLock()
	for _, l := range p.all() {
		s := l.Stats()
		one := PoolPeerStats{
			Addr: l.key.addr, Transports: slices.Clone(l.way.order), Rule: l.rule(), Sought: l.avoided(),
			Open: s.Open, Busy: s.Busy, Waiting: s.Waiting, Failures: s.Failures, Next: s.Next, PoolCounts: PoolCounts(s.Counts),
		}
		list = append(list, one)
	}
	p.mu.RUnlock()
	slices.SortFunc(list, func(a, b PoolPeerStats) int {
		if c := strings.Compare(a.Addr, b.Addr); c != 0 {
			return c
		}
		return slices.Compare(a.Transports, b.Transports)
	})
	return list
}
