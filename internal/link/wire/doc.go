// Package wire is the codec of what the two ends of an endpoint tell each other:
// the parameters before anything else, and the header of every message on a queue
// pair. docs/endpoints.md has the layouts.
//
// It holds no state. What can be judged from the bytes alone is judged here; what
// depends on what came before is package link's. All integers are big-endian.
package wire

import "errors"

// ErrProtocol says that the peer sent what the protocol does not allow.
var ErrProtocol = errors.New("verbena: peer broke the protocol")
