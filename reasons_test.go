package verbena

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

func TestReasons(t *testing.T) {
	secret := errors.New("process 12 of user 34 at @name")
	for _, c := range []struct {
		err             error
		passing, repeat bool
		public          string
	}{
		{&rdma.RejectedError{Peer: "process 12", PrivateData: []byte("busy")}, true, true, "rejected: busy"},
		{&rdma.RejectedError{PrivateData: []byte("unknown token")}, true, true, "rejected: unknown token"},
		{&rdma.RejectedError{PrivateData: []byte("no resources")}, true, false, "rejected: no resources"},
		{&rdma.RejectedError{PrivateData: []byte("endpoint parameters not understood")}, false, false, "rejected: endpoint parameters not understood"},
		{errors.Join(secret, syscall.EMFILE), true, false, "out of memory or descriptors"},
		{errors.Join(secret, rdma.ErrTimeout), true, false, "timed out"},
		{errors.Join(secret, syscall.ECONNREFUSED), false, false, "nobody listens at its address, as seen from here"},
		{secret, false, false, "failed"},
	} {
		if passing(c.err) != c.passing || worthRepeating(c.err) != c.repeat || publicReason(c.err) != c.public {
			t.Errorf("%v: passing %t, repeat %t, %q", c.err, passing(c.err), worthRepeating(c.err), publicReason(c.err))
		}
	}
}

// A deafDevice cannot listen, for a reason that is nobody else's business.
type deafDevice struct{ *fake.Device }

func (deafDevice) Listen(context.Context, string) (rdma.Listener, error) {
	return nil, fmt.Errorf("process 4711 of user 1234 has @verbena-secret: %w", syscall.EADDRINUSE)
}

type deafProvider struct{ device deafDevice }

func (deafProvider) Name() string { return "deaf" }

func (p deafProvider) Devices(context.Context) ([]rdma.Device, error) {
	return []rdma.Device{p.device}, nil
}

// Why the server's device cannot listen the client learns in words that name no user,
// process or socket of that host.
func TestListenErrorStaysWithTheServer(t *testing.T) {
	network := fake.NewNetwork()
	device := func(name string) deafDevice {
		c := fake.InfiniBand(name)
		c.Capabilities &^= rdma.CapStreams
		return deafDevice{network.NewDevice(c)}
	}
	w := world{providers: func(testing.TB) (c, s []rdma.Provider) {
		return []rdma.Provider{deafProvider{device("a")}}, []rdma.Provider{deafProvider{device("b")}}
	}}
	p := w.pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, "")
	defer a.Close()
	defer b.Close()
	chosen := a.Selection()
	reason := chosen.candidate("deaf").Reason
	if chosen.Transport != TransportTCP || !strings.Contains(reason, "does not listen: ") {
		t.Errorf("chose %s", chosen)
	}
	for _, secret := range []string{"4711", "1234", "secret"} {
		if strings.Contains(reason, secret) {
			t.Errorf("the client learns %q", reason)
		}
	}
}
