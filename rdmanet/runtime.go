package rdmanet

import (
	"context"

	"github.com/verbena-data/verbena"
)

// runtimeEndpoint is the runtime's endpoint as a session needs it.
type runtimeEndpoint struct{ *verbena.Endpoint }

func (e runtimeEndpoint) receive(ctx context.Context) (uint32, message, error) {
	m, err := e.Receive(ctx)
	if err != nil {
		return 0, nil, err
	}
	return m.Tag, m, nil
}

func (d *Dialer) dialEndpoint(ctx context.Context, address string) (endpoint, error) {
	service := d.Service
	if service == "" {
		service = DefaultService
	}
	ep, err := d.Runtime.Dial(ctx, address, service, verbena.DialConfig{Transport: d.Transport, Group: d.Group})
	if err != nil {
		return nil, err
	}
	return runtimeEndpoint{ep}, nil
}

// runtimeListener is the runtime's listener as a Listener needs it.
type runtimeListener struct{ *verbena.Listener }

func (l runtimeListener) acceptEndpoint(ctx context.Context) (endpoint, *verbena.Endpoint, error) {
	ep, err := l.Accept(ctx)
	if err != nil {
		return nil, nil, err
	}
	return runtimeEndpoint{ep}, ep, nil
}

// Selection tells which transport carries the connection, and why.
func (c *conn) Selection() verbena.Selection {
	if ep, ok := c.s.ep.(runtimeEndpoint); ok {
		return ep.Selection()
	}
	return verbena.Selection{}
}
