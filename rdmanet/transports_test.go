package rdmanet

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// transports are all that this host has.
func transports() []string {
	names := []string{verbena.TransportTCP}
	for _, p := range providers.Default() {
		if _, err := p.Devices(context.Background()); err == nil {
			names = append(names, p.Name())
		}
	}
	return names
}

func overTransports(t *testing.T, f func(t *testing.T, transport string)) {
	for _, name := range transports() {
		t.Run(name, func(t *testing.T) { f(t, name) })
	}
}

func newRuntime(t testing.TB) *verbena.Runtime {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default(), Linger: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Errorf("closing the runtime: %v", err)
		}
	})
	return rt
}

// runtimeRig has a runtime for each side, as two processes have.
func runtimeRig(t testing.TB, transport string, cfg Config) *rig {
	l, err := Listen(t.Context(), newRuntime(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	return rigOn(t, l, transport, cfg)
}

// rigOn is a rig with a listener that there is.
func rigOn(t testing.TB, l *Listener, transport string, cfg Config) *rig {
	r := &rig{
		dialer:   &Dialer{Runtime: newRuntime(t), Transport: transport, Service: cfg.Service},
		listener: l,
		address:  l.Addr().String(),
	}
	t.Cleanup(r.close)
	return r
}

func TestConn(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		n := 0
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			c1, c2, err := r.pair()
			if err != nil {
				return nil, nil, nil, err
			}
			if got := c1.(*Conn).Selection().Transport; got != transport {
				return nil, nil, nil, fmt.Errorf("the connection is over %s", got)
			}
			if n++; n%2 == 0 {
				c1, c2 = c2, c1
			}
			return c1, c2, func() {
				c1.Close()
				c2.Close()
			}, nil
		})
	})
}

func TestParkingOverTransports(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		for i := range 20 {
			a, b := r.mustPair(t)
			exchange(t, a, b)
			a.CloseWrite()
			wantEOF(t, b)
			b.Close()
			wantEOF(t, a)
			a.Close()
			if a.stream != uint32(i+1) {
				t.Fatalf("connection %d is number %d of its endpoint", i+1, a.stream)
			}
		}
		if got := r.dialer.Parked(); got != 1 {
			t.Errorf("%d endpoints are parked", got)
		}
	})
}

func TestBulk(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		a, b := r.mustPair(t)
		const size = 64 << 20
		sums := make(chan [32]byte, 4)
		send := func(c *Conn, seed byte, chunk int) {
			h := sha256.New()
			buf := make([]byte, chunk)
			for left := size; left > 0; left -= len(buf) {
				buf = buf[:min(left, len(buf))]
				for i := range buf {
					buf[i] = byte(i>>8) + byte(i)*seed
				}
				buf[0] = byte(left)
				h.Write(buf)
				if _, err := c.Write(buf); err != nil {
					t.Error(err)
					break
				}
			}
			c.CloseWrite()
			sums <- [32]byte(h.Sum(nil))
		}
		receive := func(c *Conn) {
			h := sha256.New()
			if n, err := io.Copy(h, c); n != size || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
			sums <- [32]byte(h.Sum(nil))
		}
		var wg sync.WaitGroup
		for _, d := range []struct {
			from, to *Conn
			chunk    int
		}{{a, b, 1 << 20}, {b, a, 1<<20 + 77}} {
			wg.Go(func() { send(d.from, 3, d.chunk) })
			wg.Go(func() { receive(d.to) })
		}
		wg.Wait()
		close(sums)
		count := map[[32]byte]int{}
		for s := range sums {
			count[s]++
		}
		for _, n := range count {
			if n%2 != 0 {
				t.Error("other bytes arrived")
			}
		}
		a.Close()
		b.Close()
	})
}

