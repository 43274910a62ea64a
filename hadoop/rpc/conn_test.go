package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/stream"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// callFrame is a call of a method of a protocol.
func callFrame(t testing.TB, id int32, class, method string, version uint64, body proto.Message) []byte {
	return frameOf(t, requestHeader(id), &rpcpb.RequestHeaderProto{
		MethodName: &method, DeclaringClassProtocolName: &class, ClientProtocolVersion: &version}, body)
}

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// What is wrong with one call is answered as Hadoop does, and the connection
// goes on.
func TestErrorsOfOneCall(t *testing.T) {
	address, _ := startServer(t, Config{}, Methods{"incomplete": Handle(func(context.Context, *ping) (*rpcpb.RequestHeaderProto, error) {
		return &rpcpb.RequestHeaderProto{}, nil // required fields are missing
	})})
	otherContext := frameOf(t, requestHeader(wire.CallIDContext), &rpcpb.IpcConnectionContextProto{Protocol: proto.String("org.example.Other")})
	noBody := frameOf(t, requestHeader(4), &rpcpb.RequestHeaderProto{
		MethodName: proto.String("echo"), DeclaringClassProtocolName: proto.String(testProtocol), ClientProtocolVersion: proto.Uint64(1)})
	badBody := callFrame(t, 5, testProtocol, "echo", 1, &ping{EffectiveUser: proto.String("x")})
	badBody[len(badBody)-2] = 0x7f // the string's length goes beyond the message
	trailing := append(callFrame(t, 8, testProtocol, "echo", 1, &ping{}), 0)
	trailing[3]++
	got := map[uint32]*rpcpb.RpcResponseHeaderProto{}
	for _, h := range responses(t, exchange(t, address, join(
		[]byte("hrpc\x09\x00\x00"), otherContext,
		callFrame(t, 1, "org.example.Other", "echo", 1, &ping{}),
		callFrame(t, 2, testProtocol, "echo", 7, &ping{}),
		callFrame(t, 3, testProtocol, "nothing", 1, &ping{}),
		noBody, badBody, trailing,
		callFrame(t, 6, testProtocol, "incomplete", 1, &ping{}),
		callFrame(t, 7, testProtocol, "echo", 1, &ping{}),
		// The method called last is known again by all that names it.
		callFrame(t, 9, testProtocol, "echo", 7, &ping{}),
		callFrame(t, 10, "org.example.Other", "echo", 1, &ping{}),
		callFrame(t, 11, testProtocol, "nothing", 1, &ping{}),
	), 11)) {
		got[h.GetCallId()] = h
	}
	for _, want := range []struct {
		id             uint32
		class, message string
		code           rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto
	}{
		{1, "org.apache.hadoop.ipc.RpcNoSuchProtocolException", "Unknown protocol: \"org.example.Other\"", codeNoSuchProtocol},
		{2, "org.apache.hadoop.ipc.RPC$VersionMismatch", "Protocol org.example.Echo version mismatch. (client = 7, server = 1)", codeProtocolVersion},
		{3, "org.apache.hadoop.ipc.RpcNoSuchMethodException", "Unknown method \"nothing\" called on org.example.Echo protocol.", codeNoSuchMethod},
		{4, "org.apache.hadoop.ipc.RpcServerException", "arguments of echo: ", codeServer},
		{5, "org.apache.hadoop.ipc.RpcServerException", "arguments of echo: ", codeServer},
		{6, "java.io.IOException", "encoding the response: ", codeSerializing},
		{9, "org.apache.hadoop.ipc.RPC$VersionMismatch", "Protocol org.example.Echo version mismatch. (client = 7, server = 1)", codeProtocolVersion},
		{10, "org.apache.hadoop.ipc.RpcNoSuchProtocolException", "Unknown protocol: \"org.example.Other\"", codeNoSuchProtocol},
		{11, "org.apache.hadoop.ipc.RpcNoSuchMethodException", "Unknown method \"nothing\" called on org.example.Echo protocol.", codeNoSuchMethod},
		{8, "org.apache.hadoop.ipc.RpcServerException", "arguments of echo: 1 bytes follow them", codeServer},
	} {
		h := got[want.id]
		if h.GetStatus() != statusError || h.GetExceptionClassName() != want.class || !strings.HasPrefix(h.GetErrorMsg(), want.message) || h.GetErrorDetail() != want.code {
			t.Errorf("call %d: %v", want.id, h)
		}
	}
	if len(got) != 11 || got[7].GetStatus() != statusSuccess {
		t.Errorf("the call after errors: %v", got[7])
	}
}

