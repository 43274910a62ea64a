package datanode

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// guarded are DataNodes that want tokens, and who makes them.
type guarded struct {
	*fixture
	secret *cluster.Secret
	issuer *blocktoken.Issuer
}

func newGuarded(t *testing.T, count int) *guarded { return newGuardedWith(t, count, nil) }

func newGuardedWith(t *testing.T, count int, change func(i int, c *Config)) *guarded {
	t.Helper()
	secret, err := cluster.NewSecret([]byte(strings.Repeat("s", 32)))
	must(t, err)
	g := &guarded{secret: secret}
	g.issuer, err = blocktoken.NewIssuer(func(id int32) []byte { return secret.Derive("test", blocktoken.Number(id)) }, 10*time.Hour, 10*time.Hour)
	must(t, err)
	g.fixture = newFixture(t, count, func(i int, c *Config) {
		c.Secret = secret
		if change != nil {
			change(i, c)
		}
		if i == 0 {
			// The first registers when the keys are there, as all do.
			nn := c.NameNode.(*fakeNameNode)
			nn.mu.Lock()
			nn.keys = g.sealed(time.Now())
			nn.mu.Unlock()
		}
	})
	return g
}

// sealed are the keys of a time as the NameNode sends them.
func (g *guarded) sealed(now time.Time) []byte {
	b, err := proto.Marshal(g.issuer.Keys(now))
	if err != nil {
		panic(err)
	}
	return g.secret.Encrypt(b)
}

func (g *guarded) token(user string, mode blocktoken.Mode, id, gen uint64) *hdfspb.TokenProto {
	return g.issuer.Grant(time.Now(), user, mode, extended(id, gen, 0), nil, nil)
}

// write makes a block of the first DataNodes with a token for it.
func (g *guarded) write(id, gen uint64, data []byte, nodes []*node) {
	g.t.Helper()
	c := dialNode(g.t, nodes[0])
	c.token = g.token("ada", blocktoken.Write, id, gen)
	if resp := c.request(create, id, gen, 0, 0, 0, nodes[1:]); resp.GetStatus() != hdfspb.Status_SUCCESS {
		g.t.Fatalf("write with a token: %v", resp)
	}
	c.flush(0, data, false, len(nodes))
	c.send(int64(len(data)), nil, true, false)
	var ack transfer.Ack
	must(g.t, c.r.ReadAck(&ack))
	if !ack.OK() {
		g.t.Fatalf("%v", ack)
	}
	c.nc.Close()
}

func (g *guarded) read(n *node, token *hdfspb.TokenProto, id, gen uint64, size int) ([]byte, error) {
	c := dialNode(g.t, n)
	defer c.nc.Close()
	c.token = token
	return c.read(id, gen, 0, int64(size), true)
}

