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
}

// Params is what a set-up has agreed on.
type Params struct {
	Initiator bool
	CRC       bool
	IRD, ORD  int
	// Ready is what the initiator sends before anything else.
	Ready Ready
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
	request := wire.Setup{CRC: true, Revision: local.Revision, Private: private}
	if local.Revision >= wire.Revision2 {
		request.Enhanced = &wire.Enhanced{
			PeerToPeer: true, ReadyWrite: true, ReadyRead: true,
			IRD: depth(local.IRD), ORD: depth(local.ORD),
		}
	}
	return request
}

// Answer makes the Reply to a Request. On an error the reply refuses.
func Answer(request *wire.Setup, local Local, private []byte) (wire.Setup, Params, error) {
	reply := wire.Setup{Reply: true, CRC: true, Revision: request.Revision, Private: private}
	params := Params{CRC: true, IRD: local.IRD, ORD: local.ORD}
	refuse := func(reason string) (wire.Setup, Params, error) {
		r := Refuse(request, nil)
		return r, params, &SetupError{wire.MPASetup, reason}
	}
	switch {
	case request.Revision != wire.Revision1 && request.Revision != wire.Revision2:
		return refuse(fmt.Sprintf("revision %d of the Request is unknown, this side has 1 and 2", request.Revision))
	case request.Markers:
		return refuse("the peer asks for markers, which this side does not send")
	}
	if r := request.Enhanced; r != nil {
		params.ORD = agree(local.ORD, r.IRD)
		e := &wire.Enhanced{IRD: depth(local.IRD), ORD: depth(params.ORD)}
		if r.PeerToPeer {
			e.PeerToPeer = true
			switch {
			case r.ReadyWrite:
				e.ReadyWrite, params.Ready = true, ReadyWrite
			case r.ReadyRead:
				e.ReadyRead, params.Ready = true, ReadyRead
			case r.ReadySend:
				e.ReadySend, params.Ready = true, ReadySend
			default:
				return refuse("the peer wants peer-to-peer mode and offers no ready-to-receive message")
			}
		}
		reply.Enhanced = e
	}
	return reply, params, nil
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

// Conclude reads the Reply to a Request of this side.
func Conclude(request, reply *wire.Setup, local Local) (Params, error) {
	params := Params{Initiator: true, CRC: request.CRC || reply.CRC, IRD: local.IRD, ORD: local.ORD}
	if reply.Reject {
		return params, ErrRejected
	}
	switch {
	case reply.Revision != request.Revision:
		return params, &SetupError{wire.MPASetup, fmt.Sprintf(
			"the Reply has revision %d, the Request had %d", reply.Revision, request.Revision)}
	case reply.Markers:
		return params, &SetupError{wire.MPALength, "the peer asks for markers, which this side does not send"}
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
	if e.PeerToPeer {
		switch {
		case e.ReadyWrite && request.Enhanced.ReadyWrite:
			params.Ready = ReadyWrite
		case e.ReadyRead && request.Enhanced.ReadyRead:
			params.Ready = ReadyRead
		case e.ReadySend && request.Enhanced.ReadySend:
			params.Ready = ReadySend
		default:
			return params, &SetupError{wire.MPANoReadyToReceiveModes,
				"the peer chose no ready-to-receive message that was offered"}
		}
	}
	return params, nil
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