// Whatever the owner of a connection has read of it, the session is the same.
func TestServeConnAfter(t *testing.T) {
	session := join(unhex(t, goldenHello), unhex(t, goldenCall))
	for read := 0; read <= len(session); read++ {
		s := NewServer(Config{})
		s.Register(testProtocol, 1, Methods{"echo": Handle(echo).Short()})
		here, there := net.Pipe()
		first := bytes.Clone(session[:read])
		var served sync.WaitGroup
		served.Go(func() { s.ServeConnAfter(first, there) })
		served.Go(func() {
			if read == len(session) {
				return // not even an empty Write, which may come after the end
			}
			if _, err := here.Write(session[read:]); err != nil {
				t.Errorf("%d bytes read before: %v", read, err)
			}
		})
		got := make([]byte, len(unhex(t, goldenAnswer)))
		if _, err := io.ReadFull(here, got); err != nil || !bytes.Equal(got, unhex(t, goldenAnswer)) {
			t.Errorf("%d bytes read before: answer %x, %v", read, got, err)
		}
		here.Close()
		served.Wait()
		s.Close()
	}
}

// Names that a client made up come back short and printable.
func TestMadeUpNamesAreQuoted(t *testing.T) {
	name := "no\n\x00\u202e" + strings.Repeat("x", 1<<20)
	class, method := callFrame(t, 1, name, "echo", 1, &ping{}), callFrame(t, 2, testProtocol, name, 1, &ping{})
	address, _ := startServer(t, Config{}, nil)
	for _, h := range responses(t, exchange(t, address, join([]byte("hrpc\x09\x00\x00"), contextFrame(t), class, method), 2)) {
		m := h.GetErrorMsg()
		if h.GetStatus() != statusError || len(m) > 300 || !strings.Contains(m, `"no\n\x00\u202exxx`) || !strings.Contains(m, "(1048583 bytes)") {
			t.Errorf("%v with %d bytes: %.400q", h.GetStatus(), len(m), m)
		}
	}
	sasl := func(m *rpcpb.RpcSaslProto) []byte { return frameOf(t, requestHeader(wire.CallIDSASL), m) }
	name = name[:50_000]
	strict, _ := startServer(t, Config{RefuseSimple: true, Mechanisms: []Mechanism{
		Tokens(func([]byte) ([]byte, string, error) { return nil, "", io.EOF }),
	}}, nil)
	got := responses(t, exchange(t, strict, join([]byte("hrpc\x09\x00\xdf"), sasl(&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum()}),
		sasl(&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_INITIATE.Enum(), Auths: []*rpcpb.RpcSaslProto_SaslAuth{{Method: &name, Mechanism: proto.String("")}}}))))
	if n := len(got); n == 0 || len(got[n-1].GetErrorMsg()) > 300 || !strings.Contains(got[n-1].GetErrorMsg(), "(50000 bytes)") {
		t.Errorf("%d answers, the last one %.400v", n, got[max(n-1, 0)])
	}
}

