package engine

import (
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// Ready is the kind of the initiator's ready-to-receive message.
type Ready uint8

const (
	ReadyNone Ready = iota
	ReadyWrite
	ReadyRead
	ReadySend
)

// Local is what this side brings into the set-up.
type Local struct {
	Revision uint8 // wire.Revision1 or wire.Revision2
	IRD, ORD int   // Reads served and asked for at a time
	// Markers asks the peer to put markers into what it sends.
	Markers bool
	// NoCRC leaves it to the peer whether there are checksums.
	NoCRC bool
	// Ready lists the ready-to-receive messages that this side offers or takes,
	// the best first. Without any there is no peer-to-peer mode.
	Ready []Ready
	// SpeakFirst lets the responder outside of peer-to-peer mode send at once.
	SpeakFirst bool
}

// Params is what a set-up has agreed on.
type Params struct {
	Initiator bool
	CRC       bool
	// SendMarkers is what the peer asked for, ReceiveMarkers this side.
	SendMarkers, ReceiveMarkers bool
	IRD, ORD                    int
	// Ready is what the initiator sends before anything else.
	Ready Ready
	// SpeakFirst lets a responder send before the initiator has.
	SpeakFirst bool
	// MaxULPDU bounds what is sent in one FPDU; the set-up does not fix it.
	MaxULPDU int
}

// SetupError is a set-up that cannot lead to a connection.
type SetupError struct {
	// Cause is what a Terminate would say; the zero value means that none is due.
	Cause  wire.Cause
	Reason string
}

func (e *SetupError) Error() string { return "mpa: " + e.Reason }

// ErrRejected is a Reply that refuses.
var ErrRejected = errors.New("mpa: the peer rejected the connection")

// Request makes the frame that opens a connection.
func Request(local Local, private []byte) wire.Setup {
	request := wire.Setup{CRC: !local.NoCRC, Markers: local.Markers, Revision: local.Revision, Private: private}
	if local.Revision >= wire.Revision2 {
		e := &wire.Enhanced{IRD: depth(local.IRD), ORD: depth(local.ORD)}
		for _, kind := range local.Ready {
			e.PeerToPeer = true
			offer(e, kind)
		}
		request.Enhanced = e
	}
	return request
}

// Answer makes the Reply to a Request. On an error the reply refuses.
func Answer(request *wire.Setup, local Local, private []byte) (wire.Setup, Params, error) {
	params := Params{CRC: request.CRC || !local.NoCRC, IRD: local.IRD, ORD: local.ORD,
		SendMarkers: request.Markers, ReceiveMarkers: local.Markers}
	reply := wire.Setup{Reply: true, CRC: params.CRC, Markers: local.Markers, Revision: request.Revision, Private: private}
	refuse := func(reason string) (wire.Setup, Params, error) {
		r := Refuse(request, nil)
		return r, params, &SetupError{wire.MPASetup, reason}
	}
	if request.Revision != wire.Revision1 && request.Revision != wire.Revision2 {
		return refuse(fmt.Sprintf("revision %d of the Request is unknown, this side has 1 and 2", request.Revision))
	}
	r := request.Enhanced
	params.SpeakFirst = local.SpeakFirst && (r == nil || !r.PeerToPeer)
	if r == nil {
		return reply, params, nil
	}
	params.ORD = agree(local.ORD, r.IRD)
	e := &wire.Enhanced{IRD: depth(local.IRD), ORD: depth(params.ORD)}
	if r.IRD == wire.NotNegotiated || r.ORD == wire.NotNegotiated {
		// The peer leaves both to the applications.
		e.IRD, e.ORD = wire.NotNegotiated, wire.NotNegotiated
	}
	if r.PeerToPeer && len(local.Ready) > 0 {
		e.PeerToPeer = true
		for _, kind := range local.Ready {
			if offers(r, kind) {
				params.Ready = kind
				break
			}
		}
		if params.Ready == ReadyNone {
			return refuse("the peer wants peer-to-peer mode and offers no ready-to-receive message that this side takes")
		}
		offer(e, params.Ready)
	}
	reply.Enhanced = e
	return reply, params, nil
}

// offer adds a kind of ready-to-receive message to a header.
func offer(e *wire.Enhanced, kind Ready) {
	switch kind {
	case ReadyWrite:
		e.ReadyWrite = true
	case ReadyRead:
		e.ReadyRead = true
	case ReadySend:
		e.ReadySend = true
	}
}

// offers tells whether a header has a kind of ready-to-receive message.
func offers(e *wire.Enhanced, kind Ready) bool {
	switch kind {
	case ReadyWrite:
		return e.ReadyWrite
	case ReadyRead:
		return e.ReadyRead
	case ReadySend:
		return e.ReadySend
	}
	return false
}

// Refuse makes a Reply that rejects the Request.
func Refuse(request *wire.Setup, private []byte) wire.Setup {
	reply := wire.Setup{Reply: true, CRC: request.CRC, Reject: true, Revision: request.Revision, Private: private}
	if reply.Revision != wire.Revision1 && reply.Revision != wire.Revision2 {
		reply.Revision = wire.Revision2
	}
	if r := request.Enhanced; r != nil {
		e := *r
		reply.Enhanced = &e
	}
	return reply
}

// Conclude reads the Reply to a Request of this side. A rejection wraps
// [ErrRejected] and says, where the Reply shows it, what the peer may have minded.
func Conclude(request, reply *wire.Setup, local Local) (Params, error) {
	params := Params{Initiator: true, CRC: request.CRC || reply.CRC, IRD: local.IRD, ORD: local.ORD,
		SendMarkers: reply.Markers, ReceiveMarkers: request.Markers}
	if reply.Reject {
		switch {
		case reply.Revision < request.Revision:
			return params, fmt.Errorf("%w: it has revision %d of MPA and the Request had %d", ErrRejected, reply.Revision, request.Revision)
		case request.Markers:
			return params, fmt.Errorf("%w: the Request asked for markers, which it may not have", ErrRejected)
		}
		return params, ErrRejected
	}
	switch {
	case reply.Revision != request.Revision:
		return params, &SetupError{wire.MPASetup, fmt.Sprintf(
			"the Reply has revision %d, the Request had %d", reply.Revision, request.Revision)}
	case request.Enhanced == nil:
		return params, nil
	case reply.Enhanced == nil:
		return params, &SetupError{wire.MPASetup, "the Reply lacks the enhanced header that the Request had"}
	}
	e := reply.Enhanced
	if e.ORD != wire.NotNegotiated && int(e.ORD) > local.IRD {
		return params, &SetupError{wire.MPAInsufficientIRD, fmt.Sprintf(
			"the peer wants %d Reads outstanding, this side offered %d", e.ORD, local.IRD)}
	}
	params.ORD = agree(local.ORD, e.IRD)
	if !e.PeerToPeer {
		return params, nil
	}
	// Linux siw answers the offer of a Send with a Write, and does not survive a
	// Terminate for it: whatever the peer chose will do.
	for _, kinds := range [][]Ready{local.Ready, {ReadyWrite, ReadyRead, ReadySend}} {
		for _, kind := range kinds {
			if offers(e, kind) {
				params.Ready = kind
				return params, nil
			}
		}
	}
	return params, &SetupError{wire.MPANoReadyToReceiveModes, "the peer wants peer-to-peer mode and chose no ready-to-receive message"}
}

// depth is a number of Reads as the enhanced header carries it.
func depth(n int) uint16 { return uint16(min(max(n, 0), wire.NotNegotiated-1)) }

// agree bounds this side's Reads by what the peer serves.
func agree(ord int, ird uint16) int {
	if ird == wire.NotNegotiated {
		return ord
	}
	return min(ord, int(ird))
}