// The process of the peer ends, or its runtime does.
func TestPeerGone(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		server, client := newRuntime(t), newRuntime(t)
		l, err := Listen(t.Context(), server, "127.0.0.1:0", Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{dialer: &Dialer{Runtime: client, Transport: transport}, listener: l, address: l.Addr().String()}
		defer r.close()
		a, b := r.mustPair(t)
		exchange(t, a, b)
		b.SetLinger(0)
		b.Close()
		_, err = a.Read(make([]byte, 1))
		wantError(t, err, syscall.ECONNRESET)
		a.Close()

		a, b = r.mustPair(t)
		exchange(t, a, b)
		a.Close()
		wantEOF(t, b)
		b.Close()
		l.Close()
		server.Close()
		if c, err := r.dialer.Dial("tcp", r.address); err == nil {
			// The parked endpoint may be found dead only now.
			c.SetDeadline(time.Now().Add(10 * time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("reading from a peer that has gone: %v", err)
			}
			c.Close()
		}
	})
}

// The runtime is closed under connections that are in use.
func TestRuntimeCloses(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		a, b := r.mustPair(t)
		errs := make(chan error, 2)
		go func() {
			_, err := a.Read(make([]byte, 1))
			errs <- err
		}()
		go func() {
			_, err := a.Write(make([]byte, 1<<30))
			errs <- err
		}()
		if _, err := io.ReadFull(b, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		if err := r.dialer.Runtime.Close(); err != nil {
			t.Logf("closing the runtime: %v", err)
		}
		for range 2 {
			wantError(t, <-errs, net.ErrClosed)
		}
		a.Close()
		b.Close()
	})
}

// What had arrived goes with the runtime, and takes nobody with it.
func TestRuntimeClosesUnderUnreadData(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		for _, size := range []int{1000, 100_000, 500_000} {
			r := runtimeRig(t, transport, Config{})
			a, b := r.mustPair(t)
			wrote := make(chan struct{})
			go func() {
				defer close(wrote)
				b.Write(make([]byte, size))
			}()
			buf := make([]byte, 100)
			must[int](t)(a.Read(buf))
			if err := r.dialer.Runtime.Close(); err != nil {
				t.Errorf("closing the runtime: %v", err)
			}
			_, err := a.Read(buf)
			wantError(t, err, net.ErrClosed)
			_, err = a.Write(buf)
			wantError(t, err, net.ErrClosed)
			a.Close()
			b.Close()
			<-wrote
		}
	})
}

// heldWriter looks at what WriteTo gave it after the runtime has been closed.
type heldWriter struct {
	got    chan int
	closed chan struct{}
	bytes.Buffer
}

func (w *heldWriter) Write(b []byte) (int, error) {
	w.got <- len(b)
	<-w.closed
	return w.Buffer.Write(b)
}

func numbered(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}

// A WriteTo in the middle of a Write has its message until that is through.
func TestRuntimeClosesUnderWriteTo(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		for _, size := range []int{1000, 400_000} {
			r := runtimeRig(t, transport, Config{})
			a, b := r.mustPair(t)
			sent := numbered(size)
			must[int](t)(b.Write(sent))
			w := &heldWriter{got: make(chan int, 1), closed: make(chan struct{})}
			passed := make(chan error, 1)
			go func() {
				_, err := a.WriteTo(w)
				passed <- err
			}()
			n := <-w.got
			if err := r.dialer.Runtime.Close(); err != nil {
				t.Errorf("closing the runtime: %v", err)
			}
			close(w.closed)
			wantError(t, <-passed, net.ErrClosed)
			if got := w.Bytes(); len(got) != n || !bytes.Equal(got, sent[:n]) {
				t.Errorf("%d bytes were passed on of %d, or others", len(got), n)
			}
			a.Close()
			b.Close()
		}
	})
}