func TestSASLInTheWrongPlace(t *testing.T) {
	negotiate := frameOf(t, requestHeader(wire.CallIDSASL), &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum()})
	for name, send := range map[string][]byte{
		"not asked for":          join([]byte("hrpc\x09\x00\x00"), negotiate),
		"context before the end": join([]byte("hrpc\x09\x00\xdf"), contextFrame(t)),
		"twice":                  join([]byte("hrpc\x09\x00\xdf"), negotiate, negotiate),
	} {
		address, _ := startServer(t, Config{}, nil)
		got := responses(t, exchange(t, address, send))
		if len(got) == 0 || got[len(got)-1].GetStatus() != statusFatal || got[len(got)-1].GetErrorDetail() != codeFatalHeader {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// colinmarc/hdfs counts no retries; the server's answer then says -1.
func TestGoldenSessionOfAGoClient(t *testing.T) {
	const (
		hello = "68727063 09 00 00" +
			"00000033" +
			"18 08 02 10 00 18 05 22 10 000102030405060708090a0b0c0d0e0f" +
			"19 12 05 0a 03 616461 1a 10 6f72672e6578616d706c652e4563686f"
		call = "00000038" +
			"18 08 02 10 00 18 02 22 10 000102030405060708090a0b0c0d0e0f" +
			"1a 0a 04 6563686f 12 10 6f72672e6578616d706c652e4563686f 18 01" +
			"03 0a 01 78"
		answer = "0000001f" +
			"1a 08 01 10 00 18 09 3a 10 000102030405060708090a0b0c0d0e0f 40 01" +
			"03 0a 01 78"
	)
	address, _ := startServer(t, Config{}, nil)
	// Its frames are right to the byte, or the lengths in them were not.
	first := unhex(t, hello)[7:]
	if n := binary.BigEndian.Uint32(first); int(n) != len(first)-4 {
		t.Fatalf("the golden context has %d bytes and says %d", len(first)-4, n)
	}
	got := exchange(t, address, join(unhex(t, hello), unhex(t, call)), 1)
	if want := unhex(t, answer); !bytes.Equal(got, want) {
		t.Errorf("answer\n%x, want\n%x", got, want)
	}
}

func TestFatalErrorOfAMethod(t *testing.T) {
	address, s := startServer(t, Config{}, Methods{"die": Handle(func(context.Context, *ping) (*ping, error) {
		return nil, fatal(codeApplication, "org.example.Gone", "gone")
	})})
	c := dialClient(t, address)
	err := c.Call(t.Context(), "die", &ping{}, &ping{})
	var e *exception.Error
	if !errors.As(err, &e) || e.Class != "org.example.Gone" {
		t.Errorf("%v", err)
	}
	if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); !errors.As(err, &e) || e.Class != "org.example.Gone" {
		t.Errorf("after a fatal error: %v", err)
	}
	<-c.ended
	s.Close()
}

// The fatal answer, and those before it, arrive whole even if they find the
// connection busy.
func TestFatalErrorAfterOtherAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, s, done := pipeServer(Config{}, Methods{
			"echo": Handle(echo),
			"die": Handle(func(context.Context, *ping) (*ping, error) {
				return nil, fatal(codeApplication, "org.example.Gone", "")
			}),
		})
		if _, err := here.Write(join([]byte("hrpc\x09\x00\x00"), contextFrame(t), echoFrame(t, 1))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // its answer goes out, and nobody reads
		if _, err := here.Write(callFrame(t, 2, testProtocol, "die", 1, &ping{})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		b, err := io.ReadAll(here)
		if err != nil {
			t.Fatal(err)
		}
		got := responses(t, b)
		if len(got) != 2 || got[0].GetStatus() != statusSuccess || got[1].GetStatus() != statusFatal {
			t.Errorf("%v", got)
		}
		<-done
		here.Close()
		s.Close()
	})
}

// pipeServer serves the test protocol on one end of a pipe.
func pipeServer(cfg Config, methods Methods) (here net.Conn, s *Server, done chan struct{}) {
	s = NewServer(cfg)
	s.Register(testProtocol, 1, methods)
	here, there := net.Pipe()
	done = make(chan struct{})
	go func() {
		defer close(done)
		s.ServeConn(there)
	}()
	return here, s, done
}

func echo(_ context.Context, req *ping) (*ping, error) { return req, nil }

func TestIdleConnectionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const idle = time.Minute
		here, s, done := pipeServer(Config{IdleTimeout: idle}, Methods{
			"echo": Handle(echo),
			"slow": Handle(func(_ context.Context, req *ping) (*ping, error) {
				time.Sleep(5*idle + idle/2) // in the bubble: no time passes
				return req, nil
			}),
		})
		c, err := NewConn(t.Context(), here, ada, ClientConfig{CallTimeout: time.Hour, IdleTimeout: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Call(t.Context(), "slow", &ping{}, &ping{}); err != nil {
			t.Errorf("a call longer than the idle timeout: %v", err)
		}
		time.Sleep(idle / 4)
		if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
			t.Errorf("a call within the idle timeout: %v", err)
		}
		start := time.Now()
		<-done
		if waited := time.Since(start); waited != idle {
			t.Errorf("the idle connection ended after %v, want %v", waited, idle)
		}
		c.Close()
		s.Close()
	})
}

// Clients of older versions are told in their own way why they are not served.
func TestOlderVersions(t *testing.T) {
	const class, message = "org.apache.hadoop.ipc.RPC$VersionMismatch", "Server IPC version 9 cannot communicate with client version "
	text := func(s string) string { return string([]byte{0, 0, 0, byte(len(s))}) + s }
	for version := byte(2); version < 9; version++ {
		want := "\xff\xff\xff\xff\xff\xff\xff\xff"
		if version == 2 {
			want = "\x00\x00\x00\x00\x01"
		}
		want += text(class) + text(fmt.Sprint(message, version))
		here, s, done := pipeServer(Config{}, nil)
		if _, err := here.Write([]byte{'h', 'r', 'p', 'c', version, 0, 0}); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(here, got); err != nil || string(got) != want {
			t.Errorf("version %d: %q, %v, want %q", version, got, err, want)
		}
		here.Close()
		<-done
		s.Close()
	}
}

// Who acts for another user needs the server's leave.
func TestImpersonation(t *testing.T) {
	asked := make(chan string, 4)
	address, _ := startServer(t, Config{Impersonate: func(realUser, user string, peer net.Addr) error {
		asked <- realUser + " for " + user
		if realUser != "oozie" {
			if user == "bob" {
				return exception.New(exception.Authorization, "of its own")
			}
			return errors.New("only oozie may")
		}
		if peer == nil {
			t.Error("no peer")
		}
		return nil
	}}, nil)
	for _, test := range []struct {
		realUser, user string
		asks, may      bool
	}{{"", "ada", false, true}, {"ada", "ada", false, true}, {"oozie", "ada", true, true}, {"eve", "ada", true, false}, {"eve", "bob", true, false}} {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewConn(t.Context(), nc, Target{Protocol: testProtocol, User: test.user, RealUser: test.realUser}, ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Call(t.Context(), "echo", &ping{}, &ping{})
		var refused *exception.Error
		// The refusal may come before the call has been sent, or after.
		if test.may && err != nil || !test.may && (!errors.As(err, &refused) || refused.Class != exception.Authorization) {
			t.Errorf("%+v: %v", test, err)
		}
		if got := refused; got != nil && (got.Message == "of its own") != (test.user == "bob") {
			t.Errorf("%+v: %v", test, err)
		}
		if test.asks {
			if got, want := <-asked, test.realUser+" for "+test.user; got != want {
				t.Errorf("asked about %s, want %s", got, want)
			}
		}
		c.Close()
	}
	if len(asked) > 0 {
		t.Errorf("asked about %s", <-asked)
	}
}

func TestHandshakeTimeout(t *testing.T) {
	for name, sent := range map[string]string{"silent": "", "half a preamble": "hrp", "no context": "hrpc\x09\x00\x00", "half a frame": "hrpc\x09\x00\x00\x00\x00\x10\x00\x05"} {
		synctest.Test(t, func(t *testing.T) {
			here, s, done := pipeServer(Config{HandshakeTimeout: 7 * time.Second}, nil)
			start := time.Now()
			if _, err := io.WriteString(here, sent); err != nil {
				t.Fatal(err)
			}
			<-done
			if waited := time.Since(start); waited != 7*time.Second {
				t.Errorf("%s: ended after %v", name, waited)
			}
			here.Close()
			s.Close()
		})
	}
}

// Too many calls, or too large ones, wait unread.
func TestCallsInFlightAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		cfg   Config
		size  int
		calls int
		want  int32
	}{
		"number": {Config{MaxInFlight: 3}, 0, 8, 3},
		"bytes":  {Config{MaxFrame: 1 << 20}, 300 << 10, 8, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var running atomic.Int32
				release := make(chan struct{})
				here, s, done := pipeServer(test.cfg, Methods{"wait": Handle(func(_ context.Context, req *ping) (*ping, error) {
					running.Add(1)
					<-release
					return &ping{}, nil
				})})
				c, err := NewConn(t.Context(), here, ada, ClientConfig{})
				if err != nil {
					t.Fatal(err)
				}
				text := strings.Repeat("x", test.size)
				var calls sync.WaitGroup
				for range test.calls {
					calls.Go(func() {
						if err := c.Call(context.Background(), "wait", &ping{EffectiveUser: &text}, &ping{}); err != nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
				if n := running.Load(); n != test.want {
					t.Errorf("%d calls run, want %d", n, test.want)
				}
				close(release)
				calls.Wait()
				c.Close()
				<-done
				s.Close()
			})
		})
	}
}

