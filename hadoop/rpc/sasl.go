package rpc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// Mechanism is a way to authenticate by SASL, as a server offers it. [Tokens] makes
// the usual one; another, as Kerberos, can be hooked in, at the client by [Login]. What
// follows the authentication is neither signed nor encrypted: an exchange must agree on
// SASL's protection auth, and a client that wraps messages is refused.
type Mechanism struct {
	// Method is what Hadoop calls it: TOKEN, KERBEROS or PLAIN.
	Method string
	// Name is the SASL name: DIGEST-MD5, GSSAPI, PLAIN.
	Name string
	// Protocol and ServerID name the server in the exchange.
	Protocol, ServerID string
	// Start begins an exchange with one client.
	Start func() Exchange
}

// Exchange is the server's side of one authentication. It is used by one
// goroutine.
type Exchange interface {
	// Challenge is the first token if the server speaks first, nil otherwise.
	Challenge() ([]byte, error)
	// Next takes a token of the client and returns the answer. done tells that
	// the client is who it says. An [*exception.Error] reaches the client as it
	// is, any other error as javax.security.sasl.SaslException.
	Next(token []byte) (answer []byte, done bool, err error)
	// User is the client's name, after done.
	User() string
}

const simpleMethod = "SIMPLE"

// authentication is where a session's SASL negotiation stands.
type authentication struct {
	negotiating bool // it was asked for and is not over
	offered     bool
	exchange    Exchange
	chosen      *Mechanism // whose exchange it is
	user        string     // who has authenticated, "" for simple
}

// check refuses a client that introduces itself as somebody else.
func (a *authentication) check(s *session) *failure {
	cfg := &s.server.cfg
	if a.user == "" {
		if cfg.RefuseSimple {
			return s.server.notEnabled(simpleMethod)
		}
		if s.realUser == s.user {
			s.realUser = ""
		}
		if s.realUser == "" || cfg.Impersonate == nil {
			return nil
		}
		return s.impersonates(s.realUser)
	}
	if s.user == "" || s.user == a.user {
		s.user, s.realUser = a.user, ""
		return nil
	}
	if cfg.Impersonate == nil || s.realUser != "" && s.realUser != a.user || a.chosen != nil && a.chosen.Method == tokenMethod {
		method := simpleMethod
		if a.chosen != nil {
			method = a.chosen.Method
		}
		return unauthorized(fmt.Sprintf("Authenticated user (%s (auth:%s)) doesn't match what the client claims to be (%s (auth:%s))", a.user, method, s.user, simpleMethod))
	}
	s.realUser = a.user
	return s.impersonates(a.user)
}

// impersonates asks whether a client may act as the session's user.
func (s *session) impersonates(realUser string) *failure {
	if err := s.server.cfg.Impersonate(realUser, s.user, s.peer); err != nil {
		var e *exception.Error
		if errors.As(err, &e) {
			return &failure{refusal: e, fatal: true, code: codeFatalUnauthorized}
		}
		return fatal(codeFatalUnauthorized, exception.Authorization,
			fmt.Sprintf("User: %s is not allowed to impersonate %s: %v", quoted([]byte(realUser)), quoted([]byte(s.user)), err))
	}
	return nil
}

func unauthorized(message string) *failure {
	return fatal(codeFatalUnauthorized, exception.AccessControl, message)
}

// notEnabled refuses a method, as Hadoop does.
func (s *Server) notEnabled(method string) *failure {
	var list []string
	for i := range s.cfg.Mechanisms {
		list = append(list, s.cfg.Mechanisms[i].Method)
	}
	if !s.cfg.RefuseSimple {
		list = append(list, simpleMethod)
	}
	if q := quoted([]byte(method)); q != strconv.Quote(method) || len(q) != len(method)+2 {
		method = q // it is long, or not printable
	}
	return unauthorized(method + " authentication is not enabled.  Available:[" + strings.Join(list, ", ") + "]")
}

// authenticates takes what the preamble says of the authentication.
func (s *session) authenticates(kind byte) error {
	switch kind {
	case authSASL:
		s.auth.negotiating = true
		return nil
	case authNone:
		if s.server.cfg.RefuseSimple {
			return s.tell(s.unasked(wire.CallIDNone), s.server.notEnabled(simpleMethod))
		}
		return nil
	}
	return s.tell(s.unasked(wire.CallIDNone), fatal(codeFatalUnauthorized, exception.IPC, fmt.Sprintf("Unknown auth protocol:%d", kind)))
}

