package verbena

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// A railDevice reaches the devices of its own rail, while its port is up.
type railDevice struct {
	*fake.Device
	rail string
	down atomic.Bool
}

func (d *railDevice) Addresses() []string {
	if d.down.Load() {
		return nil
	}
	return []string{d.Attributes().Name}
}

func (d *railDevice) Reaches(address string) error {
	name, _, _ := strings.Cut(address, ":")
	if !strings.HasPrefix(name, d.rail) {
		return fmt.Errorf("no route from rail %s", d.rail)
	}
	return nil
}

// A railProvider has a device on each of some rails.
type railProvider []*railDevice

func (railProvider) Name() string { return "rails" }

func (p railProvider) Devices(context.Context) ([]rdma.Device, error) {
	var list []rdma.Device
	for _, d := range p {
		list = append(list, d)
	}
	return list, nil
}

// Among several devices on each side those are taken that reach each other.
func TestChoiceOfDevice(t *testing.T) {
	network := fake.NewNetwork()
	rails := func(side string, names ...string) railProvider {
		var p railProvider
		for _, name := range names {
			c := fake.InfiniBand(name + "-" + side)
			c.Capabilities &^= rdma.CapStreams
			p = append(p, &railDevice{Device: network.NewDevice(c), rail: name})
		}
		return p
	}
	client, server := rails("client", "red", "green", "blue"), rails("server", "blue", "green", "grey")
	w := world{providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{client}, []rdma.Provider{server}
	}}
	p := w.pair(t, Config{}, ListenConfig{})
	carriedBy := func(want string) {
		t.Helper()
		a, b := p.connect(t, "rails")
		for _, e := range []*Endpoint{a, b} {
			q, ok := e.carrier.(*shell)
			if !ok {
				t.Fatalf("carried by %T", e.carrier)
			}
			if name := q.n.attributes.Name; !strings.HasPrefix(name, want) {
				t.Errorf("carried by %s, want %s", name, want)
			}
			if e.Selection().Device != q.n.attributes.Name {
				t.Errorf("the selection names %q", e.Selection().Device)
			}
		}
		if err := a.Send(p.ctx, 1, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		m, err := b.Receive(p.ctx)
		if err != nil || string(m.Bytes()) != "hello" {
			t.Fatal(err)
		}
		m.Release()
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
	carriedBy("blue")
	server[0].down.Store(true)
	carriedBy("green")
	client[1].down.Store(true)

	for range 2 {
		_, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: "rails"})
		var none *SelectionError
		if !errors.As(err, &none) {
			t.Fatalf("dialled over no rail: %v", err)
		}
		t.Log(none)
		for _, want := range []string{"no route from rail", "no port is up"} {
			if !strings.Contains(none.Error(), want) {
				t.Errorf("the reasons lack %q: %v", want, none)
			}
		}
		server[1].down.Store(true)
	}
	for _, d := range client {
		d.down.Store(true)
	}
	_, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Transport: "rails"})
	if err == nil || !strings.Contains(err.Error(), "not on this side") {
		t.Errorf("with all ports down: %v", err)
	}
	if e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{}); err != nil || e.Selection().Transport != TransportTCP {
		t.Errorf("with all ports down: %v", err)
	}
}
