package datanode

import (
	"bytes"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

// guardedFiles is a DataNode with its blocks in files, which wants tokens.
func guardedFiles(t *testing.T, change func(*Config)) *guarded {
	g := newGuarded(t, 1)
	g.nodes[0].stop()
	g.fixture = newFixture(t, 1, onDisk(t, func(c *Config) {
		c.Secret = g.secret
		nn := c.NameNode.(*fakeNameNode)
		nn.mu.Lock()
		nn.keys = g.sealed(time.Now())
		nn.mu.Unlock()
		if change != nil {
			change(c)
		}
	}))
	return g
}

// header is what a client sends behind a read's request.
func header(t *testing.T, id, gen uint64, token *hdfspb.TokenProto) []byte {
	t.Helper()
	b, err := proto.Marshal(&hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, gen, 0), Token: token}, ClientName: proto.String("test")})
	must(t, err)
	return b
}

// readNow reads a range at once, and compares it; false if that can't be.
func readNow(t *testing.T, n *node, header, want []byte, off, length int) bool {
	t.Helper()
	b := make([]byte, native.MaxReadNow+native.MaxReadNow/8)
	size := n.readNow(&native.ReadRequest{Offset: int64(off), Length: length}, header, b)
	if size == 0 {
		return false
	}
	a, err := native.ParseReadAnswer(b[:size])
	must(t, err)
	must(t, a.Sum.Verify(a.Sums, a.Data))
	if skip := off - int(a.Offset); !bytes.Equal(a.Data[skip:skip+length], want[off:off+length]) {
		t.Errorf("%d bytes at %d are others", length, off)
	}
	return true
}

// open has the DataNode look at a request's token.
func open(t *testing.T, n *node, header []byte, end int64) error {
	t.Helper()
	r, err := n.openKept(header, end, false)
	if err == nil {
		n.kept.done(r)
	}
	return err
}

// A small read is answered at once when the very request has been found good before, and
// only as far as that goes.
func TestReadsAtOnceWantAProof(t *testing.T) {
	g := guardedFiles(t, nil)
	n, data := g.nodes[0], random(1, 200_001)
	g.write(1, 1001, data, g.nodes)
	good := header(t, 1, 1001, g.token("ada", blocktoken.Read, 1, 1001))
	if readNow(t, n, good, data, 0, 100) {
		t.Fatal("a token that nobody has looked at")
	}
	for what, token := range map[string]*hdfspb.TokenProto{"none": nil, "to write": g.token("ada", blocktoken.Write, 1, 1001), "of another block": g.token("ada", blocktoken.Read, 2, 1001)} {
		h := header(t, 1, 1001, token)
		if open(t, n, h, 100) == nil || readNow(t, n, h, data, 0, 100) {
			t.Errorf("token %s opens the block", what)
		}
	}
	must(t, open(t, n, good, 100))
	for _, r := range [][2]int{{0, 1}, {511, 2}, {512, 4096}, {1000, 65_000}, {200_000, 1}, {199_000, 1001}, {0, native.MaxReadNow}} {
		if !readNow(t, n, good, data, r[0], r[1]) {
			t.Errorf("%d bytes at %d have to wait", r[1], r[0])
		}
	}
	if readNow(t, n, good, data, 199_000, 1002) {
		t.Error("a read beyond the block's end")
	}
	// Another client's request is looked at once, too, and needs no other descriptors.
	other := header(t, 1, 1001, g.token("bob", blocktoken.Read, 1, 1001))
	if readNow(t, n, other, data, 0, 100) {
		t.Error("bob reads with ada's token")
	}
	must(t, open(t, n, other, 100))
	if !readNow(t, n, other, data, 0, 100) || n.kept.count() != 1 {
		t.Errorf("%d replicas are open", n.kept.count())
	}
	// A token ends, and so does what it has opened.
	g.issuer, _ = blocktoken.NewIssuer(func(id int32) []byte { return g.secret.Derive("test", blocktoken.Number(id)) }, 10*time.Hour, time.Second)
	short := header(t, 1, 1001, g.token("eve", blocktoken.Read, 1, 1001))
	must(t, open(t, n, short, 100))
	if r := n.kept.find(short, time.Now().Add(2*time.Second)); r != nil {
		t.Error("a token that has expired")
	}
}

// A replicaChange is made to a finalized replica of 5,000 bytes with the generation 1001.
type replicaChange struct {
	what string
	do   func(id uint64)
}

// replicaChanges are those that what readers hold of a replica does not outlive.
func replicaChanges(t *testing.T, n *node) []replicaChange {
	return []replicaChange{
		{"append", func(id uint64) { openWrite(t, []*node{n}, appending, id, 1001, 1002, 5000, 5000).nc.Close() }},
		{"delete", func(id uint64) { must(t, n.store.Delete(id, 1001)) }},
		{"cut", func(id uint64) {
			r, err := n.store.Get(id)
			must(t, err)
			_, err = r.InitRecovery(1001, 1003)
			must(t, err)
			must(t, r.Settle(1003, 4000))
		}},
	}
}

// What is kept of a replica goes before it changes.
func TestKeptReplicasChange(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, nil))
	n, data := f.nodes[0], random(1, 5000)
	for i, c := range replicaChanges(t, n) {
		id := uint64(i + 1)
		finalized(t, n, id, 1001, data)
		h := header(t, id, 1001, nil)
		must(t, open(t, n, h, 100))
		if !readNow(t, n, h, data, 4500, 500) {
			t.Fatalf("%s: not kept", c.what)
		}
		r := n.kept.find(h, time.Now()) // a read that is under way
		c.do(id)
		if readNow(t, n, h, data, 4500, 500) || n.kept.count() != 0 {
			t.Errorf("%s: it is still kept", c.what)
		}
		if r.readNow(make([]byte, 512), make([]byte, 4), 0) {
			t.Errorf("%s: a read that was under way is answered", c.what)
		}
		n.kept.done(r)
	}
}

// What is kept is bounded.
func TestKeptReplicasAreBounded(t *testing.T) {
	f := newFixture(t, 1, onDisk(t, func(c *Config) { c.MaxOpenReplicas = 2 }))
	n, data := f.nodes[0], random(1, 5000)
	var headers [][]byte
	for id := range uint64(4) {
		finalized(t, n, id+1, 1001, data)
		headers = append(headers, header(t, id+1, 1001, nil))
		must(t, open(t, n, headers[id], 100))
		if !readNow(t, n, headers[0], data, 0, 100) { // it is used most
			t.Errorf("after %d replicas the first is not open", id+1)
		}
	}
	if n.kept.count() != 2 || readNow(t, n, headers[2], data, 0, 100) || !readNow(t, n, headers[3], data, 0, 100) {
		t.Errorf("%d replicas are open", n.kept.count())
	}
	for range 2 * mostProofs {
		h := header(t, 4, 1001, &hdfspb.TokenProto{Identifier: random(1, 8), Password: []byte{}, Kind: proto.String(""), Service: proto.String("")})
		copy(h[len(h)-4:], random(2, 4))
		if r := n.kept.prove(h, nil, extended(4, 1001, 0)); r != nil {
			n.kept.done(r)
		}
	}
	if n.kept.shown.Len() > mostProofs || n.kept.shown.Len() != len(n.kept.proofs) {
		t.Errorf("%d proofs, %d of them known", n.kept.shown.Len(), len(n.kept.proofs))
	}
	if r := n.kept.prove(make([]byte, longestProof+1), nil, extended(4, 1001, 0)); r != nil {
		t.Error("a proof of any length")
	}
}
