package namenode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// clock is a time that a test moves.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func newClock() *clock { return &clock{at: time.UnixMilli(1_700_000_000_000)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// rig is a NameNode in memory whose time and checks the test drives.
type rig struct {
	t     *testing.T
	nn    *NameNode
	clock *clock
	fs    vfs.FS
	calls atomic.Int32
}

func newRig(t *testing.T, change ...func(*Config)) *rig {
	r := &rig{t: t, clock: newClock(), fs: vfs.NewMem()}
	r.open(change...)
	return r
}

func (r *rig) open(change ...func(*Config)) {
	r.t.Helper()
	cfg := Config{
		Dir: "/nn", FS: r.fs, Superuser: "root", now: r.clock.now, manual: true,
		DeadAfter: 30 * time.Second, RedundancyInterval: 1, ReplicationWork: 1000, ReplicationStreams: 100,
		MinBlockSize: 512, CompleteWait: time.Millisecond,
		Groups: func(u string) []string { return map[string][]string{"alice": {"staff"}, "bob": {"staff", "users"}}[u] },
	}
	for _, f := range change {
		f(&cfg)
	}
	nn, err := Open(r.t.Context(), cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.nn = nn
	r.t.Cleanup(func() { nn.Close() })
}

// as is a context in which user makes a new call.
func (r *rig) as(user string) context.Context {
	return r.call(user, r.calls.Add(1))
}

func (r *rig) call(user string, id int32) context.Context {
	var client rpc.ClientID
	copy(client[:], user)
	return rpc.WithCall(context.Background(), &rpc.Call{User: user, ClientID: client, CallID: id, Peer: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 9), Port: 5}})
}

func (r *rig) check() {
	r.t.Helper()
	r.nn.check(r.t.Context())
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func wantClass(t *testing.T, err error, class exception.Class) {
	t.Helper()
	var refused *exception.Error
	if !errors.As(err, &refused) || refused.Class != class {
		t.Fatalf("got the error %v, want a %s", err, class)
	}
}

func (r *rig) mkdirs(user, path string) {
	r.t.Helper()
	must[*hdfspb.MkdirsResponseProto](r.t)(r.nn.mkdirs(r.as(user), &hdfspb.MkdirsRequestProto{
		Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true),
	}))
}

func createRequest(path, client string, replication uint32, flag uint32) *hdfspb.CreateRequestProto {
	return &hdfspb.CreateRequestProto{
		Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o644)}, ClientName: &client,
		CreateFlag: &flag, CreateParent: proto.Bool(true), Replication: &replication, BlockSize: proto.Uint64(1024),
	}
}

func (r *rig) create(path, client string, replication uint32) {
	r.t.Helper()
	must[*hdfspb.CreateResponseProto](r.t)(r.nn.create(r.as("root"), createRequest(path, client, replication, flagCreate)))
}

func (r *rig) addBlock(path, client string, previous *hdfspb.ExtendedBlockProto) *hdfspb.LocatedBlockProto {
	r.t.Helper()
	return must[*hdfspb.AddBlockResponseProto](r.t)(r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: &path, ClientName: &client, Previous: previous})).GetBlock()
}

func (r *rig) complete(path, client string, last *hdfspb.ExtendedBlockProto) bool {
	r.t.Helper()
	return must[*hdfspb.CompleteResponseProto](r.t)(r.nn.complete(r.as("root"), &hdfspb.CompleteRequestProto{Src: &path, ClientName: &client, Last: last})).GetResult()
}

func (r *rig) locations(path string) *hdfspb.LocatedBlocksProto {
	r.t.Helper()
	return must[*hdfspb.GetBlockLocationsResponseProto](r.t)(r.nn.getBlockLocations(r.as("root"), &hdfspb.GetBlockLocationsRequestProto{Src: &path, Offset: proto.Uint64(0), Length: proto.Uint64(1 << 40)})).GetLocations()
}