// A call counts with all of its message, whatever part of it is the argument.
func TestBytesInFlightAreTheMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls = 8
		var running atomic.Int32
		release := make(chan struct{})
		here, s, done := pipeServer(Config{MaxFrame: 1 << 20}, Methods{"wait": Handle(func(_ context.Context, req *ping) (*ping, error) {
			running.Add(1)
			<-release
			return req, nil
		})})
		send := join([]byte("hrpc\x09\x00\x00"), contextFrame(t))
		for id := range int32(calls) {
			h := requestHeader(id)
			h.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), make([]byte, 300<<10)))
			send = append(send, frameOf(t, h, &rpcpb.RequestHeaderProto{
				MethodName: proto.String("wait"), DeclaringClassProtocolName: proto.String(testProtocol), ClientProtocolVersion: proto.Uint64(1)}, &ping{})...)
		}
		go func() {
			if _, err := here.Write(send); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		if n := running.Load(); n != 3 {
			t.Errorf("%d calls run, want 3", n)
		}
		close(release)
		r := stream.NewReader(here, 1<<20)
		for range calls {
			if _, err := r.Next(); err != nil {
				t.Fatal(err)
			}
		}
		here.Close()
		<-done
		s.Close()
	})
}

// A client that has not said who it is gets little memory, and names stay short.
func TestIntroductionIsBounded(t *testing.T) {
	hello := []byte("hrpc\x09\x00\x00")
	as := func(user, realUser string) []byte {
		return frameOf(t, requestHeader(wire.CallIDContext), &rpcpb.IpcConnectionContextProto{
			UserInfo: &ping{EffectiveUser: &user, RealUser: &realUser}, Protocol: proto.String(testProtocol)})
	}
	address, _ := startServer(t, Config{}, nil)
	for name, test := range map[string]struct {
		context []byte
		code    rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto
	}{
		"long frame":     {as(strings.Repeat("x", mostUnknown), ""), codeFatalHeader},
		"long name":      {as(strings.Repeat("x", mostName+1), ""), codeFatalUnauthorized},
		"long real name": {as("ada", strings.Repeat("x", mostName+1)), codeFatalUnauthorized},
	} {
		got := responses(t, exchange(t, address, join(hello, test.context)))
		if len(got) != 1 || got[0].GetStatus() != statusFatal || got[0].GetErrorDetail() != test.code {
			t.Errorf("%s: %v", name, got)
		}
	}
	longest := strings.Repeat("x", mostName)
	long := callFrame(t, 1, testProtocol, "whoami", 1, &ping{EffectiveUser: proto.String(strings.Repeat("y", 2*mostUnknown))})
	got := responses(t, exchange(t, address, join(hello, as(longest, longest), long), 1))
	if len(got) != 1 || got[0].GetStatus() != statusSuccess {
		t.Errorf("a long call of a user whose name has %d bytes: %v", mostName, got)
	}
}

// An answer that waits for a flush does not wait for the end of a long request.
func TestAnswerGoesOutBeforeALongFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, s, done := pipeServer(Config{}, Methods{"echo": Handle(echo).Short()})
		beginning := binary.BigEndian.AppendUint32(nil, 1<<20)
		go func() {
			_, _ = here.Write(join([]byte("hrpc\x09\x00\x00"), contextFrame(t), echoFrame(t, 1), beginning, make([]byte, 100)))
		}()
		if _, err := stream.NewReader(here, 1<<20).Next(); err != nil {
			t.Errorf("no answer: %v", err)
		}
		here.Close()
		<-done
		s.Close()
	})
}