// TestTokensAreWanted does each operation with the right token and with wrong ones.
func TestTokensAreWanted(t *testing.T) {
	g := newGuarded(t, 3)
	data := random(1, 5000)
	g.write(1, 1001, data, g.nodes[:2]) // the pipeline hands the token on
	for _, n := range g.nodes[:2] {
		got, err := g.read(n, g.token("ada", blocktoken.Read, 1, 1001), 1, 1001, len(data))
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("read with a token: %d bytes, %v", len(got), err)
		}
	}
	expired := g.issuer.Grant(time.Now().Add(-10*time.Hour-time.Second), "ada", blocktoken.Read, extended(1, 1001, 0), nil, nil)
	for what, token := range map[string]*hdfspb.TokenProto{
		"none":          nil,
		"empty":         blocktoken.None(),
		"to write":      g.token("ada", blocktoken.Write|blocktoken.Copy|blocktoken.Replace, 1, 1001),
		"another block": g.token("ada", blocktoken.Read, 2, 1001),
		"older":         g.token("ada", blocktoken.Read, 1, 1000),
		"nobody's":      g.token("", blocktoken.Read, 1, 1001),
		"expired":       expired,
	} {
		if _, err := g.read(g.nodes[0], token, 1, 1001, 100); err == nil || !strings.Contains(err.Error(), "ERROR_ACCESS_TOKEN") {
			t.Errorf("read, %s: %v", what, err)
		}
	}
	if _, err := g.read(g.nodes[0], g.token("eve", blocktoken.Read, 1, 1001), 1, 0, 100); err == nil || !strings.Contains(err.Error(), "ERROR_ACCESS_TOKEN") {
		t.Errorf("read of generation 0: %v", err)
	}
	// A writer that has lost its lease has a token of an older generation.
	late := dialNode(t, g.nodes[0])
	late.token = g.token("ada", blocktoken.Write, 1, 1001)
	resp := late.request(appending, 1, 1001, 1002, 5000, 5000, nil)
	if resp.GetStatus() != hdfspb.Status_ERROR_ACCESS_TOKEN || resp.GetFirstBadLink() != g.nodes[0].addr {
		t.Errorf("append under a generation that the token is not for: %v", resp)
	}
	// A copy takes a token to copy; the DataNode makes those for its targets itself.
	for _, c := range []struct {
		mode blocktoken.Mode
		want hdfspb.Status
	}{{blocktoken.Read | blocktoken.Write, hdfspb.Status_ERROR_ACCESS_TOKEN}, {blocktoken.Copy, hdfspb.Status_SUCCESS}} {
		p := dialNode(t, g.nodes[0])
		must(t, transfer.WriteRequest(p.nc, transfer.OpTransferBlock, &hdfspb.OpTransferBlockProto{
			Header: &hdfspb.ClientOperationHeaderProto{
				BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, 0), Token: g.token("ada", c.mode, 1, 1001)}, ClientName: proto.String("test"),
			},
			Targets: targets(g.nodes[2:]),
		}))
		resp := &hdfspb.BlockOpResponseProto{}
		must(t, p.r.ReadMessage(resp))
		if resp.GetStatus() != c.want {
			t.Errorf("copy with a token to %v: %v", c.mode, resp)
		}
	}
	if got, err := g.read(g.nodes[2], g.token("ada", blocktoken.Read, 1, 1001), 1, 1001, len(data)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the copy: %d bytes, %v", len(got), err)
	}
	for token, want := range map[*hdfspb.TokenProto]hdfspb.Status{
		blocktoken.None():                        hdfspb.Status_ERROR_ACCESS_TOKEN,
		g.token("ada", blocktoken.Read, 1, 1001): hdfspb.Status_SUCCESS,
	} {
		p := dialNode(t, g.nodes[0])
		must(t, transfer.WriteRequest(p.nc, transfer.OpBlockChecksum, &hdfspb.OpBlockChecksumProto{Header: &hdfspb.BaseHeaderProto{Block: extended(1, 1001, 5000), Token: token}}))
		resp := &hdfspb.BlockOpResponseProto{}
		must(t, p.r.ReadMessage(resp))
		if resp.GetStatus() != want {
			t.Errorf("checksum: %v, want %v", resp, want)
		}
	}
	// The NameNode's copies need no token of a client.
	g.write(2, 1001, data, g.nodes[:1])
	g.nn.event(func() {
		g.nn.commands[g.nodes[0].UUID()] = []*clusterpb.Command{{Kind: clusterpb.Command_REPLICATE.Enum(),
			Block: &clusterpb.Block{Id: proto.Uint64(2), Generation: proto.Uint64(1001), Length: proto.Uint64(uint64(len(data)))}, Targets: []*clusterpb.Datanode{g.nodes[2].proto()}}}
	})
	g.nn.wait("the copy that was ordered", func() bool {
		return slices.ContainsFunc(g.nn.changes[g.nodes[2].UUID()], func(c *clusterpb.ReplicaChange) bool {
			return c.GetKind() == clusterpb.ReplicaChange_RECEIVED && c.GetReplica().GetBlock().GetId() == 2
		})
	})
}

