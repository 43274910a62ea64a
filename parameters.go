package verbena

import (
	"encoding/binary"
	"fmt"
)

// parametersSize is the length of what both ends tell each other when an
// endpoint is set up. Private data of some devices holds little more.
const parametersSize = 16

const protocolRevision = 1

// parameters is what one end has room for. docs/endpoints.md has the layout.
type parameters struct {
	window     uint16 // eager messages and offers it has receives for
	control    uint16 // receives beside them for credit updates
	chunks     uint16 // offers it handles at a time
	receive    uint32 // bytes of a posted receive buffer
	maxMessage uint32 // bytes
}

func (p parameters) append(b []byte) []byte {
	b = append(b, protocolRevision, 0)
	b = binary.BigEndian.AppendUint16(b, p.window)
	b = binary.BigEndian.AppendUint16(b, p.control)
	b = binary.BigEndian.AppendUint16(b, p.chunks)
	b = binary.BigEndian.AppendUint32(b, p.receive)
	return binary.BigEndian.AppendUint32(b, p.maxMessage)
}

// parseParameters takes the parameters at the start of b, which may go on with
// what later revisions add.
func parseParameters(b []byte) (parameters, error) {
	if len(b) < parametersSize {
		return parameters{}, fmt.Errorf("%w: endpoint parameters of %d bytes, not %d", ErrProtocol, len(b), parametersSize)
	}
	if b[0] != protocolRevision {
		return parameters{}, fmt.Errorf("%w: endpoint protocol revision %d, this side has %d", ErrProtocol, b[0], protocolRevision)
	}
	p := parameters{
		window:     binary.BigEndian.Uint16(b[2:]),
		control:    binary.BigEndian.Uint16(b[4:]),
		chunks:     binary.BigEndian.Uint16(b[6:]),
		receive:    binary.BigEndian.Uint32(b[8:]),
		maxMessage: binary.BigEndian.Uint32(b[12:]),
	}
	if p.maxMessage == 0 || p.maxMessage > maxMessageLimit {
		return p, fmt.Errorf("%w: greatest message of %d bytes", ErrProtocol, p.maxMessage)
	}
	return p, nil
}
