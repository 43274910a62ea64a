package rdmanet

import (
	"errors"
	"fmt"
)

// kind is what a message on an endpoint means. docs/rdmanet.md defines the
// messages; a number is never given a second meaning.
type kind uint8

const (
	kindOpen   kind = 1 // the dialer opens a connection
	kindData   kind = 2 // bytes of the connection
	kindFin    kind = 3 // the sender will write no more
	kindStop   kind = 4 // the sender will read no more
	kindClose  kind = 5 // both, and the sender's last message of the connection
	kindRetire kind = 6 // the listener asks the dialer not to reuse the endpoint
)

func (k kind) String() string {
	switch k {
	case kindOpen:
		return "OPEN"
	case kindData:
		return "DATA"
	case kindFin:
		return "FIN"
	case kindStop:
		return "STOP"
	case kindClose:
		return "CLOSE"
	case kindRetire:
		return "RETIRE"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// A tag is the kind in its 4 high bits and the number of the connection in its
// 28 low ones. Connections of an endpoint are numbered from 1; after
// maxStream the endpoint is not reused.
const (
	streamBits = 28
	maxStream  = 1<<streamBits - 1
)

func tagOf(k kind, stream uint32) uint32 { return uint32(k)<<streamBits | stream }

var errProtocol = errors.New("the peer broke the stream protocol")

// parse takes a message apart and checks whatever does not depend on the state
// of the connection.
func parse(tag uint32, size int) (kind, uint32, error) {
	k, stream := kind(tag>>streamBits), tag&maxStream
	switch k {
	case kindOpen, kindFin, kindStop, kindClose, kindRetire:
		if size != 0 {
			return 0, 0, fmt.Errorf("%w: %v carries %d bytes", errProtocol, k, size)
		}
	case kindData:
		if size == 0 {
			return 0, 0, fmt.Errorf("%w: %v carries nothing", errProtocol, k)
		}
	default:
		return 0, 0, fmt.Errorf("%w: message of unknown %v", errProtocol, k)
	}
	if stream == 0 && k != kindRetire {
		return 0, 0, fmt.Errorf("%w: %v for connection 0", errProtocol, k)
	}
	return k, stream, nil
}
