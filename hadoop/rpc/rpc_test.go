package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/stream"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testProtocol = "org.example.Echo"

// The tests' methods take and give messages that are at hand.
type ping = rpcpb.UserInformationProto

// startServer serves the test protocol on a loopback port.
func startServer(t *testing.T, cfg Config, more Methods) (address string, s *Server) {
	t.Helper()
	s = NewServer(cfg)
	methods := Methods{
		"echo": Handle(func(_ context.Context, req *ping) (*ping, error) { return req, nil }),
		"whoami": Handle(func(ctx context.Context, _ *ping) (*ping, error) {
			c := FromContext(ctx)
			return &ping{EffectiveUser: proto.String(c.User), RealUser: proto.String(fmt.Sprintf("%x %d %s", c.ClientID[:2], c.RetryCount, c.Method))}, nil
		}),
		"refuse": Handle(func(context.Context, *ping) (*ping, error) {
			return nil, fmt.Errorf("mkdirs: %w", exception.New(exception.FileNotFound, "no such file"))
		}),
		"fail":  Handle(func(context.Context, *ping) (*ping, error) { return nil, errors.New("plain") }),
		"panic": Handle(func(context.Context, *ping) (*ping, error) { panic("for the test") }),
	}
	for name, m := range more {
		methods[name] = m
	}
	s.Register(testProtocol, 1, methods)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := serve(s, l)
	t.Cleanup(stop)
	return l.Addr().String(), s
}

// serve serves the connections of l, until it is told to stop.
func serve(s *Server, l net.Listener) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go s.ServeConn(nc)
		}
	}()
	return func() {
		l.Close()
		<-done
		s.Close()
	}
}

var ada = Target{User: "ada", Protocol: testProtocol}

func dialClient(t *testing.T, address string) *Conn {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewConn(t.Context(), nc, ada, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestCalls(t *testing.T) {
	address, _ := startServer(t, Config{}, nil)
	c := dialClient(t, address)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			want := strings.Repeat("x", i*1000)
			var got ping
			if err := c.Call(t.Context(), "echo", &ping{EffectiveUser: &want}, &got); err != nil {
				t.Error(err)
			} else if got.GetEffectiveUser() != want {
				t.Errorf("%d bytes came back, want %d", len(got.GetEffectiveUser()), len(want))
			}
		})
	}
	wg.Wait()
	var who ping
	if err := c.Call(t.Context(), "whoami", &ping{}, &who); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x 0 whoami", c.caller.id[:2]); who.GetEffectiveUser() != "ada" || who.GetRealUser() != want {
		t.Errorf("%v, want ada and %q", &who, want)
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	address, _ := startServer(t, Config{}, nil)
	c := dialClient(t, address)
	for _, test := range []struct {
		method string
		class  exception.Class
		text   string
	}{
		{"refuse", "java.io.FileNotFoundException", "no such file"},
		{"fail", "java.io.IOException", "plain"},
		{"panic", "java.io.IOException", "failed at panic"},
		{"missing", "org.apache.hadoop.ipc.RpcNoSuchMethodException", "Unknown method \"missing\" called on org.example.Echo protocol."},
	} {
		err := c.Call(t.Context(), test.method, &ping{}, &ping{})
		var e *exception.Error
		if !errors.As(err, &e) || e.Class != test.class || !strings.Contains(e.Message, test.text) {
			t.Errorf("%s: %v", test.method, err)
		}
	}
	if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
		t.Errorf("after errors: %v", err)
	}
}

func TestContextEndsWithTheConnection(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	address, _ := startServer(t, Config{}, Methods{"wait": Handle(func(ctx context.Context, req *ping) (*ping, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return req, nil
	})})
	c := dialClient(t, address)
	failed := make(chan error, 1)
	go func() { failed <- c.Call(context.Background(), "wait", &ping{}, &ping{}) }()
	<-started
	c.Close()
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("call on a closed client: %v", err)
	}
	<-ended
}

func TestASlowCallDoesNotHoldUpOthers(t *testing.T) {
	release := make(chan struct{})
	address, _ := startServer(t, Config{MaxInFlight: 2}, Methods{"wait": Handle(func(ctx context.Context, req *ping) (*ping, error) {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return req, nil
	})})
	c := dialClient(t, address)
	slow := make(chan error, 1)
	go func() { slow <- c.Call(context.Background(), "wait", &ping{}, &ping{}) }()
	if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-slow; err != nil {
		t.Error(err)
	}
}