// replicate has a file have n replicas of each block, in time.
func (r *rig) replicate(path string, n uint32) {
	r.t.Helper()
	must[*hdfspb.SetReplicationResponseProto](r.t)(r.nn.setReplication(r.as("root"), &hdfspb.SetReplicationRequestProto{Src: &path, Replication: &n}))
}

// write makes a closed file of one block of the given length and returns its block.
func (r *rig) write(path string, replication uint32, length uint64, dns ...*fakeDatanode) *hdfspb.ExtendedBlockProto {
	r.t.Helper()
	req := createRequest(path, "writer", replication, flagCreate)
	req.BlockSize = proto.Uint64(max(1024, length))
	must[*hdfspb.CreateResponseProto](r.t)(r.nn.create(r.as("root"), req))
	lb := r.addBlock(path, "writer", nil)
	b := lb.GetB()
	b.NumBytes = &length
	for _, info := range lb.GetLocs() {
		for _, d := range dns {
			if d.uuid == info.GetId().GetDatanodeUuid() {
				d.receive(b)
			}
		}
	}
	if !r.complete(path, "writer", b) {
		r.t.Fatalf("complete %s: not yet", path)
	}
	return b
}

// fakeDatanode keeps no bytes, only what it would report.
type fakeDatanode struct {
	r        *rig
	uuid     string
	host     string
	port     uint32
	replicas map[uint64]*clusterpb.Replica
	room     uint64
	storages []*clusterpb.Storage // nil: one, with room
	// recover is called for RECOVER commands; the default does what a leader would.
	recover func(*clusterpb.Command)
	seen    []*clusterpb.Command
	dead    bool

	session, sequence uint64
}

func (r *rig) datanode(i int) *fakeDatanode {
	d := &fakeDatanode{
		r: r, uuid: fmt.Sprintf("dn-%d", i), host: fmt.Sprintf("10.0.0.%d", i), port: uint32(9000 + i),
		replicas: map[uint64]*clusterpb.Replica{}, room: 1 << 40,
	}
	d.register()
	return d
}

func (r *rig) datanodes(n int) []*fakeDatanode {
	var out []*fakeDatanode
	for i := range n {
		out = append(out, r.datanode(i+1))
	}
	r.check()
	return out
}

func (d *fakeDatanode) pb() *clusterpb.Datanode {
	return &clusterpb.Datanode{Uuid: &d.uuid, Host: &d.host, Port: &d.port}
}

func (d *fakeDatanode) register() {
	d.r.t.Helper()
	d.enroll()
	d.report()
	d.heartbeat(nil)
}

// enroll registers and says nothing else yet.
func (d *fakeDatanode) enroll() {
	d.r.t.Helper()
	resp, err := d.r.nn.Register(context.Background(), &clusterpb.RegisterRequest{Datanode: d.pb(), Storages: d.storages})
	if err != nil {
		d.r.t.Fatal(err)
	}
	d.session, d.sequence = resp.GetSession(), 0
}

// next is the number of the next report.
func (d *fakeDatanode) next() *uint64 {
	d.sequence++
	return proto.Uint64(d.sequence)
}

func (d *fakeDatanode) report() {
	d.r.t.Helper()
	req := &clusterpb.BlockReportRequest{Uuid: &d.uuid, Session: &d.session, Sequence: d.next(), ReportId: proto.Uint64(uint64(d.r.calls.Add(1))), Parts: proto.Uint32(1)}
	for _, rep := range d.replicas {
		req.Replicas = append(req.Replicas, rep)
	}
	if _, err := d.r.nn.BlockReport(context.Background(), req); err != nil {
		d.r.t.Fatal(err)
	}
}

func (d *fakeDatanode) changed(kind clusterpb.ReplicaChange_Kind, rep *clusterpb.Replica) {
	d.r.t.Helper()
	_, err := d.r.nn.BlocksChanged(context.Background(), &clusterpb.BlocksChangedRequest{
		Uuid: &d.uuid, Session: &d.session, Sequence: d.next(), Changes: []*clusterpb.ReplicaChange{{Kind: kind.Enum(), Replica: rep}},
	})
	if err != nil {
		d.r.t.Fatal(err)
	}
}

