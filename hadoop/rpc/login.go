package rpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/digest"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

// Login is a way to authenticate by SASL, as a client has it: the other side of
// [Mechanism]. Tokens have theirs in [Target].Token; another, as Kerberos, can be hooked
// in. What follows the authentication is neither signed nor encrypted, so an exchange
// must not agree on SASL's auth-int or auth-conf; a server that wraps messages is left
// with an error.
type Login struct {
	// Method is what Hadoop calls it: KERBEROS, PLAIN.
	Method string
	// Name is the SASL name: GSSAPI, PLAIN.
	Name string
	// Start begins an exchange with a server, which calls itself so in its offer; of a
	// Kerberos principal protocol is the first part and serverID the host. It may be
	// called concurrently.
	Start func(protocol, serverID string) (LoginExchange, error)
}

// LoginExchange is the client's side of one authentication. It is used by one
// goroutine.
type LoginExchange interface {
	// Respond returns the next token for the server. challenge is what the server has
	// said: nil at first, unless it has spoken with its offer. A nil response travels as
	// one of no bytes. The exchange may keep neither.
	Respond(ctx context.Context, challenge []byte) (response []byte, err error)
	// Finish takes what came with the server's consent, nil if nothing did. It fails if
	// the exchange is not over, or the server has not shown that it is the right one.
	Finish(last []byte) error
}

// mostChallenges is how often a server may answer a token by a challenge. Kerberos
// takes two.
const mostChallenges = 16

// errUnproven says that a server takes anybody.
var errUnproven = errors.New("the server asks for no authentication: it takes anybody who connects without")

// login is how the target's user authenticates, or nil.
func (t *Target) login() *Login {
	if t.Token != nil {
		return t.Token.login()
	}
	return t.Login
}

// authenticate negotiates SASL.
func (l *Login) authenticate(ctx context.Context, sasl saslTurn) error {
	if l.Method == "" || l.Start == nil {
		return errors.New("a Login needs a Method and Start")
	}
	answer, err := sasl(ctx, &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum()})
	if err != nil {
		return err
	}
	switch answer.GetState() {
	case rpcpb.RpcSaslProto_SUCCESS:
		return errUnproven
	case rpcpb.RpcSaslProto_NEGOTIATE:
	default:
		return l.unexpected(answer)
	}
	for _, auth := range answer.GetAuths() {
		if auth.GetMethod() == l.Method && auth.GetMechanism() == l.Name {
			return l.choose(ctx, auth, sasl)
		}
	}
	return fmt.Errorf("the server does not take %s by %s, but%s", l.Method, l.Name, offered(answer))
}

// offered lists the methods of an offer.
func offered(m *rpcpb.RpcSaslProto) (list string) {
	for _, auth := range m.GetAuths() {
		list += fmt.Sprintf(" %s by %s", quoted([]byte(auth.GetMethod())), quoted([]byte(auth.GetMechanism())))
	}
	if list == "" {
		return " nothing"
	}
	return list
}

// choose takes what the server offers and proves to it who the client is.
func (l *Login) choose(ctx context.Context, auth *rpcpb.RpcSaslProto_SaslAuth, sasl saslTurn) error {
	exchange, err := l.Start(auth.GetProtocol(), auth.GetServerId())
	if err != nil {
		return fmt.Errorf("%s: %w", l.Method, err)
	}
	chosen := proto.CloneOf(auth)
	chosen.Challenge = nil
	m := &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_INITIATE.Enum(), Auths: []*rpcpb.RpcSaslProto_SaslAuth{chosen}}
	challenge := auth.Challenge
	for range mostChallenges {
		if m.Token, err = exchange.Respond(ctx, challenge); err != nil {
			return fmt.Errorf("%s: %w", l.Method, err)
		}
		if m.Token == nil {
			m.Token = []byte{} // a server wants one
		}
		answer, err := sasl(ctx, m)
		if err != nil {
			return err
		}
		switch answer.GetState() {
		case rpcpb.RpcSaslProto_SUCCESS:
			if err := exchange.Finish(answer.Token); err != nil {
				return fmt.Errorf("%s: the server's last token: %w", l.Method, err)
			}
			return nil
		case rpcpb.RpcSaslProto_CHALLENGE:
		default:
			return l.unexpected(answer)
		}
		challenge = answer.Token
		m = &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_RESPONSE.Enum()}
	}
	return fmt.Errorf("%s: the server has sent %d challenges", l.Method, mostChallenges)
}

func (l *Login) unexpected(answer *rpcpb.RpcSaslProto) error {
	if answer.GetState() == rpcpb.RpcSaslProto_WRAP {
		return fmt.Errorf("%s: %s", l.Method, unprotected)
	}
	return fmt.Errorf("%s: the server answers with %v", l.Method, answer.GetState())
}

// unprotected is what a client is told whose server wraps messages.
const unprotected = "messages that are signed or encrypted by SASL (auth-int, auth-conf) are not supported: hadoop.rpc.protection has to be authentication"

// login is the token's.
func (t *Token) login() *Login {
	return &Login{Method: tokenMethod, Name: tokenMechanism, Start: func(protocol, serverID string) (LoginExchange, error) {
		return &tokenLogin{client: t.client(protocol, serverID)}, nil
	}}
}

type tokenLogin struct {
	client *digest.Client
	begun  bool
}

func (e *tokenLogin) Respond(_ context.Context, challenge []byte) ([]byte, error) {
	first := !e.begun
	e.begun = true
	if challenge == nil && first {
		return nil, nil // servers give a challenge with the first mechanism of their offer alone
	}
	return e.client.Respond(challenge)
}

func (e *tokenLogin) Finish(last []byte) error { return e.client.Check(last) }
