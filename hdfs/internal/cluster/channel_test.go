package cluster

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
)

// TestWrongSecret has nodes meet that know different secrets: none learns anything of
// the other, or has it do anything.
func TestWrongSecret(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		nn := &nameNode{}
		ServeNameNode(s.mux, nn, theirs)
		stranger := NewNameNodeClient(s.pool, s.address, secretOf("another text, which is long enough, too"))
		_, err := stranger.Register(t.Context(), &clusterpb.RegisterRequest{})
		if !errors.Is(err, ErrUnproven) || !strings.Contains(err.Error(), "--cluster-secret") {
			t.Errorf("a DataNode with another secret: %v", err)
		}
		// One that does not look at the server's proof gets no further.
		g := newGate(theirs, roleNameNode)
		nonce := random(nonceSize)
		challenge, err := g.hello(t.Context(), &clusterpb.HelloRequest{Nonce: nonce, Role: proto.String(roleNameNode)})
		if err != nil {
			t.Fatal(err)
		}
		for _, proof := range [][]byte{nil, random(macSize), challenge.GetProof(), keysOf(secretOf(strings.Repeat("x", 32)), roleNameNode, nonce, challenge.GetNonce()).client} {
			_, err := g.prove(t.Context(), &clusterpb.ProveRequest{ClientNonce: nonce, ServerNonce: challenge.GetNonce(), Cookie: challenge.GetCookie(), Proof: proof})
			if !errors.Is(err, ErrUnproven) {
				t.Errorf("the proof %x: %v", proof, err)
			}
		}
		nn.mu.Lock()
		defer nn.mu.Unlock()
		if len(nn.asked) != 0 || len(g.channels) != 0 {
			t.Errorf("%d requests came through, there are %d channels", len(nn.asked), len(g.channels))
		}
	})
}

// opened is a channel through a gate, as both ends have it.
func opened(t *testing.T, g *gate) (*channel, *clusterpb.ProveRequest) {
	t.Helper()
	nonce := random(nonceSize)
	challenge, err := g.hello(t.Context(), &clusterpb.HelloRequest{Nonce: nonce, Role: &g.role})
	if err != nil {
		t.Fatal(err)
	}
	keys := keysOf(g.secret, g.role, nonce, challenge.GetNonce())
	if !bytes.Equal(keys.server, challenge.GetProof()) {
		t.Fatal("the server's proof is none")
	}
	prove := &clusterpb.ProveRequest{ClientNonce: nonce, ServerNonce: challenge.GetNonce(), Cookie: challenge.GetCookie(), Proof: keys.client}
	if _, err := g.prove(t.Context(), prove); err != nil {
		t.Fatal(err)
	}
	return &channel{id: [channelID]byte(challenge.GetNonce()), key: keys.calls}, prove
}

func TestChannel(t *testing.T) {
	g := newGate(theirs, roleDataNode)
	c, prove := opened(t, g)
	request, tie := c.seal(methodHeartbeat, []byte("a request"))
	got, seal, err := g.open(methodHeartbeat, request)
	if err != nil || string(got) != "a request" {
		t.Fatalf("%q %v", got, err)
	}
	answer := seal([]byte("an answer"))
	if got, err := c.opened(tie, answer); err != nil || string(got) != "an answer" {
		t.Fatalf("%q %v", got, err)
	}
	_, other := c.seal(methodHeartbeat, []byte("a request"))
	if _, err := c.opened(other, answer); err == nil {
		t.Error("the answer to another request is taken")
	}
	if _, _, err := g.open(methodRegister, request); !errors.Is(err, ErrUnproven) {
		t.Errorf("the request is taken for another method: %v", err)
	}
	for i := range request {
		request[i] ^= 1
		if _, _, err := g.open(methodHeartbeat, request); !errors.Is(err, ErrUnproven) {
			t.Errorf("byte %d was changed: %v", i, err)
		}
		request[i] ^= 1
	}
	for i := range answer {
		answer[i] ^= 1
		if _, err := c.opened(tie, answer); err == nil {
			t.Errorf("byte %d of the answer was changed", i)
		}
		answer[i] ^= 1
	}
	for n := range len(request) {
		if _, _, err := g.open(methodHeartbeat, request[:n]); !errors.Is(err, ErrUnproven) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	// The Prove may come twice: the channel is the same. It is nothing to others.
	if _, err := g.prove(t.Context(), prove); err != nil || len(g.channels) != 1 {
		t.Errorf("again: %v, %d channels", err, len(g.channels))
	}
	if _, err := newGate(theirs, roleDataNode).prove(t.Context(), prove); !errors.Is(err, ErrUnproven) {
		t.Errorf("at another server: %v", err)
	}
	g.begun = g.begun.Add(-proveWithin - time.Second)
	if _, err := g.prove(t.Context(), prove); !errors.Is(err, ErrUnproven) {
		t.Errorf("a minute later: %v", err)
	}
}

// TestChannelsAreBounded forgets those that nobody uses.
func TestChannelsAreBounded(t *testing.T) {
	g := newGate(theirs, roleNameNode)
	first, _ := opened(t, g)
	second, _ := opened(t, g)
	g.channels[first.id].used = time.Now().Add(-channelIdle - time.Second)
	g.swept = time.Now().Add(-proveWithin - time.Second)
	opened(t, g)
	if len(g.channels) != 2 || g.channels[first.id] != nil {
		t.Errorf("%d channels", len(g.channels))
	}
	for i := uint64(0); len(g.channels) < maxChannels; i++ {
		c := &channel{used: time.Now()}
		copy(c.id[:], random(channelID))
		g.channels[c.id] = c
	}
	g.channels[second.id].used = time.Now().Add(-time.Minute)
	opened(t, g)
	if len(g.channels) != maxChannels || g.channels[second.id] != nil {
		t.Errorf("%d channels", len(g.channels))
	}
}

// A peer that has forgotten a channel is proved to once more.
func TestChannelComesBack(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		ServeNameNode(s.mux, &nameNode{}, theirs)
		c := s.nameNode()
		for range 3 {
			var calls sync.WaitGroup
			for range 8 {
				calls.Go(func() {
					if _, err := c.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{}); err != nil {
						t.Error(err)
					}
				})
			}
			calls.Wait()
			ServeNameNode(s.mux, &nameNode{}, theirs) // as after a start
		}
	})
}

