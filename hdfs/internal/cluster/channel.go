package cluster

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// Roles of those who are called.
const (
	roleNameNode = "NameNode"
	roleDataNode = "DataNode"
)

const (
	nonceSize = 32
	channelID = 16 // bytes of the server's nonce
	macSize   = sha256.Size
	// sealSize is what a request has behind its message: channel, counter, MAC.
	sealSize = channelID + 8 + macSize

	// proveWithin is how long after Hello a Prove is taken.
	proveWithin = time.Minute
	// channelIdle is how long a channel stays without a call, more than proveWithin.
	channelIdle = 10 * time.Minute
	maxChannels = 1 << 16
)

// channelKeys are what both ends make of the secret and their nonces.
type channelKeys struct{ server, client, calls []byte }

func keysOf(s *Secret, role string, client, server []byte) channelKeys {
	derive := func(what string) []byte { return s.Derive(what, []byte(role), client, server) }
	return channelKeys{derive("cluster server\x00"), derive("cluster client\x00"), derive("cluster calls\x00")}
}

// A channel is what a client and a server have agreed on. It outlives endpoints.
type channel struct {
	id    [channelID]byte
	key   []byte
	calls atomic.Uint64
	used  time.Time // last, at the server; guarded by its mu
}

// seal appends to a request what proves that it comes over the channel. The MAC ties
// the answer to it.
func (c *channel) seal(m method, request []byte) (sealed, mac []byte) {
	sealed = append(request, c.id[:]...)
	sealed = binary.BigEndian.AppendUint64(sealed, c.calls.Add(1))
	mac = c.mac(m, sealed)
	return append(sealed, mac...), mac
}

// mac is that of a request with its channel and counter.
func (c *channel) mac(m method, request []byte) []byte {
	return mac(c.key, []byte("call"), binary.BigEndian.AppendUint32(nil, uint32(m)), request)
}

func (c *channel) answerMAC(of, answer []byte) []byte {
	return mac(c.key, []byte("answer"), of, answer)
}

// opened returns the message of an answer to the request whose MAC is of.
func (c *channel) opened(of, answer []byte) ([]byte, error) {
	n := len(answer) - macSize
	if n < 0 || !hmac.Equal(c.answerMAC(of, answer[:n]), answer[n:]) {
		return nil, errors.New("the answer does not come from who knows this cluster's secret")
	}
	return answer[:n], nil
}

// A gate lets through to a server's handlers what comes over a channel.
type gate struct {
	secret *Secret
	role   string
	cookie []byte // key of cookies
	begun  time.Time

	mu       sync.Mutex
	channels map[[channelID]byte]*channel
	swept    time.Time
}

func newGate(secret *Secret, role string) *gate {
	if secret == nil {
		panic("cluster: a server needs the cluster's secret")
	}
	g := &gate{secret: secret, role: role, cookie: random(macSize), begun: time.Now(), channels: make(map[[channelID]byte]*channel)}
	g.swept = g.begun
	return g
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return b
}

// hello answers a challenge with another one. Nothing is kept of it: what is needed
// comes back with Prove.
func (g *gate) hello(_ context.Context, req *clusterpb.HelloRequest) (*clusterpb.HelloResponse, error) {
	if len(req.GetNonce()) != nonceSize || req.GetRole() != g.role {
		return nil, fmt.Errorf("%w: a %s is called, with a nonce of %d bytes; this is a %s", ErrUnproven, req.GetRole(), len(req.GetNonce()), g.role)
	}
	nonce := binary.BigEndian.AppendUint64(random(nonceSize-8), uint64(time.Since(g.begun)))
	return &clusterpb.HelloResponse{
		Nonce: nonce, Cookie: mac(g.cookie, req.GetNonce(), nonce),
		Proof: keysOf(g.secret, g.role, req.GetNonce(), nonce).server,
	}, nil
}

// prove opens a channel for a client that knows the secret.
func (g *gate) prove(_ context.Context, req *clusterpb.ProveRequest) (*clusterpb.ProveResponse, error) {
	client, server := req.GetClientNonce(), req.GetServerNonce()
	if len(client) != nonceSize || len(server) != nonceSize || !hmac.Equal(mac(g.cookie, client, server), req.GetCookie()) {
		return nil, fmt.Errorf("%w: a Prove without the Hello before", ErrUnproven)
	}
	if age := time.Since(g.begun) - time.Duration(binary.BigEndian.Uint64(server[nonceSize-8:])); age > proveWithin {
		return nil, fmt.Errorf("%w: a Prove that comes %v after its Hello", ErrUnproven, age)
	}
	keys := keysOf(g.secret, g.role, client, server)
	if !hmac.Equal(keys.client, req.GetProof()) {
		return nil, fmt.Errorf("%w: you have another secret than this cluster: give all nodes the same --cluster-secret", ErrUnproven)
	}
	c := &channel{id: [channelID]byte(server), key: keys.calls, used: time.Now()}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.channels[c.id] == nil { // the call may come twice
		g.sweep(c.used)
		g.channels[c.id] = c
	}
	return &clusterpb.ProveResponse{}, nil
}

// sweep makes room. The caller has mu.
func (g *gate) sweep(now time.Time) {
	if now.Sub(g.swept) < proveWithin && len(g.channels) < maxChannels {
		return
	}
	g.swept = now
	var oldest *channel
	for id, c := range g.channels {
		switch {
		case now.Sub(c.used) > channelIdle:
			delete(g.channels, id)
		case oldest == nil || c.used.Before(oldest.used):
			oldest = c
		}
	}
	if len(g.channels) >= maxChannels {
		delete(g.channels, oldest.id)
	}
}

// open returns the message of a request that comes over a channel, and what seals the
// answer.
func (g *gate) open(m method, request []byte) (message []byte, seal func([]byte) []byte, err error) {
	n := len(request) - sealSize
	if n < 0 {
		return nil, nil, ErrUnproven
	}
	var c *channel
	g.mu.Lock()
	if c = g.channels[[channelID]byte(request[n:])]; c != nil {
		c.used = time.Now()
	}
	g.mu.Unlock()
	at := len(request) - macSize
	if c == nil || !hmac.Equal(c.mac(m, request[:at]), request[at:]) {
		return nil, nil, ErrUnproven
	}
	of := append([]byte(nil), request[at:]...) // the request's memory goes back before the answer
	return request[:n], func(answer []byte) []byte { return append(answer, c.answerMAC(of, answer)...) }, nil
}