const (
	statusSuccess = rpcpb.RpcResponseHeaderProto_SUCCESS
	statusError   = rpcpb.RpcResponseHeaderProto_ERROR
	statusFatal   = rpcpb.RpcResponseHeaderProto_FATAL
)

// exchange sends bytes and returns so many answers, and whatever else comes
// before the end: it closes its side after them. Without a number the server
// must end the connection.
func exchange(t *testing.T, address string, b []byte, answers ...int) []byte {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := nc.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if len(answers) > 0 {
		r := stream.NewReader(io.TeeReader(nc, &got), 1<<20)
		for range answers[0] {
			if _, err := r.Next(); err != nil {
				t.Fatalf("after %x: %v", got.Bytes(), err)
			}
		}
		if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.Copy(&got, nc); err != nil {
		t.Fatal(err)
	}
	return got.Bytes()
}

// A Java client's session, put down byte by byte: preamble, connection context
// of user "hdfs", and a call of echo with client id 00..0f, call id 0, retry 0.
const (
	goldenHello = "68727063 09 00 00" +
		"00000036" +
		"1a 08 02 10 00 18 05 22 10 000102030405060708090a0b0c0d0e0f 28 01" +
		"1a 12 06 0a 04 68646673 1a 10 6f72672e6578616d706c652e4563686f"
	goldenCall = "00000039" +
		"1a 08 02 10 00 18 00 22 10 000102030405060708090a0b0c0d0e0f 28 00" +
		"1a 0a 04 6563686f 12 10 6f72672e6578616d706c652e4563686f 18 01" +
		"02 0a 00"
	goldenAnswer = "0000001e" +
		"1a 08 00 10 00 18 09 3a 10 000102030405060708090a0b0c0d0e0f 40 00" +
		"02 0a 00"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenSession(t *testing.T) {
	hello := unhex(t, goldenHello)
	address, _ := startServer(t, Config{}, nil)
	got := exchange(t, address, append(hello, unhex(t, goldenCall)...), 1)
	if want := unhex(t, goldenAnswer); !bytes.Equal(got, want) {
		t.Errorf("answer\n%x, want\n%x", got, want)
	}
	// colinmarc's client sends header and body in one write, too, but Java's
	// preamble may come apart.
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, b := range append(hello, unhex(t, goldenCall)...) {
		if _, err := nc.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	answer := make([]byte, len(unhex(t, goldenAnswer)))
	if _, err := io.ReadFull(nc, answer); err != nil || !bytes.Equal(answer, unhex(t, goldenAnswer)) {
		t.Errorf("byte by byte: %x, %v", answer, err)
	}
}

// frameOf is a frame of messages.
func frameOf(t testing.TB, messages ...proto.Message) []byte {
	t.Helper()
	b := make([]byte, 4)
	for _, m := range messages {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		b = append(wire.AppendLength(b, len(body)), body...)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func requestHeader(id int32) *rpcpb.RpcRequestHeaderProto {
	return &rpcpb.RpcRequestHeaderProto{
		RpcKind: rpcpb.RpcKindProto_RPC_PROTOCOL_BUFFER.Enum(), RpcOp: rpcpb.RpcRequestHeaderProto_RPC_FINAL_PACKET.Enum(),
		CallId: &id, ClientId: make([]byte, 16), RetryCount: proto.Int32(0),
	}
}

func contextFrame(t testing.TB) []byte {
	return frameOf(t, requestHeader(wire.CallIDContext), &rpcpb.IpcConnectionContextProto{
		UserInfo: &ping{EffectiveUser: proto.String("ada")}, Protocol: proto.String(testProtocol)})
}

func echoFrame(t testing.TB, id int32) []byte {
	return frameOf(t, requestHeader(id), &rpcpb.RequestHeaderProto{
		MethodName: proto.String("echo"), DeclaringClassProtocolName: proto.String(testProtocol), ClientProtocolVersion: proto.Uint64(1)},
		&ping{})
}

func responses(t *testing.T, b []byte) (headers []*rpcpb.RpcResponseHeaderProto) {
	t.Helper()
	for r := stream.NewReader(bytes.NewReader(b), 1<<20); ; {
		frame, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers
		}
		if err != nil {
			t.Fatal(err)
		}
		h := &rpcpb.RpcResponseHeaderProto{}
		body, _, err := wire.Next(frame.Bytes)
		if err == nil {
			err = proto.Unmarshal(body, h)
		}
		if err != nil {
			t.Fatal(err)
		}
		headers = append(headers, h)
	}
}

func TestProtocolErrors(t *testing.T) {
	preamble := []byte("hrpc\x09\x00\x00")
	otherOp := requestHeader(1)
	otherOp.RpcOp = rpcpb.RpcRequestHeaderProto_RPC_CONTINUATION_PACKET.Enum()
	noKind := requestHeader(1)
	noKind.RpcKind = nil
	writable := requestHeader(1)
	writable.RpcKind = rpcpb.RpcKindProto_RPC_WRITABLE.Enum()
	for _, test := range []struct {
		name   string
		send   []byte
		id     uint32
		status rpcpb.RpcResponseHeaderProto_RpcStatusProto
		code   rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto
	}{
		{"newer version", []byte("hrpc\x0a\x00\x00"), 0xffffffff, statusFatal, codeFatalVersion},
		{"unknown authentication", []byte("hrpc\x09\x00\x07"), 0xffffffff, statusFatal, codeFatalUnauthorized},
		{"operation", append(preamble, frameOf(t, otherOp)...), 1, statusFatal, codeFatalHeader},
		{"no kind", append(preamble, frameOf(t, noKind)...), 1, statusFatal, codeFatalHeader},
		{"writable", append(preamble, frameOf(t, writable)...), 1, statusFatal, codeFatalSerializing},
		{"call before context", append(preamble, echoFrame(t, 4)...), 4, statusFatal, codeFatalHeader},
		{"unknown negative id", append(preamble, frameOf(t, requestHeader(-9))...), 0xfffffff7, statusFatal, codeFatalHeader},
		{"garbage frame", append(preamble, 0, 0, 0, 3, 0xff, 0xff, 0xff), 0xfffffffe, statusFatal, codeFatalHeader},
		{"empty frame", append(preamble, 0, 0, 0, 0), 0xfffffffe, statusFatal, codeFatalHeader},
		{"hostile length", append(preamble, 0xff, 0xff, 0xff, 0xff), 0xfffffffe, statusFatal, codeFatalHeader},
		{"second context", append(append(preamble, contextFrame(t)...), contextFrame(t)...), 0xfffffffd, statusFatal, codeFatalHeader},
		{"SASL that is no negotiation", append([]byte("hrpc\x09\x00\xdf"), frameOf(t, requestHeader(wire.CallIDSASL),
			&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_INITIATE.Enum()})...), 0xffffffdf, statusFatal, codeFatalUnauthorized},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, _ := startServer(t, Config{}, nil)
			got := responses(t, exchange(t, address, test.send))
			if len(got) != 1 || got[0].GetCallId() != test.id || got[0].GetStatus() != test.status || got[0].GetErrorDetail() != test.code {
				t.Errorf("%v", got)
			}
		})
	}
}

func TestPingAndSASL(t *testing.T) {
	address, _ := startServer(t, Config{}, nil)
	send := []byte("hrpc\x09\x00\xdf")
	send = append(send, frameOf(t, requestHeader(wire.CallIDSASL), &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum()})...)
	send = append(send, contextFrame(t)...)
	send = append(send, frameOf(t, requestHeader(wire.CallIDPing))...)
	send = append(send, echoFrame(t, 7)...)
	got := responses(t, exchange(t, address, send, 2))
	if len(got) != 2 || int32(got[0].GetCallId()) != wire.CallIDSASL || got[0].GetStatus() != statusSuccess ||
		got[1].GetCallId() != 7 || got[1].GetStatus() != statusSuccess {
		t.Errorf("%v", got)
	}
}