// Reads that copy while the runtime closes end well, whatever they have.
func TestRuntimeClosesUnderReads(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		for range 10 {
			r := runtimeRig(t, transport, Config{})
			a, b := r.mustPair(t)
			sent := numbered(8 << 20)
			wrote := make(chan struct{})
			go func() {
				defer close(wrote)
				for {
					if _, err := b.Write(sent); err != nil {
						return
					}
				}
			}()
			running, read := make(chan struct{}), make(chan error, 1)
			go func() {
				// Pieces of what a message holds, so that a Read finds one most of
				// the time.
				buf := make([]byte, 700)
				for n := 0; ; {
					m, err := a.Read(buf)
					at := n % len(sent)
					for i, c := range buf[:m] {
						if want := byte((at+i)%len(sent)) ^ byte((at+i)%len(sent)>>8); c != want {
							read <- fmt.Errorf("byte %d is %#x, not %#x", n+i, c, want)
							return
						}
					}
					if n < 1<<20 && n+m >= 1<<20 {
						close(running)
					}
					n += m
					if err != nil {
						read <- err
						return
					}
				}
			}()
			<-running
			if err := r.dialer.Runtime.Close(); err != nil {
				t.Logf("closing the runtime: %v", err) // the writer is cut off
			}
			wantError(t, <-read, net.ErrClosed)
			a.Close()
			b.Close()
			<-wrote
		}
	})
}

func TestHTTP(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		mux := http.NewServeMux()
		mux.HandleFunc("POST /echo", func(w http.ResponseWriter, req *http.Request) {
			body, err := io.ReadAll(req.Body)
			if err != nil {
				t.Errorf("echo: %v", err)
			}
			w.Write(body)
		})
		mux.HandleFunc("POST /refuse", func(w http.ResponseWriter, req *http.Request) {
			http.Error(w, "no", http.StatusForbidden)
		})
		server := &http.Server{Handler: mux}
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := server.Serve(r.listener); err != http.ErrServerClosed {
				t.Error(err)
			}
		})
		for _, keepAlive := range []bool{true, false} {
			tr := &http.Transport{DialContext: r.dialer.DialContext, DisableKeepAlives: !keepAlive}
			client := &http.Client{Transport: tr, Timeout: time.Minute}
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					for j := range 10 {
						body := bytes.Repeat([]byte{byte(i*16 + j)}, 1+j*j*10_000)
						resp, err := client.Post("http://"+r.address+"/echo", "", bytes.NewReader(body))
						if err != nil {
							t.Error(err)
							return
						}
						got, err := io.ReadAll(resp.Body)
						resp.Body.Close()
						if err != nil || !bytes.Equal(got, body) {
							t.Errorf("%d bytes came back of %d, %v", len(got), len(body), err)
						}
					}
				})
			}
			wg.Wait()
			// The server answers before it has read the request, and closes.
			resp, err := client.Post("http://"+r.address+"/refuse", "", io.LimitReader(endless{}, 4<<20))
			if err == nil {
				if resp.StatusCode != http.StatusForbidden {
					t.Error(resp.Status)
				}
				resp.Body.Close()
			} else if !errors.Is(err, syscall.EPIPE) {
				t.Error(err)
			}
			tr.CloseIdleConnections()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
}

func TestGRPC(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		server := grpc.NewServer()
		status := health.NewServer()
		healthpb.RegisterHealthServer(server, status)
		var serving sync.WaitGroup
		serving.Go(func() {
			if err := server.Serve(r.listener); err != nil {
				t.Error(err)
			}
		})
		defer serving.Wait()
		defer server.Stop()
		conn, err := grpc.NewClient("passthrough:///"+r.address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return r.dialer.DialContext(ctx, "tcp", addr)
			}))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		client := healthpb.NewHealthClient(conn)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		// A stream that follows what unary calls see.
		watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: "verbena"})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := watch.Recv(); err != nil || m.Status != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
			t.Fatalf("%v, %v", m, err)
		}
		for i := range 50 {
			want := healthpb.HealthCheckResponse_SERVING
			if i%2 == 1 {
				want = healthpb.HealthCheckResponse_NOT_SERVING
			}
			status.SetServingStatus("verbena", want)
			if m, err := watch.Recv(); err != nil || m.Status != want {
				t.Fatalf("%v, %v", m, err)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					m, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "verbena"})
					if err != nil || m.Status != want {
						t.Errorf("%v, %v", m, err)
					}
				})
			}
			wg.Wait()
		}
		_ = watch.CloseSend()
		conn.Close()
		server.GracefulStop()
	})
}

