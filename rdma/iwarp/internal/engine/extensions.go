package engine

import (
	"fmt"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// Extensions is what is believed about the operations of RFC 7306.
type Extensions uint8

const (
	// ExtensionsNegotiated serves them, and uses them once the peer has announced
	// that it has them.
	ExtensionsNegotiated Extensions = iota
	// ExtensionsAssumed takes it for granted that the peer has them.
	ExtensionsAssumed
	// ExtensionsOff neither uses nor serves them.
	ExtensionsOff
)

// MPA does not negotiate the extensions. The initiator announces them in its
// first message, or in the one behind a ready-to-receive message that has no room
// for it; the responder answers with the same ([wire.Announcement]). Others take
// the announcement for a Write of no data and never answer. Whoever has heard
// nothing and needs to know sends a Read of no data, which everybody answers: an
// announcement would have come before the response.

// knowledge is what is known of the peer.
type knowledge uint8

const (
	unknown knowledge = iota
	known             // to have the extensions
	lacking
)

func extension(op rdma.Opcode) bool {
	return op == rdma.OpWriteImmediate || op == rdma.OpCompareSwap || op == rdma.OpFetchAdd
}

func (e *Engine) startExtensions(initiator bool) {
	switch e.cfg.Extensions {
	case ExtensionsAssumed:
		e.extended = known
	case ExtensionsOff:
		e.extended = lacking
		return
	}
	e.announce = initiator
}

// unextended refuses a request that the peer is known not to take.
func (e *Engine) unextended(op rdma.Opcode) error {
	switch {
	case e.cfg.Extensions == ExtensionsOff:
		return fmt.Errorf("%w: %s is switched off", rdma.ErrUnsupported, op)
	case e.extended == lacking || e.extended == unknown && e.params.ORD == 0:
		return fmt.Errorf("%w: %s: the peer has not announced RFC 7306", rdma.ErrUnsupported, op)
	}
	return nil
}

// decidable tells whether the next request, which needs the extensions, can be
// decided upon while it is not known that the peer has them.
func (e *Engine) decidable(pending uint64) bool {
	if e.extended == lacking {
		return e.head == e.next // what is before it is done and completes first
	}
	return !e.probing && pending < uint64(e.params.ORD)
}

// decide makes the current message a probe or fails the request r.
func (e *Engine) decide(r *request) {
	if e.extended == unknown {
		e.probing = true
		e.startRead(read{internal: true, probe: true}, rdma.Remote{})
		e.current.kind = messageReady
		return
	}
	e.failed, e.failure = e.next, rdma.StatusRemoteInvalid
	e.fail(fmt.Errorf("request %d is a %s and the peer does not have RFC 7306", r.id, r.op),
		&wire.Terminate{Cause: wire.RDMAPStreamCatastrophic})
}

// pickAnnouncement makes the current message the announcement.
func (e *Engine) pickAnnouncement() {
	m := &e.current
	m.active, m.kind, m.body, m.pieces, m.left = true, messageReady, nil, m.pieces[:0], 0
	m.segment = wire.Announcement(wire.FeatureExtensions)
	e.announce, e.announced = false, true
}

// heardAnnouncement is the peer's announcement, which is answered once.
func (e *Engine) heardAnnouncement(f wire.Features) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cfg.Extensions == ExtensionsOff || f&wire.FeatureExtensions == 0 {
		return
	}
	e.extended = known
	if !e.announced && !e.params.Initiator {
		e.announce = true
	}
	e.rx.kick = true
}

// probed is the response to a probe. It needs the lock.
func (e *Engine) probed() {
	if e.extended == unknown {
		e.extended = lacking
	}
}
