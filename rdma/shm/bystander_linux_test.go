package shm

import (
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// While a listener is flooded, others connect to it, and a connection that is
// there goes on. How long the slowest of each took is in the log.
func TestBystander(t *testing.T) {
	floods := map[string]func(t *testing.T, stop *atomic.Bool, address string){
		"nothing": func(*testing.T, *atomic.Bool, string) {},
		"silent sockets of the own user": func(t *testing.T, stop *atomic.Bool, address string) {
			floodSockets(t, stop, address, nil)
		},
		"silent sockets of another user": func(t *testing.T, stop *atomic.Bool, address string) {
			asUser(t, nobody, func() { floodSockets(t, stop, address, nil) })
		},
		"requests that are cut short": func(t *testing.T, stop *atomic.Bool, address string) {
			floodSockets(t, stop, address, []byte{byte(packetHello), 'v', 'r'})
		},
	}
	connections := 12
	if race.Enabled {
		connections = 4
	}
	for name, attack := range floods {
		t.Run(name, func(t *testing.T) {
			device := openDevice(t, Config{})
			a, b := newSide(t, device, 4096), newSide(t, device, 4096)
			a.qp, b.qp = a.pair(nil), b.pair(nil)
			connect(t, device, a.qp, b.qp)
			l, err := device.Listen(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			from, to := newSide(t, device, 4096), newSide(t, device, 4096)
			wait := serve(t, to, l)
			var stop atomic.Bool
			flooded := make(chan struct{})
			go func() {
				defer close(flooded)
				attack(t, &stop, l.Address())
			}()
			var slowestTrip, slowestConnect time.Duration
			for range connections {
				start := time.Now()
				for again := true; again; {
					qp := from.pair(nil)
					_, err := qp.Connect(t.Context(), l.Address(), nil)
					// It may lose its place between connecting and asking.
					var rejected *rdma.RejectedError
					if again = errors.As(err, &rejected) && rejected.Busy(); err != nil && !again {
						t.Error(err)
					}
					if err := qp.Close(); err != nil {
						t.Error(err)
					}
				}
				slowestConnect = max(slowestConnect, time.Since(start))
				for range 50 {
					start := time.Now()
					for _, way := range [][2]*side{{a, b}, {b, a}} {
						way[1].recv(1, way[1].sge(0, 64)...)
						way[0].send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: way[0].sge(0, 64)})
						way[0].expect(2, rdma.StatusSuccess)
						way[1].expect(1, rdma.StatusSuccess)
					}
					slowestTrip = max(slowestTrip, time.Since(start))
				}
			}
			stop.Store(true)
			<-flooded
			t.Logf("slowest of %d round trips %v, of %d connections %v", 50*connections, slowestTrip, connections, slowestConnect)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			wait()
		})
	}
}

// floodSockets connects as fast as it can, says the same over each socket, if anything,
// and keeps twice as many sockets as the listener reads from.
func floodSockets(t *testing.T, stop *atomic.Bool, address string, packet []byte) {
	sockets := make([]net.Conn, 2*maxReading)
	defer func() {
		for _, c := range sockets {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := 0; !stop.Load(); i = (i + 1) % len(sockets) {
		c, err := net.Dial("unixpacket", address)
		if err != nil {
			continue // the backlog is full
		}
		if packet != nil {
			_, _ = c.Write(packet)
		}
		if sockets[i] != nil {
			sockets[i].Close()
		}
		sockets[i] = c
	}
}
