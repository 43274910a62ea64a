package rpc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/wire"
)

// hadoopServersVariable has the tests ask Hadoop's own servers and write down what they
// answer: KIND=ADDRESS of each, as testdata/Negotiation.java prints them, with commas
// between.
const hadoopServersVariable = "VERBENA_HADOOP_RPC"

// A dialogue is a client's side of a negotiation, word by word.
type dialogue struct {
	t     *testing.T
	nc    net.Conn
	r     *bufio.Reader
	told  []string
	offer *rpcpb.RpcSaslProto // the last
	over  bool                // the server has said its last
	pause time.Duration       // in which it would answer what it does not
}

// say sends a message and notes the answer.
func (d *dialogue) say(b []byte) {
	if d.over {
		return
	}
	if _, err := d.nc.Write(b); err != nil {
		d.t.Fatal(err)
	}
	d.hear()
}

// silent sends a message that gets no answer, but for a refusal. Who sends another to a
// server that has refused may lose its word.
func (d *dialogue) silent(b []byte) {
	if d.over {
		return
	}
	if _, err := d.nc.Write(b); err != nil {
		d.t.Fatal(err)
	}
	if err := d.nc.SetReadDeadline(time.Now().Add(d.pause)); err != nil {
		d.t.Fatal(err)
	}
	if _, err := d.r.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		d.hear()
	}
}

// end says no more, and hears what the server has yet to say: it may have been slower than
// the pause.
func (d *dialogue) end() {
	if d.over {
		return
	}
	if err := d.nc.(*net.TCPConn).CloseWrite(); err != nil {
		d.t.Fatal(err)
	}
	if err := d.nc.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		d.t.Fatal(err)
	}
	for !d.over {
		if _, err := d.r.Peek(1); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			d.t.Fatalf("after %q: %v", d.told, err)
		}
		d.hear()
	}
}

func (d *dialogue) hear() {
	if err := d.nc.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		d.t.Fatal(err)
	}
	head, err := d.r.Peek(4)
	if err != nil {
		d.t.Fatalf("after %q: %v", d.told, err)
	}
	frame := make([]byte, 4+int(head[2])<<8+int(head[3]))
	if _, err := io.ReadFull(d.r, frame); err != nil {
		d.t.Fatal(err)
	}
	h, rest, err := wire.ParseResponse(frame[4:])
	if err != nil {
		d.t.Fatal(err)
	}
	if h.Status != wire.StatusSuccess {
		d.over = true
		d.told = append(d.told, fmt.Sprintf("call %d: status %d, code %d, %s: %s", h.CallID, h.Status, h.Detail, h.Exception, h.Message))
		return
	}
	body, _, err := wire.Next(rest)
	m := &rpcpb.RpcSaslProto{}
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	d.offer = m
	line := fmt.Sprintf("call %d: %v", h.CallID, m.GetState())
	for _, a := range m.GetAuths() {
		line += fmt.Sprintf("; %s by %q, protocol %q, server %q, challenge %t", a.GetMethod(), a.GetMechanism(), a.GetProtocol(), a.GetServerId(), a.Challenge != nil)
	}
	if m.Token != nil {
		line += "; a token"
	}
	d.told = append(d.told, line)
}

func (d *dialogue) sasl(state rpcpb.RpcSaslProto_SaslState, token []byte, auths ...*rpcpb.RpcSaslProto_SaslAuth) []byte {
	return frameOf(d.t, requestHeader(wire.CallIDSASL), &rpcpb.RpcSaslProto{State: &state, Token: token, Auths: auths})
}

func (d *dialogue) negotiate() { d.say(d.sasl(rpcpb.RpcSaslProto_NEGOTIATE, nil)) }

func auth(method, mechanism string) *rpcpb.RpcSaslProto_SaslAuth {
	return &rpcpb.RpcSaslProto_SaslAuth{Method: &method, Mechanism: &mechanism}
}

func tokenAuth() *rpcpb.RpcSaslProto_SaslAuth {
	a := auth(tokenMethod, tokenMechanism)
	a.Protocol, a.ServerId = proto.String(""), proto.String(tokenRealm)
	return a
}

// login proves by a token who the client is, if the server takes tokens.
func (d *dialogue) login(identifier, password string) (took bool) {
	d.negotiate()
	if d.offer == nil || len(d.offer.Auths) == 0 {
		return false
	}
	answer, err := (&Token{[]byte(identifier), []byte(password)}).client("", tokenRealm).Respond(d.offer.Auths[0].GetChallenge())
	if err != nil {
		d.t.Fatal(err)
	}
	d.say(d.sasl(rpcpb.RpcSaslProto_INITIATE, answer, tokenAuth()))
	return true
}

