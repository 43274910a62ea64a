package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena"
)

// Service is the control protocol's name in the hello. docs/perf.md defines it.
const Service = "verbena.perf/1"

// Control messages. Each is one message of an endpoint: the kind is its tag, the
// body JSON.
const (
	kindPlan    uint32 = 1 // client: Plan
	kindOffer   uint32 = 2 // server: offer
	kindMemory  uint32 = 3 // client, then server: memory
	kindMark    uint32 = 4 // client: the measurement begins; server: it has read its clock
	kindStop    uint32 = 5 // client: the measurement is over
	kindResult  uint32 = 6 // server: result
	kindRefusal uint32 = 7 // server: refusal; ends the session
)

var kindNames = map[uint32]string{
	kindPlan: "plan", kindOffer: "offer", kindMemory: "memory",
	kindMark: "mark", kindStop: "stop", kindResult: "result", kindRefusal: "refusal",
}

// maxControl is the longest body of a control message, in bytes.
const maxControl = 16 << 10

// tokenSize is the length of the token that ties a connection to its session.
const tokenSize = 16

// An offer tells where the client connects.
type offer struct {
	// Address is what the device's Connect takes; empty for devices that run on
	// streams to the server's own port.
	Address string `json:"address,omitempty"`
	Token   []byte `json:"token"`
}

// memory is the region that an end lets the other reach. It has the blocks of all
// connections, one after the other.
type memory struct {
	Address uint64 `json:"address"`
	Key     uint32 `json:"key"`
}

// result is what the server saw.
type result struct {
	CPU        int64 `json:"cpu_ns"`     // from mark to stop
	Messages   int64 `json:"messages"`   // taken by its loops
	Verified   int64 `json:"verified"`   // bytes that were checked
	Resident   int64 `json:"resident"`   // bytes of the process
	Registered int64 `json:"registered"` // bytes of the session
}

type refusal struct {
	Reason string `json:"reason"`
}

// A RefusedError is what a server answers to a plan that it cannot carry out.
type RefusedError struct{ Server, Reason string }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("perf: the server at %s: %s", e.Server, e.Reason)
}

var errControl = errors.New("perf: control message not understood")

// decode reads the body of a control message: one JSON value, with known fields
// only.
func decode(body []byte, into any) error {
	if len(body) > maxControl {
		return fmt.Errorf("%w: %d bytes, at most %d", errControl, len(body), maxControl)
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errControl, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w: something follows it", errControl)
	}
	return nil
}

// decodePlan reads and checks a plan.
func decodePlan(body []byte) (*Plan, error) {
	p := new(Plan)
	if err := decode(body, p); err != nil {
		return nil, err
	}
	if err := p.check(); err != nil {
		return nil, err
	}
	return p, nil
}

func decodeOffer(body []byte) (*offer, error) {
	o := new(offer)
	if err := decode(body, o); err != nil {
		return nil, err
	}
	if len(o.Token) != tokenSize || len(o.Address) > 256 {
		return nil, fmt.Errorf("%w: token of %d bytes, address of %d", errControl, len(o.Token), len(o.Address))
	}
	return o, nil
}

// A control is one end of the control protocol.
type control struct{ endpoint *verbena.Endpoint }

func (c control) send(ctx context.Context, kind uint32, body any) error {
	out, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("perf: %s: %w", kindNames[kind], err)
	}
	return c.endpoint.Send(ctx, kind, out)
}

// receive waits for a message of a kind and returns its body.
func (c control) receive(ctx context.Context, kind uint32) ([]byte, error) {
	m, err := c.endpoint.Receive(ctx)
	if err != nil {
		if err == io.EOF {
			err = fmt.Errorf("perf: %s ended the session while a %s was due: its log may say why", c.endpoint.RemoteAddr(), kindNames[kind])
		}
		return nil, err
	}
	defer m.Release()
	if len(m.Bytes()) > maxControl {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", errControl, len(m.Bytes()), maxControl)
	}
	body := append([]byte(nil), m.Bytes()...)
	switch {
	case m.Tag == kind:
		return body, nil
	case m.Tag == kindRefusal:
		var r refusal
		if err := decode(body, &r); err != nil {
			return nil, err
		}
		return nil, &RefusedError{Server: c.endpoint.RemoteAddr().String(), Reason: r.Reason}
	}
	return nil, fmt.Errorf("%w: kind %d while a %s was due", errControl, m.Tag, kindNames[kind])
}