func (d *fakeDatanode) receive(b *hdfspb.ExtendedBlockProto) {
	d.r.t.Helper()
	d.store(b.GetBlockId(), b.GetGenerationStamp(), b.GetNumBytes(), clusterpb.ReplicaState_FINALIZED)
	d.changed(clusterpb.ReplicaChange_RECEIVED, d.replicas[b.GetBlockId()])
}

func (d *fakeDatanode) store(id, generation, length uint64, st clusterpb.ReplicaState) {
	d.replicas[id] = &clusterpb.Replica{Block: blockPB(id, generation, length), State: st.Enum()}
}

// heartbeat does the commands that come with it.
func (d *fakeDatanode) heartbeat(all []*fakeDatanode) {
	d.r.t.Helper()
	if d.dead {
		return
	}
	storages := d.storages
	if storages == nil {
		storages = []*clusterpb.Storage{{Capacity: proto.Uint64(2 << 40), Remaining: &d.room}}
	}
	resp, err := d.r.nn.Heartbeat(context.Background(), &clusterpb.HeartbeatRequest{Uuid: &d.uuid, Session: &d.session, Storages: storages})
	if err != nil {
		d.r.t.Fatal(err)
	}
	for _, c := range resp.GetCommands() {
		d.seen = append(d.seen, c)
		b := c.GetBlock()
		switch c.GetKind() {
		case clusterpb.Command_REGISTER:
			d.register()
		case clusterpb.Command_REPORT:
			d.report()
		case clusterpb.Command_DELETE:
			if rep := d.replicas[b.GetId()]; rep != nil {
				delete(d.replicas, b.GetId())
				d.changed(clusterpb.ReplicaChange_DELETED, rep)
			}
		case clusterpb.Command_REPLICATE:
			for _, t := range c.GetTargets() {
				for _, o := range all {
					if o.uuid == t.GetUuid() && !o.dead {
						o.store(b.GetId(), b.GetGeneration(), b.GetLength(), clusterpb.ReplicaState_FINALIZED)
						o.changed(clusterpb.ReplicaChange_RECEIVED, o.replicas[b.GetId()])
					}
				}
			}
		case clusterpb.Command_RECOVER:
			if d.recover != nil {
				d.recover(c)
			} else {
				d.lead(c, all)
			}
		}
	}
}

// lead does what the leader of a recovery does.
func (d *fakeDatanode) lead(c *clusterpb.Command, all []*fakeDatanode) {
	d.r.t.Helper()
	b := c.GetBlock()
	length, found := uint64(0), []*fakeDatanode{}
	for _, t := range c.GetTargets() {
		for _, o := range all {
			if rep := o.replicas[b.GetId()]; o.uuid == t.GetUuid() && !o.dead && rep != nil {
				if n := rep.GetBlock().GetLength(); len(found) == 0 || n < length {
					length = n
				}
				found = append(found, o)
			}
		}
	}
	if c.TruncateTo != nil && len(found) > 0 {
		length = c.GetTruncateTo()
	}
	req := &clusterpb.CommitRecoveryRequest{Uuid: &d.uuid, Block: blockPB(b.GetId(), b.GetGeneration(), length), NewGeneration: c.NewGeneration}
	for _, o := range found {
		o.store(b.GetId(), c.GetNewGeneration(), length, clusterpb.ReplicaState_FINALIZED)
		req.Datanodes = append(req.Datanodes, o.pb())
	}
	if _, err := d.r.nn.CommitRecovery(context.Background(), req); err != nil {
		d.r.t.Fatal(err)
	}
}

// turn is one heartbeat of all and one look of the monitor.
func (r *rig) turn(dns []*fakeDatanode) {
	r.t.Helper()
	for _, d := range dns {
		d.heartbeat(dns)
	}
	r.check()
}

func (r *rig) holders(id uint64, dns []*fakeDatanode) int {
	n := 0
	for _, d := range dns {
		if d.replicas[id] != nil && !d.dead {
			n++
		}
	}
	return n
}