func TestHTTPIsTold(t *testing.T) {
	address, _ := startServer(t, Config{}, nil)
	if got := exchange(t, address, []byte("GET / HTTP/1.1\r\n\r\n")); !bytes.HasPrefix(got, []byte("HTTP/1.1 404")) {
		t.Errorf("%q", got)
	}
}

func TestSilentClientIsClosed(t *testing.T) {
	address, _ := startServer(t, Config{HandshakeTimeout: 10 * time.Millisecond}, nil)
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read: %v", err)
	}
}

// A client that sends calls and reads no answers stops being served; it does
// not make the server keep all the answers.
func TestAnswersThatNobodyReads(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	served := make(chan struct{}, 1000)
	address, s := startServer(t, Config{WriteTimeout: 50 * time.Millisecond}, Methods{"big": Handle(func(context.Context, *ping) (*ping, error) {
		served <- struct{}{}
		return &ping{EffectiveUser: &big}, nil
	})})
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	send := append([]byte("hrpc\x09\x00\x00"), contextFrame(t)...)
	for i := range 500 {
		send = append(send, frameOf(t, requestHeader(int32(i)), &rpcpb.RequestHeaderProto{
			MethodName: proto.String("big"), DeclaringClassProtocolName: proto.String(testProtocol), ClientProtocolVersion: proto.Uint64(1)}, &ping{})...)
	}
	if _, err := nc.Write(send); err != nil {
		t.Fatal(err)
	}
	for gone := false; !gone; { // the server gives the client up
		<-time.After(5 * time.Millisecond)
		s.mu.Lock()
		gone = len(s.members) == 0
		s.mu.Unlock()
	}
	if n := len(served); n >= 500 {
		t.Errorf("all %d calls were served although nobody read", n)
	}
}

