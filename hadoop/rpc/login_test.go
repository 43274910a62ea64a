package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"net"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
	"github.com/verbena-data/verbena/rdma"
)

// A toy mechanism in three steps, of which the client makes the first: user and nonce,
// nonce, proof; the server's consent has its own proof.
const (
	toyMethod, toyName = "KERBEROS", "X-TOY"
	toyKey             = "the key"
)

func toyProof(key, what string, nonces ...[]byte) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(what))
	for _, n := range nonces {
		mac.Write(n)
	}
	return mac.Sum(nil)
}

// toyServer is the server's side. It consents with a proof by its key.
type toyServer struct {
	key          string
	user         string
	nonces       [2][]byte
	step, rounds int // rounds: challenges more than needed
}

func (s *toyServer) Challenge() ([]byte, error) { return nil, nil }
func (s *toyServer) User() string               { return s.user }

func (s *toyServer) Next(token []byte) (answer []byte, done bool, err error) {
	switch s.step++; {
	case s.step == 1:
		user, nonce, ok := strings.Cut(string(token), "\x00")
		if !ok {
			return nil, false, errors.New("no nonce")
		}
		s.user, s.nonces[0], s.nonces[1] = user, []byte(nonce), []byte(rand.Text())
		return s.nonces[1], false, nil
	case s.step < 2+s.rounds:
		return []byte("more"), false, nil
	}
	if s.rounds == 0 && !hmac.Equal(token, toyProof(toyKey, "client", s.nonces[:]...)) {
		return nil, false, exception.New(exception.AccessControl, "%s is not proven", s.user)
	}
	return toyProof(s.key, "server", s.nonces[:]...), true, nil
}

func toyMechanism(serverKey string, rounds int) Mechanism {
	return Mechanism{Method: toyMethod, Name: toyName, Protocol: "nn", ServerID: "host", Start: func() Exchange {
		return &toyServer{key: serverKey, rounds: rounds - 1}
	}}
}

// toyClient is the client's side.
type toyClient struct {
	user, key string
	nonces    [2][]byte
	step      int
}

func (c *toyClient) Respond(_ context.Context, challenge []byte) ([]byte, error) {
	c.step++
	if c.step == 1 {
		if challenge != nil {
			return nil, errors.New("the server spoke first")
		}
		c.nonces[0] = []byte(rand.Text())
		return append([]byte(c.user+"\x00"), c.nonces[0]...), nil
	}
	if c.step == 2 {
		c.nonces[1] = append([]byte(nil), challenge...)
		return toyProof(c.key, "client", c.nonces[:]...), nil
	}
	return nil, nil
}

func (c *toyClient) Finish(last []byte) error {
	if !hmac.Equal(last, toyProof(toyKey, "server", c.nonces[:]...)) {
		return errors.New("it does not know the key")
	}
	return nil
}

func toyLogin(t *testing.T, user, key string) *Login {
	return &Login{Method: toyMethod, Name: toyName, Start: func(protocol, serverID string) (LoginExchange, error) {
		if protocol != "nn" || serverID != "host" {
			t.Errorf("the server calls itself %s/%s", protocol, serverID)
		}
		return &toyClient{user: user, key: key}, nil
	}}
}

