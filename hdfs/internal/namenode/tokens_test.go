package namenode

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// keysAt is what a DataNode makes of the keys that the NameNode sends.
func (r *rig) keysAt(secret *cluster.Secret, sealed []byte) *blocktoken.Keys {
	r.t.Helper()
	b, err := secret.Decrypt(sealed)
	if err != nil {
		r.t.Fatal(err)
	}
	msg := &clusterpb.BlockKeys{}
	if err := proto.Unmarshal(b, msg); err != nil {
		r.t.Fatal(err)
	}
	keys := blocktoken.NewKeys()
	keys.Set(r.clock.now(), msg)
	return keys
}

// TestTokens takes the tokens of each answer that has some to a DataNode, before and after
// the NameNode was started anew.
func TestTokens(t *testing.T) {
	secret, err := cluster.NewSecret([]byte(strings.Repeat("s", 32)))
	if err != nil {
		t.Fatal(err)
	}
	guard := func(c *Config) { c.Secret = secret }
	r := newRig(t, guard)
	dns := r.datanodes(2)
	register := func() *clusterpb.RegisterResponse {
		return must[*clusterpb.RegisterResponse](t)(r.nn.Register(t.Context(), &clusterpb.RegisterRequest{Datanode: dns[0].pb()}))
	}
	registered := register()
	dns[0].session, dns[0].sequence = registered.GetSession(), 0
	keys := r.keysAt(secret, registered.GetBlockKeys())
	good := func(what string, lb *hdfspb.LocatedBlockProto, mode blocktoken.Mode, newest uint64, want bool) {
		t.Helper()
		user, err := keys.Check(r.clock.now(), lb.GetBlockToken(), blocktoken.Access{Block: lb.GetB(), Newest: newest, Mode: mode})
		if (err == nil) != want || want && user != "root" {
			t.Errorf("%s: token of %q to %v: %v", what, user, mode, err)
		}
	}
	r.create("/f", "writer", 2)
	added := r.addBlock("/f", "writer", nil)
	good("addBlock", added, blocktoken.Write, 0, true)
	good("addBlock", added, blocktoken.Read, 0, false)
	good("addBlock", added, blocktoken.Write, added.GetB().GetGenerationStamp()+1, false)
	updated := must[*hdfspb.UpdateBlockForPipelineResponseProto](t)(r.nn.updateBlockForPipeline(r.as("root"), &hdfspb.UpdateBlockForPipelineRequestProto{Block: added.GetB(), ClientName: proto.String("writer")})).GetBlock()
	good("updateBlockForPipeline", updated, blocktoken.Write, 0, true)
	more := must[*hdfspb.GetAdditionalDatanodeResponseProto](t)(r.nn.getAdditionalDatanode(r.as("root"), &hdfspb.GetAdditionalDatanodeRequestProto{
		Src: proto.String("/f"), Blk: added.GetB(), NumAdditionalNodes: proto.Uint32(1), ClientName: proto.String("writer"),
	})).GetBlock()
	good("getAdditionalDatanode", more, blocktoken.Copy, 0, true)
	// Whoever writes one file gets no token to copy the blocks of another.
	r.create("/other", "other", 2)
	r.addBlock("/other", "other", nil)
	theirs := must[*hdfspb.GetAdditionalDatanodeResponseProto](t)(r.nn.getAdditionalDatanode(r.as("root"), &hdfspb.GetAdditionalDatanodeRequestProto{
		Src: proto.String("/other"), Blk: added.GetB(), NumAdditionalNodes: proto.Uint32(1), ClientName: proto.String("other"),
	})).GetBlock()
	good("getAdditionalDatanode for another file's block", theirs, blocktoken.Copy, 0, false)
	b := added.GetB()
	b.NumBytes = proto.Uint64(100)
	for _, d := range dns {
		d.receive(b)
	}
	if !r.complete("/f", "writer", b) {
		t.Fatal("not complete")
	}
	located := r.locations("/f")
	good("getBlockLocations", located.GetBlocks()[0], blocktoken.Read, 0, true)
	good("getBlockLocations", located.GetLastBlock(), blocktoken.Read, 0, true)
	good("getBlockLocations", located.GetLastBlock(), blocktoken.Write, 0, false)

	r.nn.Close()
	r.open(guard)
	again := register()
	good("before the start", located.GetBlocks()[0], blocktoken.Read, 0, true)
	keys = r.keysAt(secret, again.GetBlockKeys())
	good("with the keys of after the start", located.GetBlocks()[0], blocktoken.Read, 0, true)
	dns[0].session, dns[0].sequence = again.GetSession(), 0

	// A heartbeat brings keys when there is another one that signs.
	beat := func(known int32) *clusterpb.HeartbeatResponse {
		return must[*clusterpb.HeartbeatResponse](t)(r.nn.Heartbeat(t.Context(), &clusterpb.HeartbeatRequest{Uuid: &dns[0].uuid, Session: &dns[0].session, BlockKey: &known}))
	}
	if beat(keys.Current()).BlockKeys != nil {
		t.Error("keys are sent that are known")
	}
	r.clock.advance(10 * time.Hour)
	next := beat(keys.Current())
	if next.BlockKeys == nil {
		t.Fatal("ten hours later there is no other key")
	}
	if now := r.keysAt(secret, next.BlockKeys); now.Current() != keys.Current()+1 {
		t.Errorf("key %d, then %d", keys.Current(), now.Current())
	}
	r.nn.Close()
	r.open(guard, func(c *Config) { c.NoBlockTokens = true })
	if register().BlockKeys != nil {
		t.Error("keys are sent though tokens are off")
	}
}