// TestKeysArrive has the NameNode tell of keys late, and of others later.
func TestKeysArrive(t *testing.T) {
	g := newGuarded(t, 1)
	data := random(2, 1000)
	g.write(1, 1001, data, g.nodes)
	n := g.nodes[0]
	later := time.Now().Add(30 * time.Hour) // three keys on
	token := g.issuer.Grant(later, "ada", blocktoken.Read, extended(1, 1001, 0), nil, nil)
	if _, err := g.read(n, token, 1, 1001, 100); err == nil || !strings.Contains(err.Error(), "ERROR_ACCESS_TOKEN") {
		t.Errorf("a token of a key that is not known yet: %v", err)
	}
	g.nn.event(func() { g.nn.keys = g.sealed(later) })
	g.nn.wait("a heartbeat that knows the new key", func() bool {
		return g.nn.beats[n.UUID()].GetBlockKey() == g.issuer.Current(later)
	})
	if got, err := g.read(n, token, 1, 1001, len(data)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("a token of the new key: %d bytes, %v", len(got), err)
	}
	if got, err := g.read(n, g.token("ada", blocktoken.Read, 1, 1001), 1, 1001, len(data)); err != nil || !bytes.Equal(got, data) {
		t.Errorf("a token of the key before: %d bytes, %v", len(got), err)
	}
	// After its own start a DataNode waits for keys, and lets nobody in meanwhile.
	g.nn.event(func() { g.nn.away = true })
	old := g.nodes[0]
	old.stop()
	l, err := net.Listen("tcp", old.addr)
	must(t, err)
	g.nodes[0] = g.start(old.cfg, l)
	result := make(chan error, 1)
	go func() {
		_, err := g.read(g.nodes[0], token, 1, 1001, 100)
		result <- err
	}()
	if g.nodes[0].keys.Enabled() {
		t.Error("keys came from nowhere")
	}
	g.nn.event(func() { g.nn.away = false })
	if err := <-result; err != nil {
		t.Errorf("a read that waits for the keys: %v", err)
	}
}

// TestVisibleLengthWantsAToken asks by RPC, where the token authenticates.
func TestVisibleLengthWantsAToken(t *testing.T) {
	g := newGuarded(t, 1)
	g.write(1, 1001, random(3, 777), g.nodes)
	ask := func(user string, token *hdfspb.TokenProto) (uint64, error) {
		nc, err := net.Dial("tcp", g.nodes[0].addr)
		must(t, err)
		target := rpc.Target{User: user, Protocol: "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"}
		if token != nil {
			target.Token = &rpc.Token{Identifier: token.Identifier, Password: token.Password}
		}
		c, err := rpc.NewConn(t.Context(), nc, target, rpc.ClientConfig{})
		if err != nil {
			return 0, err
		}
		defer c.Close()
		resp := &hdfspb.GetReplicaVisibleLengthResponseProto{}
		err = c.Call(context.Background(), "getReplicaVisibleLength", &hdfspb.GetReplicaVisibleLengthRequestProto{Block: extended(1, 1001, 0)}, resp)
		return resp.GetLength(), err
	}
	good := g.token("ada", blocktoken.Read, 1, 1001)
	if n, err := ask("", good); err != nil || n != 777 {
		t.Errorf("with a token: %d %v", n, err)
	}
	forged := proto.Clone(good).(*hdfspb.TokenProto)
	forged.Password[0] ^= 1
	var refused *exception.Error
	if _, err := ask("", forged); err == nil {
		t.Error("a forged token is taken")
	}
	if _, err := ask("", g.token("ada", blocktoken.Read, 2, 1001)); !errors.As(err, &refused) || refused.Class != exception.InvalidToken {
		t.Errorf("a token for another block: %v", err)
	}
	for _, user := range []string{"ada", "root", "", "bm9uZQ==.bm9uZQ=="} {
		if n, err := ask(user, nil); err == nil {
			t.Errorf("%q without a token hears of %d bytes", user, n)
		}
	}
}