func FuzzFrame(f *testing.F) {
	f.Add(contextFrame(f)[4:])
	f.Add(echoFrame(f, 3)[4:])
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewServer(Config{})
		s.Register(testProtocol, 1, Methods{"echo": Handle(func(_ context.Context, req *ping) (*ping, error) { return req, nil })})
		defer s.Close()
		for _, known := range []bool{false, true} {
			w := stream.NewWriter(discardConn{}, time.Second, time.Second, nil)
			c := newStreamSession(s, w, nil)
			c.known = known
			_ = c.receive(w, carrier.Message{Bytes: b}) // garbage is refused, never a panic
			c.calls.Wait()
			c.cancel()
			w.Stop()
		}
	})
}

func FuzzServer(f *testing.F) {
	f.Add(append([]byte("hrpc\x09\x00\x00"), contextFrame(f)...))
	f.Add([]byte("hrpc\x09\x00\xdf\x00\x00\x00\x01\x00"))
	f.Add([]byte("GET / "))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := NewServer(Config{MaxFrame: 1 << 20})
		s.Register(testProtocol, 1, Methods{"echo": Handle(func(_ context.Context, req *ping) (*ping, error) { return req, nil })})
		defer s.Close()
		s.ServeConn(discardConn{Reader: bytes.NewReader(b)})
	})
}

func FuzzResponse(f *testing.F) {
	f.Add([]byte{4, 8, 0, 16, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newCaller(nil, ClientID{}, &ada, 0)
		c.waiting[0] = &waiter{done: make(chan struct{}, 1), resp: &ping{}}
		_ = c.deliver(carrier.Message{Bytes: b}) // never a panic
	})
}

// discardConn takes everything and gives what its reader has.
type discardConn struct{ io.Reader }

func (d discardConn) Read(p []byte) (int, error) {
	if d.Reader == nil {
		return 0, io.EOF
	}
	return d.Reader.Read(p)
}
func (discardConn) Write(p []byte) (int, error)      { return len(p), nil }
func (discardConn) Close() error                     { return nil }
func (discardConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (discardConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (discardConn) SetDeadline(time.Time) error      { return nil }
func (discardConn) SetReadDeadline(time.Time) error  { return nil }
func (discardConn) SetWriteDeadline(time.Time) error { return nil }

func BenchmarkEcho(b *testing.B) {
	s := NewServer(Config{})
	s.Register(testProtocol, 1, Methods{"echo": Handle(func(_ context.Context, req *ping) (*ping, error) { return req, nil })})
	here, there := net.Pipe()
	go s.ServeConn(there)
	defer s.Close()
	c, err := NewConn(context.Background(), here, ada, ClientConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Call(context.Background(), "echo", &ping{}, &ping{}); err != nil {
			b.Fatal(err)
		}
	}
}

// A short method finds out that a call is none: a handler runs it, and it counts as one that went well.
func TestShortCallThatIsLong(t *testing.T) {
	address, s := startServer(t, Config{}, Methods{"later": Handle(echoLater).Short()})
	c := dialClient(t, address)
	for i := range 40 {
		want := bytes.Repeat([]byte{byte(i)}, i*1000)
		var got blob
		if err := c.Call(t.Context(), "later", &blob{Value: want}, &got); err != nil || !bytes.Equal(got.Value, want) {
			t.Fatalf("%d bytes came back of %d, or others: %v", len(got.Value), len(want), err)
		}
	}
	if n := testutil.ToFloat64(s.protocols[testProtocol].methods["later"].failed); n != 0 {
		t.Errorf("%v of the calls failed", n)
	}
}