// sasl takes a message of the negotiation.
func (s *session) sasl(to replyTo, rest []byte) error {
	m := &rpcpb.RpcSaslProto{}
	body, _, err := wire.Next(rest)
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	switch {
	case err != nil:
		return s.tell(to, fatal(codeFatalRequest, exception.RPCServer, "SASL message: "+err.Error()))
	case !s.auth.negotiating && s.auth.user == "":
		return s.tell(to, fatal(codeFatalHeader, exception.RPCServer, "SASL protocol not requested by client"))
	case m.GetState() == rpcpb.RpcSaslProto_WRAP: // where hadoop.rpc.protection is not authentication
		return s.tell(to, fatal(codeFatalHeader, exception.SASL, "Server is not wrapping data"))
	case !s.auth.negotiating:
		return s.tell(to, fatal(codeFatalHeader, exception.SASL, "Negotiation is already complete"))
	}
	answer, err := s.auth.next(s.server, m)
	if err != nil {
		return s.tell(to, refused(err))
	}
	if failed := s.server.shorten(&s.auth.user); failed != nil {
		return s.tell(to, failed)
	}
	if answer == nil {
		return nil
	}
	return s.reply(&to, answer, carrier.Now)
}

// refused is an error of an exchange as the client gets it.
func refused(err error) *failure {
	var own *failure
	if errors.As(err, &own) {
		return own
	}
	var e *exception.Error
	if errors.As(err, &e) {
		return &failure{refusal: e, fatal: true, code: codeFatalUnauthorized}
	}
	return fatal(codeFatalUnauthorized, exception.SASL, err.Error())
}

// next is the answer to a message of the negotiation, or nil if it wants none.
func (a *authentication) next(s *Server, m *rpcpb.RpcSaslProto) (*rpcpb.RpcSaslProto, error) {
	switch m.GetState() {
	case rpcpb.RpcSaslProto_NEGOTIATE:
		if a.offered {
			return nil, unauthorized("Client already attempted negotiation")
		}
		return a.offer(s)
	case rpcpb.RpcSaslProto_INITIATE:
		if a.chosen != nil {
			return nil, unauthorized("Client already chose a mechanism")
		}
		return a.choose(s, m)
	case rpcpb.RpcSaslProto_RESPONSE:
		return a.step(m)
	}
	return nil, errors.New("Client sent unsupported state " + m.GetState().String())
}

// offer tells the client what there is. A server of simple clients alone ends
// the negotiation with that.
func (a *authentication) offer(s *Server) (*rpcpb.RpcSaslProto, error) {
	a.offered = true
	if len(s.cfg.Mechanisms) == 0 {
		a.negotiating = false
		return &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_SUCCESS.Enum()}, nil
	}
	answer := &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_NEGOTIATE.Enum()}
	for i := range s.cfg.Mechanisms {
		auth := s.cfg.Mechanisms[i].offered()
		if i == 0 { // most clients take the first, which saves them a turn
			a.exchange = s.cfg.Mechanisms[i].Start()
			var err error
			if auth.Challenge, err = a.exchange.Challenge(); err != nil {
				return nil, err
			}
		}
		answer.Auths = append(answer.Auths, auth)
	}
	if !s.cfg.RefuseSimple {
		answer.Auths = append(answer.Auths, &rpcpb.RpcSaslProto_SaslAuth{Method: proto.String(simpleMethod), Mechanism: proto.String("")})
	}
	return answer, nil
}

func (m *Mechanism) offered() *rpcpb.RpcSaslProto_SaslAuth {
	return &rpcpb.RpcSaslProto_SaslAuth{
		Method: &m.Method, Mechanism: &m.Name, Protocol: &m.Protocol, ServerId: &m.ServerID,
	}
}

// choose takes the client's choice, with its first token.
func (a *authentication) choose(s *Server, m *rpcpb.RpcSaslProto) (*rpcpb.RpcSaslProto, error) {
	if len(m.GetAuths()) != 1 {
		return nil, errors.New("Client mechanism is malformed")
	}
	auth := m.GetAuths()[0]
	if auth.GetMethod() == simpleMethod && !s.cfg.RefuseSimple {
		a.negotiating, a.exchange = false, nil
		return nil, nil
	}
	for i := range s.cfg.Mechanisms {
		mechanism := &s.cfg.Mechanisms[i]
		if !proto.Equal(auth, mechanism.offered()) {
			continue
		}
		if a.exchange == nil || i > 0 {
			a.exchange = mechanism.Start()
		}
		a.chosen = mechanism
		return a.step(m)
	}
	if a.offered {
		return nil, s.notEnabled(auth.GetMethod())
	}
	return a.offer(s)
}

// step takes a token of the chosen mechanism.
func (a *authentication) step(m *rpcpb.RpcSaslProto) (*rpcpb.RpcSaslProto, error) {
	if a.chosen == nil || m.Token == nil {
		return nil, errors.New("Client did not send a token")
	}
	token, done, err := a.exchange.Next(m.GetToken())
	if err != nil {
		return nil, err
	}
	answer := &rpcpb.RpcSaslProto{State: rpcpb.RpcSaslProto_CHALLENGE.Enum(), Token: token}
	if done {
		answer.State = rpcpb.RpcSaslProto_SUCCESS.Enum()
		a.negotiating = false
		if a.user = a.exchange.User(); a.user == "" {
			return nil, errors.New("the mechanism names no user")
		}
	}
	return answer, nil
}