func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"verbena.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der := must[[]byte](t)(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	roots := x509.NewCertPool()
	roots.AddCert(must[*x509.Certificate](t)(x509.ParseCertificate(der)))
	serverCfg := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	clientCfg := &tls.Config{RootCAs: roots, ServerName: "verbena.test"}
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		for range 3 {
			a, b := r.mustPair(t)
			server, client := tls.Server(b, serverCfg), tls.Client(a, clientCfg)
			sent := make([]byte, 3<<20)
			rand.Read(sent)
			var wg sync.WaitGroup
			wg.Go(func() {
				if _, err := io.Copy(server, server); err != nil {
					t.Error(err)
				}
				server.Close()
			})
			wg.Go(func() {
				if _, err := client.Write(sent); err != nil {
					t.Error(err)
				}
				client.CloseWrite()
			})
			got, err := io.ReadAll(client)
			if err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d bytes came back of %d, %v", len(got), len(sent), err)
			}
			wg.Wait()
			wantEOF(t, a) // behind TLS's own end
			client.Close()
		}
		if got := r.dialer.Parked(); got != 1 {
			t.Errorf("%d endpoints are parked", got)
		}
	})
}

// Servers that have never heard of Verbena.
func TestFallback(t *testing.T) {
	for name, serve := range map[string]func(c net.Conn){
		"answers in its own way": func(c net.Conn) {
			var b [5]byte
			if _, err := io.ReadFull(c, b[:]); err == nil && string(b[:]) != "plain" {
				copy(b[:], "HTTP/")
			}
			c.Write(b[:])
			io.Copy(io.Discard, c)
		},
		"closes at what it does not know": func(c net.Conn) {
			var b [5]byte
			if _, err := io.ReadFull(c, b[:]); err == nil && string(b[:]) == "plain" {
				c.Write(b[:])
			}
		},
		"stays silent at what it does not know": func(c net.Conn) {
			var b [5]byte
			if _, err := io.ReadFull(c, b[:]); err == nil && string(b[:]) == "plain" {
				c.Write(b[:])
			}
			io.Copy(io.Discard, c)
		},
		"echoes":       func(c net.Conn) { io.Copy(c, c) },
		"speaks first": func(c net.Conn) { c.Write([]byte("plain")); io.Copy(io.Discard, c) },
	} {
		t.Run(name, func(t *testing.T) {
			plain := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
			var wg sync.WaitGroup
			defer wg.Wait()
			defer plain.Close()
			wg.Go(func() {
				for {
					c, err := plain.Accept()
					if err != nil {
						return
					}
					wg.Go(func() {
						defer c.Close()
						serve(c)
					})
				}
			})
			rt := newRuntime(t)
			for _, transport := range []string{"", "auto", "tcp"} {
				d := &Dialer{Runtime: rt, Transport: transport, Timeout: 3 * time.Second}
				for range 2 {
					c, err := d.Dial("tcp", plain.Addr().String())
					if err != nil {
						t.Fatal(err)
					}
					if _, ok := c.(*net.TCPConn); !ok {
						t.Errorf("got a %T", c)
					}
					c.Write([]byte("plain"))
					var b [5]byte
					if _, err := io.ReadFull(c, b[:]); err != nil || string(b[:]) != "plain" {
						t.Errorf("read %q, %v", b, err)
					}
					c.Close()
				}
				d.Close()
			}
			for _, p := range providers.Default() {
				d := &Dialer{Runtime: rt, Transport: p.Name(), Timeout: 3 * time.Second}
				if c, err := d.Dial("tcp", plain.Addr().String()); err == nil {
					t.Errorf("a dial that forces %s got a %T", p.Name(), c)
					c.Close()
				}
				d.Close()
			}
		})
	}
}