// negotiations are what clients say, by name.
var negotiations = []struct {
	name, hello string
	say         func(d *dialogue)
}{
	{"another authentication", "\x77", func(*dialogue) {}},
	{"simple", "\x00", func(d *dialogue) {
		d.silent(contextFrame(d.t))
		d.say(contextFrame(d.t))
	}},
	{"simple, then negotiates", "\x00", (*dialogue).negotiate},
	{"simple, then wraps", "\x00", func(d *dialogue) { d.say(d.sasl(rpcpb.RpcSaslProto_WRAP, []byte("x"))) }},
	{"out of band", "\x00", func(d *dialogue) { d.say(frameOf(d.t, requestHeader(-7))) }},
	{"negotiates twice", "\xdf", func(d *dialogue) { d.negotiate(); d.negotiate() }},
	{"wraps at once", "\xdf", func(d *dialogue) { d.say(d.sasl(rpcpb.RpcSaslProto_WRAP, []byte("x"))) }},
	{"introduces itself at once", "\xdf", func(d *dialogue) { d.say(contextFrame(d.t)) }},
	{"says success", "\xdf", func(d *dialogue) { d.say(d.sasl(rpcpb.RpcSaslProto_SUCCESS, nil)) }},
	{"says challenge", "\xdf", func(d *dialogue) { d.negotiate(); d.say(d.sasl(rpcpb.RpcSaslProto_CHALLENGE, nil)) }},
	{"chooses nothing", "\xdf", func(d *dialogue) { d.negotiate(); d.say(d.sasl(rpcpb.RpcSaslProto_INITIATE, []byte("x"))) }},
	{"chooses two", "\xdf", func(d *dialogue) {
		d.negotiate()
		d.say(d.sasl(rpcpb.RpcSaslProto_INITIATE, []byte("x"), tokenAuth(), auth("SIMPLE", "")))
	}},
	{"chooses what nobody offers", "\xdf", func(d *dialogue) {
		d.negotiate()
		d.say(d.sasl(rpcpb.RpcSaslProto_INITIATE, []byte("x"), auth("KERBEROS", "GSSAPI")))
	}},
	{"chooses at once what nobody offers", "\xdf", func(d *dialogue) {
		d.say(d.sasl(rpcpb.RpcSaslProto_INITIATE, []byte("x"), auth("KERBEROS", "GSSAPI")))
	}},
	{"chooses the token of another server", "\xdf", func(d *dialogue) {
		a := tokenAuth()
		a.ServerId = proto.String("other")
		d.negotiate()
		d.say(d.sasl(rpcpb.RpcSaslProto_INITIATE, []byte("x"), a))
	}},
	{"chooses the token without one", "\xdf", func(d *dialogue) {
		d.negotiate()
		d.say(d.sasl(rpcpb.RpcSaslProto_INITIATE, nil, tokenAuth()))
	}},
	{"chooses simple", "\xdf", func(d *dialogue) {
		d.negotiate()
		d.silent(d.sasl(rpcpb.RpcSaslProto_INITIATE, nil, auth("SIMPLE", "")))
		d.silent(contextFrame(d.t))
		d.say(contextFrame(d.t))
	}},
	{"chooses simple, then negotiates", "\xdf", func(d *dialogue) {
		d.negotiate()
		d.silent(d.sasl(rpcpb.RpcSaslProto_INITIATE, nil, auth("SIMPLE", "")))
		d.negotiate()
	}},
	{"has a token", "\xdf", func(d *dialogue) {
		d.login("of ada", "secret")
		d.silent(contextFrame(d.t))
		d.say(contextFrame(d.t))
	}},
	{"has a token, then negotiates", "\xdf", func(d *dialogue) { d.login("of ada", "secret"); d.negotiate() }},
	{"has a token, then wraps", "\xdf", func(d *dialogue) {
		d.login("of ada", "secret")
		d.say(d.sasl(rpcpb.RpcSaslProto_WRAP, []byte("x")))
	}},
	{"has another's token", "\xdf", func(d *dialogue) {
		if d.login("of bob", "secret") {
			d.say(contextFrame(d.t))
		}
	}},
	{"has an unknown token", "\xdf", func(d *dialogue) { d.login("nobody", "secret") }},
}

// negotiationServers are ours, as those of testdata/Negotiation.java, or Hadoop's if the
// environment names them.
func negotiationServers(t *testing.T) (addresses map[string]string, theirs bool) {
	addresses = map[string]string{}
	if list := os.Getenv(hadoopServersVariable); list != "" {
		for _, each := range strings.Split(list, ",") {
			kind, address, _ := strings.Cut(each, "=")
			addresses[kind] = address
		}
		return addresses, true
	}
	tokens := []Mechanism{Tokens(func(identifier []byte) ([]byte, string, error) {
		user, ok := strings.CutPrefix(string(identifier), "of ")
		if !ok {
			return nil, "", errors.New("unknown")
		}
		return []byte("secret"), user, nil
	})}
	for kind, cfg := range map[string]Config{"simple": {}, "both": {Mechanisms: tokens}, "tokens": {Mechanisms: tokens, RefuseSimple: true}} {
		addresses[kind], _ = startServer(t, cfg, nil)
	}
	return addresses, false
}

// Negotiations go as with Hadoop 3.4.1, whose answers are in testdata/negotiation.txt: the
// order, the codes, the classes and the texts. To write them anew, run its servers by
// testdata/Negotiation.java, and name them in VERBENA_HADOOP_RPC.
func TestNegotiationAsHadoop(t *testing.T) {
	const file = "testdata/negotiation.txt"
	addresses, theirs := negotiationServers(t)
	var got strings.Builder
	for _, kind := range []string{"simple", "both", "tokens"} {
		for _, n := range negotiations {
			nc, err := net.Dial("tcp", addresses[kind])
			if err != nil {
				t.Fatal(err)
			}
			d := &dialogue{t: t, nc: nc, r: bufio.NewReader(nc), pause: 20 * time.Millisecond}
			if theirs {
				d.pause = time.Second
			}
			d.silent([]byte("hrpc\x09\x00" + n.hello))
			n.say(d)
			d.end()
			nc.Close()
			fmt.Fprintf(&got, "%s, client %s\n", kind, n.name)
			for _, line := range d.told {
				fmt.Fprintf(&got, "\t%s\n", line)
			}
		}
	}
	if theirs {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(string(b), "\n")
	var about string
	for i, line := range strings.Split(got.String(), "\n") {
		if !strings.HasPrefix(line, "\t") {
			about = line
		}
		if i >= len(want) || line != want[i] {
			t.Fatalf("%s:\n%s\nHadoop:\n%s", about, line, strings.Join(want[min(i, len(want)):min(i+1, len(want))], ""))
		}
	}
}
