package rdmanet

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/nettest"
)

func TestMain(m *testing.M) {
	if address := os.Getenv(serverProcess); address != "" {
		serveInProcess(address)
	}
	if transport, address, ok := strings.Cut(os.Getenv(writerProcess), " "); ok {
		writeAndExit(transport, address)
	}
	if os.Getenv(busyProcess) != "" {
		beBusy()
	}
	goleak.VerifyTestMain(m)
}

// rig is a dialer and a listener over one transport.
type rig struct {
	dialer   *Dialer
	listener *Listener
	address  string
}

func (r *rig) close() {
	r.dialer.Close()
	r.listener.Close()
}

func memoryRig(t testing.TB, cfg Config) (*rig, *memoryNetwork) {
	n := newMemoryNetwork(t)
	r := &rig{
		dialer:   &Dialer{connect: n.dial},
		listener: newListener(n, cfg),
		address:  "peer:1",
	}
	return r, n
}

// pair dials and accepts.
func (r *rig) pair() (dialled, accepted net.Conn, err error) {
	type result struct {
		c   net.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		c, err := r.listener.Accept()
		got <- result{c, err}
	}()
	dialled, err = r.dialer.Dial("tcp", r.address)
	if err != nil {
		return nil, nil, err
	}
	a := <-got
	return dialled, a.c, a.err
}

func TestConnMemory(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		r, _ := memoryRig(t, Config{})
		c1, c2, err := r.pair()
		if err != nil {
			r.close()
			return nil, nil, nil, err
		}
		return c1, c2, func() {
			c1.Close()
			c2.Close()
			r.close()
		}, nil
	})
}

// The accepting side comes first, and the endpoint has carried connections before.
func TestConnMemoryReused(t *testing.T) {
	r, _ := memoryRig(t, Config{})
	defer r.close()
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		c1, c2, err := r.pair()
		if err != nil {
			return nil, nil, nil, err
		}
		return c2, c1, func() {
			c1.Close()
			c2.Close()
		}, nil
	})
}

func timeSoon() time.Time { return time.Now().Add(time.Minute) }