// Plain clients, connections over endpoints and another service's endpoints on
// one port.
func TestOnePort(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		cfg := Config{Service: "bytes/1"}
		listener := must[*verbena.Listener](t)(newRuntime(t).Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{Services: cfg.Services()}))
		others := must[*verbena.Service](t)(listener.Service("cluster/1", verbena.ServiceConfig{}))
		r := rigOn(t, NewListener(listener, cfg), transport, cfg)
		a, b := r.mustPair(t)
		exchange(t, a, b)

		c := must[net.Conn](t)(net.Dial("tcp", r.address))
		if _, err := c.Write([]byte("hrpc")); err != nil {
			t.Fatal(err)
		}
		accepted := must[net.Conn](t)(r.listener.Accept())
		if _, ok := accepted.(*net.TCPConn); !ok {
			t.Errorf("a plain connection came as %T", accepted)
		}
		var first [4]byte
		if _, err := io.ReadFull(accepted, first[:]); err != nil || string(first[:]) != "hrpc" {
			t.Errorf("it begins with %q, %v", first, err)
		}
		c.Close()
		accepted.Close()

		ep, err := r.dialer.Runtime.Dial(t.Context(), r.address, "cluster/1", verbena.DialConfig{Transport: transport})
		if err != nil {
			t.Fatal(err)
		}
		other := must[*verbena.Endpoint](t)(others.Accept(t.Context()))
		if err := ep.Send(t.Context(), 7, []byte("heartbeat")); err != nil {
			t.Fatal(err)
		}
		m, err := other.Receive(t.Context())
		if err != nil || m.Tag != 7 || string(m.Bytes()) != "heartbeat" {
			t.Fatalf("%v, %v", m, err)
		}
		m.Release()
		ep.Close()
		other.Close()
		if _, err := r.dialer.Runtime.Dial(t.Context(), r.address, "unknown/1", verbena.DialConfig{}); err == nil {
			t.Error("a service that nobody offers was dialled")
		}
		a.Close()
		b.Close()
	})
}

func TestChurnOverTransports(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		r := runtimeRig(t, transport, Config{})
		var servers, clients sync.WaitGroup
		servers.Go(func() {
			for {
				c, err := r.listener.Accept()
				if err != nil {
					return
				}
				servers.Go(func() {
					defer c.Close()
					io.Copy(c, c)
				})
			}
		})
		for client := range 4 {
			clients.Go(func() {
				for i := range 50 {
					c, err := r.dialer.Dial("tcp", r.address)
					if err != nil {
						t.Error(err)
						return
					}
					c.SetDeadline(time.Now().Add(time.Minute))
					want := bytes.Repeat([]byte{byte(client*50 + i)}, 1+i*3000)
					var writer sync.WaitGroup
					writer.Go(func() {
						c.Write(want)
						c.(*Conn).CloseWrite()
					})
					if i%10 == 9 {
						c.(*Conn).SetLinger(0)
						c.Close()
					} else if i%10 == 8 {
						c.Close()
					} else if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%d bytes came back of %d, %v", len(got), len(want), err)
					}
					writer.Wait()
					c.Close()
				}
			})
		}
		clients.Wait()
		r.listener.Close()
		servers.Wait()
	})
}

// marked is a connection that a runtime's Connect has made.
type marked struct {
	net.Conn
	network, address string
}

// A peer that has never heard of Verbena is dialled as the runtime connects, be it through a
// tunnel or from another host.
func TestPlainDialConnectsAsTheRuntime(t *testing.T) {
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "SSH-2.0-other\r\n") // it is no hello
		}
	}()
	rt := must[*verbena.Runtime](t)(verbena.New(verbena.Config{
		Connect: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return &marked{c, network, address}, err
		},
	}))
	defer rt.Close()
	d := &Dialer{Runtime: rt}
	defer d.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for network, address := range map[string]string{"tcp": l.Addr().String(), "tcp4": net.JoinHostPort("localhost", port)} {
		c := must[net.Conn](t)(d.DialContext(t.Context(), network, address))
		if m, ok := c.(*marked); !ok || m.network != "tcp" || m.address != l.Addr().String() {
			t.Errorf("%s %s: %#v", network, address, c)
		}
		c.Close()
	}
}
