package rdmanet

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// nearby makes a runtime and a listener of another, between which there is a transport
// "near", without streams. The device is the listener's. memory is for what arrives, in bytes;
// 0: much.
func nearby(t *testing.T, memory int64) (client *verbena.Runtime, l *Listener, device *fake.Device) {
	network := fake.NewNetwork()
	runtime := func(name string) (*verbena.Runtime, *fake.Device) {
		c := fake.InfiniBand(name)
		c.Capabilities &^= rdma.CapStreams
		device := network.NewDevice(c)
		r := must[*verbena.Runtime](t)(verbena.New(verbena.Config{Providers: []rdma.Provider{fake.NewProvider("near", device)}, ReceiveMemory: memory}))
		t.Cleanup(func() { _ = r.Close() })
		return r, device
	}
	client, _ = runtime("client")
	server, device := runtime("server")
	l = must[*Listener](t)(Listen(t.Context(), server, "127.0.0.1:0", Config{}))
	t.Cleanup(func() { _ = l.Close() })
	return client, l, device
}

// When the reason for which a connection fell back to TCP has passed, the next one
// has the better transport, although the endpoint of the first is parked.
func TestNextConnectionComesBack(t *testing.T) {
	client, l, device := nearby(t, 0)
	d := &Dialer{Runtime: client}
	defer d.Close()
	connect := func() string {
		a := must[*Conn](t)(dialConn(d, l.Addr().String()))
		b := must[*Conn](t)(acceptConn(l))
		exchange(t, a, b)
		transport := a.Selection().Transport
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		return transport
	}
	device.Refuse(&rdma.RejectedError{Peer: "server", PrivateData: []byte("no resources")})
	if got := connect(); got != verbena.TransportTCP {
		t.Fatalf("without resources over %s", got)
	}
	for ended := time.Now().Add(time.Minute); d.Parked() == 0; {
		if time.Now().After(ended) {
			t.Fatal("the endpoint is not parked")
		}
	}
	device.Refuse(nil)
	if got := connect(); got != "near" {
		t.Errorf("afterwards over %s", got)
	}
	if got := connect(); got != "near" {
		t.Errorf("then over %s", got)
	}
}

func dialConn(d *Dialer, address string) (*Conn, error) {
	c, err := d.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*Conn), nil
}

func acceptConn(l *Listener) (*Conn, error) {
	c, err := l.Accept()
	if err != nil {
		return nil, err
	}
	return c.(*Conn), nil
}

// Dials to a peer that keeps falling back try again now and then, and not each time.
func TestFallbacksAreTriedWithPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(8, 64, time.Minute, time.Minute)
		pr := &peer{passing: true, pause: firstPause}
		p.peers["a"] = pr
		e := &pooled{key: "a", born: time.Now(), passing: true}
		s := &session{}
		p.sessions[s] = e
		park := func() {
			if e.place == nil {
				e.place = p.parked.PushBack(s)
				pr.parked = append(pr.parked, s)
			}
		}
		park()
		if p.take(t.Context(), "a") != nil {
			t.Error("the second dial does not try again")
		}
		if p.take(t.Context(), "a") != s {
			t.Error("the third one does")
		}
		park()
		time.Sleep(firstPause)
		if p.take(t.Context(), "a") != nil {
			t.Error("one after the pause does not try again")
		}
	})
}

// A dialer that prefers plain connections to messages over TCP makes one, and finds
// the better transport when its time has come.
func TestPlainTCPInsteadOfMessages(t *testing.T) {
	client, l, device := nearby(t, 0)
	d := &Dialer{Runtime: client, PlainTCP: true, ParkedLife: time.Hour}
	defer d.Close()
	connect := func() (plain bool) {
		a := must[net.Conn](t)(d.Dial("tcp", l.Addr().String()))
		defer a.Close()
		// By its first bytes the listener tells a plain connection.
		if _, err := a.Write([]byte("plain")); err != nil {
			t.Fatal(err)
		}
		b := must[net.Conn](t)(l.Accept())
		defer b.Close()
		var got [5]byte
		if _, err := io.ReadFull(b, got[:]); err != nil || string(got[:]) != "plain" {
			t.Fatalf("read %q, %v", got, err)
		}
		exchange(t, a, b)
		_, messages := a.(*Conn)
		return !messages
	}
	device.Refuse(&rdma.RejectedError{Peer: "server", PrivateData: []byte("no resources")})
	if !connect() {
		t.Fatal("messages over TCP")
	}
	device.Refuse(nil)
	if !connect() {
		t.Error("the peer was asked again before its time")
	}
	d.sockets.mu.Lock()
	d.sockets.until[l.Addr().String()] = time.Now().Add(-time.Second)
	d.sockets.mu.Unlock()
	if connect() {
		t.Error("a plain connection, although there is a better one")
	}
}

// An endpoint that is not to be kept, because its peer is short of memory, is parked for as long
// as it says and not for the time that the dialer has for others.
func TestScarceEndpointIsParkedForAMoment(t *testing.T) {
	client, l, _ := nearby(t, 1<<20)
	d := &Dialer{Runtime: client, ParkedTimeout: time.Hour, ParkedLife: -1}
	defer d.Close()
	var conns []*Conn
	for len(conns) < 100 {
		a := must[*Conn](t)(dialConn(d, l.Addr().String()))
		conns = append(conns, a, must[*Conn](t)(acceptConn(l)))
		exchange(t, a, conns[len(conns)-1])
		if a.Selection().Transport == "near" && a.KeepFor(time.Hour) < time.Hour {
			break
		}
	}
	for _, c := range conns {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	last := conns[len(conns)-2].s
	select {
	case <-last.ep.(runtimeEndpoint).Done():
	case <-time.After(time.Minute):
		t.Error("an endpoint is kept, although the peer is short of memory")
	}
}