// A mechanism from outside, at both ends, over TCP.
func TestLogin(t *testing.T) {
	noTokens := Tokens(func([]byte) ([]byte, string, error) { return nil, "", errors.New("no such token") })
	for name, c := range map[string]struct {
		server Config
		login  *Login
		user   string
		says   string // "" for success
	}{
		"good":                {server: Config{RefuseSimple: true, Mechanisms: []Mechanism{toyMechanism(toyKey, 1)}}, login: toyLogin(t, "ada", toyKey)},
		"the second of two":   {server: Config{RefuseSimple: true, Mechanisms: []Mechanism{noTokens, toyMechanism(toyKey, 1)}}, login: toyLogin(t, "ada", toyKey)},
		"says who it is, too": {server: Config{RefuseSimple: true, Mechanisms: []Mechanism{toyMechanism(toyKey, 1)}}, login: toyLogin(t, "ada", toyKey), user: "ada"},
		"says another":        {server: Config{RefuseSimple: true, Mechanisms: []Mechanism{toyMechanism(toyKey, 1)}}, login: toyLogin(t, "ada", toyKey), user: "bob", says: "doesn't match"},
		"another key":         {server: Config{Mechanisms: []Mechanism{toyMechanism(toyKey, 1)}}, login: toyLogin(t, "ada", "guess"), says: "ada is not proven"},
		"another server":      {server: Config{Mechanisms: []Mechanism{toyMechanism("guess", 1)}}, login: toyLogin(t, "ada", toyKey), says: "it does not know the key"},
		"for ever":            {server: Config{Mechanisms: []Mechanism{toyMechanism(toyKey, 1000)}}, login: toyLogin(t, "ada", toyKey), says: "16 challenges"},
		"nothing offered":     {server: Config{}, login: toyLogin(t, "ada", toyKey), says: "takes anybody"},
		"tokens alone":        {server: Config{RefuseSimple: true, Mechanisms: []Mechanism{noTokens}}, login: toyLogin(t, "ada", toyKey), says: `does not take KERBEROS by X-TOY, but "TOKEN" by "DIGEST-MD5"`},
		"no start":            {server: Config{}, login: &Login{Method: toyMethod}, says: "needs a Method and Start"},
	} {
		t.Run(name, func(t *testing.T) {
			address, _ := startServer(t, c.server, nil)
			nc, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := NewConn(t.Context(), nc, Target{Protocol: testProtocol, Login: c.login, User: c.user}, ClientConfig{})
			var who ping
			if err == nil {
				defer conn.Close()
				err = conn.Call(t.Context(), "whoami", &ping{}, &who)
			}
			switch {
			case c.says == "" && (err != nil || who.GetEffectiveUser() != "ada"):
				t.Errorf("%v, %v", &who, err)
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

// A server gives a challenge with the first mechanism of its offer alone. A client whose token is by the second
// asks for one.
func TestTokenByTheSecondMechanism(t *testing.T) {
	tokens := Tokens(func(identifier []byte) ([]byte, string, error) {
		if string(identifier) != "ident" {
			return nil, "", errors.New("no such token")
		}
		return []byte("secret"), "ada", nil
	})
	address, _ := startServer(t, Config{RefuseSimple: true, Mechanisms: []Mechanism{toyMechanism(toyKey, 1), tokens}}, nil)
	for password, good := range map[string]bool{"secret": true, "guess": false} {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := NewConn(t.Context(), nc, Target{Protocol: testProtocol, Token: &Token{Identifier: []byte("ident"), Password: []byte(password)}}, ClientConfig{})
		if (err == nil) != good {
			t.Errorf("with the password %s: %v", password, err)
		}
		if err != nil {
			continue
		}
		var who ping
		if err := conn.Call(t.Context(), "whoami", &ping{}, &who); err != nil || who.GetEffectiveUser() != "ada" {
			t.Errorf("%v, %v", &who, err)
		}
		conn.Close()
	}
	// One challenge is enough, at both ends.
	exchange := tokens.Start()
	if answer, done, err := exchange.Next(nil); err != nil || done || len(answer) == 0 {
		t.Errorf("an empty token is answered %q, %t, %v", answer, done, err)
	}
	if _, _, err := exchange.Next(nil); err == nil {
		t.Error("a second empty token is answered")
	}
	login, err := (&Token{}).login().Start("", "default")
	if err != nil {
		t.Fatal(err)
	}
	if first, err := login.Respond(t.Context(), nil); err != nil || len(first) > 0 {
		t.Errorf("the client begins with %q, %v", first, err)
	}
	if _, err := login.Respond(t.Context(), nil); err == nil {
		t.Error("a second time, too")
	}
}

// The same over endpoints, by a client with a pool.
func TestEndpointLogin(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{RefuseSimple: true, Mechanisms: []Mechanism{toyMechanism(toyKey, 1)}},
			Methods{"whoami": Handle(func(ctx context.Context, _ *ping) (*ping, error) {
				return &ping{EffectiveUser: proto.String(FromContext(ctx).User)}, nil
			})}, providers)
		var who ping
		p := s.proxy(t, ClientConfig{Attempts: 1}, Target{Protocol: testProtocol, Login: toyLogin(t, "ada", toyKey)})
		if err := p.Call(t.Context(), "whoami", &ping{}, &who); err != nil || who.GetEffectiveUser() != "ada" {
			t.Errorf("%v, %v", &who, err)
		}
		p = s.proxy(t, ClientConfig{Attempts: 1}, Target{Protocol: testProtocol, Login: toyLogin(t, "ada", "guess")})
		wantClass(t, p.Call(t.Context(), "whoami", &ping{}, &who), exception.AccessControl)
	})
}

// A peer that wraps messages is told why that ends: before, in and after a negotiation.
func TestWrappedMessages(t *testing.T) {
	address, _ := startServer(t, Config{Mechanisms: []Mechanism{toyMechanism(toyKey, 1)}}, nil)
	sasl := func(m *rpcpb.RpcSaslProto) []byte { return frameOf(t, requestHeader(wire.CallIDSASL), m) }
	wrap := sasl(&rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_WRAP.Enum(), Token: []byte("sealed")})
	for _, test := range []struct {
		name, want string
		send       []byte
	}{
		{"a simple session", "SASL protocol not requested by client", join([]byte("hrpc\x09\x00\x00"), contextFrame(t), wrap)},
		{"a negotiation", "Server is not wrapping data", join([]byte("hrpc\x09\x00\xdf"), wrap)},
	} {
		got := responses(t, exchange(t, address, test.send))
		if len(got) == 0 || got[len(got)-1].GetStatus() != statusFatal || got[len(got)-1].GetErrorMsg() != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	offer := &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum(), Auths: []*rpcpb.RpcSaslProto_SaslAuth{
		{Method: proto.String(toyMethod), Mechanism: proto.String(toyName), Protocol: proto.String("nn"), ServerId: proto.String("host")}}}
	err := toyLogin(t, "ada", toyKey).authenticate(t.Context(), func(_ context.Context, m *rpcpb.RpcSaslProto) (*rpcpb.RpcSaslProto, error) {
		if m.GetState() == rpcpb.RpcSaslProto_NEGOTIATE {
			return offer, nil
		}
		return &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_WRAP.Enum()}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "hadoop.rpc.protection") {
		t.Error(err)
	}
}