func TestCloseEndsCallsAndWaits(t *testing.T) {
	started := make(chan struct{})
	ended := false
	here, s, done := pipeServer(Config{}, Methods{"wait": Handle(func(ctx context.Context, req *ping) (*ping, error) {
		close(started)
		<-ctx.Done()
		ended = true
		return nil, ctx.Err()
	})})
	c, err := NewConn(t.Context(), here, ada, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- c.Call(context.Background(), "wait", &ping{}, &ping{}) }()
	<-started
	s.Close()
	if !ended {
		t.Error("Close did not wait for the call")
	}
	if err := <-result; err == nil {
		t.Error("a call on a closed server succeeded")
	}
	<-done
	c.Close()
	late, other := net.Pipe()
	s.ServeConn(late)
	if _, err := other.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a connection to a closed server: %v", err)
	}
}

// A server that does not read must not hold a caller beyond its context.
func TestClientWritesWithinTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() { // takes the preamble and the context, and then nothing
			_, _ = io.ReadFull(there, make([]byte, 7))
			_, _ = stream.NewReader(there, 1<<10).Next()
		}()
		c, err := NewConn(t.Context(), here, ada, ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				if err := c.Call(ctx, "echo", &ping{}, &ping{}); err == nil {
					t.Error("a call that nobody read succeeded")
				}
			})
		}
		calls.Wait()
		c.Close()
		there.Close()
	})
}

func TestMetrics(t *testing.T) {
	address, s := startServer(t, Config{}, nil)
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(s); err != nil {
		t.Fatal(err)
	}
	c := dialClient(t, address)
	for range 3 {
		if err := c.Call(t.Context(), "echo", &ping{}, &ping{}); err != nil {
			t.Fatal(err)
		}
	}
	_ = c.Call(t.Context(), "fail", &ping{}, &ping{})
	_ = c.Call(t.Context(), "panic", &ping{}, &ping{})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				if l.GetName() == "method" {
					key += " " + l.GetValue()
				}
			}
			got[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for key, want := range map[string]float64{
		"verbena_hadoop_rpc_connections":             1,
		"verbena_hadoop_rpc_call_seconds echo":       3,
		"verbena_hadoop_rpc_call_errors_total echo":  0,
		"verbena_hadoop_rpc_call_errors_total fail":  1,
		"verbena_hadoop_rpc_call_errors_total panic": 1,
		"verbena_hadoop_rpc_calls_running echo":      0,
	} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s is %v (there: %v), want %v", key, value, ok, want)
		}
	}
}

func TestClientIDsThatAreNone(t *testing.T) {
	address, _ := startServer(t, Config{}, nil)
	for _, size := range []int{0, 1, 16, 17, 100_000} {
		header := requestHeader(1)
		header.ClientId = bytes.Repeat([]byte{7}, size)
		got := exchange(t, address, join([]byte("hrpc\x09\x00\x00"), contextFrame(t), frameOf(t, header, &rpcpb.RequestHeaderProto{
			MethodName: proto.String("whoami"), DeclaringClassProtocolName: proto.String(testProtocol), ClientProtocolVersion: proto.Uint64(1)}, &ping{})), 1)
		headers := responses(t, got)
		if len(headers) != 1 || headers[0].GetStatus() != statusSuccess {
			t.Errorf("%d bytes: %v", size, headers)
			continue
		}
		want := size
		if size > 16 {
			want = 0
		}
		if n := len(headers[0].GetClientId()); n != want {
			t.Errorf("a client id of %d bytes came back with %d", size, n)
		}
		prefix := "0000"
		if size == 16 {
			prefix = "0707"
		}
		if !bytes.Contains(got, []byte(prefix+" 0 whoami")) {
			t.Errorf("a client id of %d bytes is seen as another by the method: %q", size, got)
		}
	}
}