// The bytes are part of the protocol; docs/hdfs-cluster-protocol.md shows them.
func TestGoldenChannel(t *testing.T) {
	client, server := bytes.Repeat([]byte{1}, nonceSize), bytes.Repeat([]byte{2}, nonceSize)
	keys := keysOf(theirs, roleNameNode, client, server)
	c := &channel{id: [channelID]byte(server), key: keys.calls}
	request, tie := c.seal(methodHeartbeat, []byte{0x30, 0x05})
	for _, v := range []struct {
		what, want string
		got        []byte
	}{
		{"server's proof", goldenServer, keys.server},
		{"client's proof", goldenClient, keys.client},
		{"request", goldenRequest, request},
		{"answer", goldenAnswer, append([]byte{}, c.answerMAC(tie, nil)...)},
	} {
		if got := hex.EncodeToString(v.got); got != v.want {
			t.Errorf("%s: %s, want %s", v.what, got, v.want)
		}
	}
}

const (
	goldenServer  = "306ce29d283dadf45b4cee8e9ec606a3d801bbbe824ad4b1f4e6f998d7a52041"
	goldenClient  = "8f1b65088aac526312e5053332776ba4d1c8800189a2f64e95b5fd4425157b43"
	goldenRequest = "300502020202020202020202020202020202000000000000000138dd71fb7f16d9ded8a72154a1a5357bd38dea8e0017bdb93388a0d435329c24"
	goldenAnswer  = "a05e2888f82372044d8cb04f3ed4d813193831065dd28798a4fcaacf63b767b3"
)

func TestSecretFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s")
	if _, err := LoadSecret(file, false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	made := make(chan *Secret)
	for range 4 {
		go func() {
			s, err := LoadSecret(file, true)
			if err != nil {
				t.Error(err)
			}
			made <- s
		}()
	}
	first := <-made
	for range 3 {
		if s := <-made; s == nil || first == nil || *s != *first {
			t.Error("several were made at once, and differ")
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: true, 0o660: false, 0o604: false, 0o644: false} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadSecret(file, true); (err == nil) != ok {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := errors.Join(os.Chmod(file, 0o600), os.WriteFile(file, []byte("too short\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadSecret(file, true); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a short one: %v", err)
	}
	text := []byte("keys")
	sealed := theirs.Encrypt(text)
	if got, err := theirs.Decrypt(sealed); err != nil || !bytes.Equal(got, text) || bytes.Contains(sealed, text) {
		t.Errorf("%q %v", got, err)
	}
	sealed[len(sealed)-1] ^= 1
	if _, err := theirs.Decrypt(sealed); err == nil {
		t.Error("a changed text is decrypted")
	}
}

// Callers without a proof do not reach the handlers, whatever they send.
func TestUnprovenReachNothing(t *testing.T) {
	onTransports(t, func(t *testing.T, s *system) {
		nn := &nameNode{}
		ServeNameNode(s.mux, nn, theirs)
		c, _ := opened(t, newGate(theirs, roleNameNode)) // of another server
		elsewhere, _ := c.seal(methodRegister, nil)
		for _, payload := range [][]byte{nil, make([]byte, sealSize), random(4096), elsewhere} {
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			_, err := s.pool.Call(ctx, s.address, verbena.Intent{}, uint32(methodRegister), payload)
			cancel()
			var e *verbena.CallError
			if !errors.As(err, &e) || e.Code != verbena.CodeApplication+uint32(CodeUnproven) {
				t.Errorf("%d bytes: %v", len(payload), err)
			}
		}
		nn.mu.Lock()
		defer nn.mu.Unlock()
		if len(nn.asked) != 0 {
			t.Errorf("%d requests came through", len(nn.asked))
		}
	})
}
