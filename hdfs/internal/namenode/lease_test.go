package namenode

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/statuses"
)

func (r *rig) closed(path string) bool {
	r.t.Helper()
	return must[*hdfspb.IsFileClosedResponseProto](r.t)(r.nn.isFileClosed(r.as("root"), &hdfspb.IsFileClosedRequestProto{Src: &path})).GetResult()
}

func (r *rig) length(path string) uint64 {
	r.t.Helper()
	return must[*statuses.FileInfo](r.t)(r.nn.getFileInfo(r.as("root"), &hdfspb.GetFileInfoRequestProto{Src: &path})).GetFs().GetLength()
}

// openFile makes a file whose writer has flushed some bytes and then says no more.
func (r *rig) openFile(path, client string, lengths []uint64, dns []*fakeDatanode) *hdfspb.ExtendedBlockProto {
	r.t.Helper()
	r.create(path, client, uint32(len(lengths)))
	lb := r.addBlock(path, client, nil)
	for i, info := range lb.GetLocs() {
		for _, d := range dns {
			if d.uuid == info.GetId().GetDatanodeUuid() {
				d.store(lb.GetB().GetBlockId(), lb.GetB().GetGenerationStamp(), lengths[i], clusterpb.ReplicaState_BEING_WRITTEN)
				d.changed(clusterpb.ReplicaChange_RECEIVING, d.replicas[lb.GetB().GetBlockId()])
			}
		}
	}
	return lb.GetB()
}

func TestHardLimit(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(3)
	b := r.openFile("/f", "gone", []uint64{70, 50, 60}, dns)
	r.openFile("/renewed", "alive", []uint64{1, 1, 1}, dns)
	r.create("/empty", "gone", 1)
	for range 130 {
		r.clock.advance(10 * time.Second)
		r.turn(dns)
		must[*hdfspb.RenewLeaseResponseProto](t)(r.nn.renewLease(r.as("root"), &hdfspb.RenewLeaseRequestProto{ClientName: proto.String("alive")}))
	}
	if !r.closed("/f") || !r.closed("/empty") || r.closed("/renewed") {
		t.Fatalf("closed: /f %v, /empty %v, /renewed %v", r.closed("/f"), r.closed("/empty"), r.closed("/renewed"))
	}
	if n := r.length("/f"); n != 50 {
		t.Fatalf("length %d after recovery, want the shortest, 50", n)
	}
	l := r.locations("/f")
	if got := l.GetBlocks()[0]; len(got.GetLocs()) != 3 || got.GetB().GetGenerationStamp() <= b.GetGenerationStamp() {
		t.Fatalf("located after recovery: %v", got)
	}
	// Its writer has lost it.
	_, err := r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: proto.String("/f"), ClientName: proto.String("gone"), Previous: b})
	wantClass(t, err, exception.LeaseExpired)
}

// The writer is gone, and all that had the last block, which is complete: the file is closed after the hard
// limit all the same, with the bytes that it has.
func TestLostLastBlockHoldsNoLease(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	r.create("/f", "gone", 1)
	b := r.addBlock("/f", "gone", nil).GetB()
	b.NumBytes = proto.Uint64(1024)
	next := r.addBlock("/f", "gone", b).GetB()
	must[*hdfspb.AbandonBlockResponseProto](t)(r.nn.abandonBlock(r.as("root"), &hdfspb.AbandonBlockRequestProto{B: next, Src: proto.String("/f"), Holder: proto.String("gone")}))
	turns := func(d time.Duration) {
		for end := r.clock.now().Add(d); r.clock.now().Before(end); r.clock.advance(10 * time.Second) {
			r.turn(dns)
		}
	}
	turns(r.nn.cfg.LeaseHardLimit + time.Minute)
	if r.closed("/f") {
		t.Fatal("it is closed before anybody could report the block")
	}
	turns(r.nn.cfg.LeaseHardLimit)
	if !r.closed("/f") || r.length("/f") != 1024 {
		t.Errorf("closed %t, %d bytes", r.closed("/f"), r.length("/f"))
	}
}

func TestSoftLimit(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	r.openFile("/f", "first", []uint64{40}, dns)
	appendBy := func(client string) error {
		_, err := r.nn.append(r.as("root"), &hdfspb.AppendRequestProto{Src: proto.String("/f"), ClientName: &client})
		return err
	}
	wantClass(t, appendBy("second"), exception.AlreadyBeingCreated)
	wantClass(t, appendBy("first"), exception.AlreadyBeingCreated)
	_, err := r.nn.create(r.as("root"), createRequest("/f", "second", 1, flagCreate))
	wantClass(t, err, exception.AlreadyBeingCreated)
	r.clock.advance(61 * time.Second)
	dns[0].heartbeat(nil)
	wantClass(t, appendBy("second"), exception.RecoveryInProgress)
	wantClass(t, appendBy("second"), exception.RecoveryInProgress)
	r.check()
	r.turn(dns)
	if err := appendBy("second"); err != nil {
		t.Fatal(err)
	}
	if n := r.length("/f"); n != 40 {
		t.Fatalf("length %d, want 40", n)
	}
}

func TestRecoverLease(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	r.openFile("/f", "w", []uint64{40, 40}, dns)
	again := func() bool {
		return must[*hdfspb.RecoverLeaseResponseProto](t)(r.nn.recoverLease(r.as("root"), &hdfspb.RecoverLeaseRequestProto{Src: proto.String("/f"), ClientName: proto.String("x")})).GetResult()
	}
	if again() {
		t.Fatal("closed without asking the DataNodes")
	}
	// The first leader dies with its command; another one gets a new generation.
	var generations []uint64
	for _, d := range dns {
		d.recover = func(c *clusterpb.Command) {
			generations = append(generations, c.GetNewGeneration())
			if len(generations) > 1 {
				d.lead(c, dns)
			}
		}
	}
	for range 4 {
		r.check()
		r.turn(dns)
		r.clock.advance(16 * time.Second)
	}
	if !again() || len(generations) != 2 || generations[1] <= generations[0] {
		t.Fatalf("closed %v after recoveries with generations %v", again(), generations)
	}
	_, err := r.nn.CommitRecovery(context.Background(), &clusterpb.CommitRecoveryRequest{Block: blockPB(1<<30, 1, 3), NewGeneration: &generations[0], Datanodes: []*clusterpb.Datanode{dns[0].pb()}})
	if !errors.Is(err, cluster.ErrStale) {
		t.Fatalf("the first leader's commit came late: %v", err)
	}
}

func TestUnwrittenBlockIsDropped(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	r.create("/f", "w", 2)
	r.addBlock("/f", "w", nil)
	recover := func() bool {
		return must[*hdfspb.RecoverLeaseResponseProto](t)(r.nn.recoverLease(r.as("root"), &hdfspb.RecoverLeaseRequestProto{Src: proto.String("/f"), ClientName: proto.String("x")})).GetResult()
	}
	recover()
	r.check()
	r.turn(dns)
	if !recover() || r.length("/f") != 0 || len(r.locations("/f").GetBlocks()) != 0 {
		t.Fatalf("the file was not closed without its last block: %v", r.locations("/f"))
	}
}

func TestFlushedBlockIsNotDropped(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	b := r.openFile("/f", "w", []uint64{40}, dns)
	must[*hdfspb.FsyncResponseProto](t)(r.nn.fsync(r.as("root"), &hdfspb.FsyncRequestProto{Src: proto.String("/f"), Client: proto.String("w"), LastBlockLength: proto.Int64(40)}))
	if r.length("/f") != 40 {
		t.Fatalf("length %d after fsync, want 40", r.length("/f"))
	}
	refused := 0
	dns[0].recover = func(c *clusterpb.Command) {
		if _, err := r.nn.CommitRecovery(context.Background(), &clusterpb.CommitRecoveryRequest{Block: blockPB(b.GetBlockId(), b.GetGenerationStamp(), 0), NewGeneration: c.NewGeneration}); err != nil {
			refused++
		}
	}
	must[*hdfspb.RecoverLeaseResponseProto](t)(r.nn.recoverLease(r.as("root"), &hdfspb.RecoverLeaseRequestProto{Src: proto.String("/f"), ClientName: proto.String("x")}))
	r.check()
	r.turn(dns)
	if refused != 1 || r.closed("/f") {
		t.Fatalf("refused %d, closed %v: flushed bytes were given up", refused, r.closed("/f"))
	}
}

func TestTruncate(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	r.create("/f", "w", 2)
	var last *hdfspb.ExtendedBlockProto
	for range 3 {
		lb := r.addBlock("/f", "w", last)
		last = lb.GetB()
		last.NumBytes = proto.Uint64(1000)
		for _, d := range dns {
			d.receive(last)
		}
	}
	if !r.complete("/f", "w", last) {
		t.Fatal("not completed")
	}
	truncate := func(n uint64) (bool, error) {
		resp, err := r.nn.truncate(r.as("root"), &hdfspb.TruncateRequestProto{Src: proto.String("/f"), NewLength: &n, ClientName: proto.String("t")})
		return resp.GetResult(), err
	}
	if _, err := truncate(3001); err == nil {
		t.Fatal("truncated to more than there is")
	} else {
		wantClass(t, err, exception.IllegalArgument)
	}
	if done, err := truncate(2000); err != nil || !done || r.length("/f") != 2000 {
		t.Fatalf("to a block's end: %v %v, length %d", done, err, r.length("/f"))
	}
	if done, err := truncate(1234); err != nil || done || r.closed("/f") {
		t.Fatalf("into a block: %v %v, closed %v", done, err, r.closed("/f"))
	}
	r.check()
	r.turn(dns)
	if !r.closed("/f") || r.length("/f") != 1234 {
		t.Fatalf("closed %v, length %d, want 1234", r.closed("/f"), r.length("/f"))
	}
	l := r.locations("/f").GetBlocks()
	if len(l) != 2 || l[1].GetB().GetNumBytes() != 234 || len(l[1].GetLocs()) != 2 {
		t.Fatalf("blocks: %v", l)
	}
	if done, err := truncate(0); err != nil || !done || r.length("/f") != 0 {
		t.Fatalf("to nothing: %v %v", done, err)
	}
}

func TestAppend(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	b := r.write("/f", 2, 100, dns...)
	resp := must[*hdfspb.AppendResponseProto](t)(r.nn.append(r.as("root"), &hdfspb.AppendRequestProto{Src: proto.String("/f"), ClientName: proto.String("a")}))
	if got := resp.GetBlock(); got.GetB().GetBlockId() != b.GetBlockId() || got.GetB().GetNumBytes() != 100 || len(got.GetLocs()) != 2 || resp.GetStat().GetLength() != 100 {
		t.Fatalf("append: %v", resp)
	}
	up := must[*hdfspb.UpdateBlockForPipelineResponseProto](t)(r.nn.updateBlockForPipeline(r.as("root"), &hdfspb.UpdateBlockForPipelineRequestProto{Block: b, ClientName: proto.String("a")}))
	next := proto.Clone(b).(*hdfspb.ExtendedBlockProto)
	next.GenerationStamp, next.NumBytes = up.GetBlock().GetB().GenerationStamp, proto.Uint64(100)
	if next.GetGenerationStamp() <= b.GetGenerationStamp() {
		t.Fatalf("new stamp %d, old %d", next.GetGenerationStamp(), b.GetGenerationStamp())
	}
	// Asking must not have changed anything.
	if got := r.locations("/f").GetLastBlock().GetB().GetGenerationStamp(); got != b.GetGenerationStamp() {
		t.Fatalf("the stored stamp is %d, was %d", got, b.GetGenerationStamp())
	}
	ctx := r.as("root")
	update := &hdfspb.UpdatePipelineRequestProto{ClientName: proto.String("a"), OldBlock: b, NewBlock: next, NewNodes: []*hdfspb.DatanodeIDProto{{DatanodeUuid: &dns[0].uuid}}}
	must[*hdfspb.UpdatePipelineResponseProto](t)(r.nn.updatePipeline(ctx, update))
	must[*hdfspb.UpdatePipelineResponseProto](t)(r.nn.updatePipeline(ctx, update)) // the same call again
	if _, err := r.nn.updatePipeline(r.as("root"), update); err == nil {
		t.Fatal("another call with a stamp that is no longer new was taken")
	}
	next.NumBytes = proto.Uint64(150)
	if r.complete("/f", "a", next) {
		t.Fatal("completed though nobody has the replica")
	}
	dns[0].receive(next)
	for i := range 2 {
		if !r.complete("/f", "a", next) {
			t.Fatalf("not completed when asked for the %d. time", i+1)
		}
	}
	l := r.locations("/f").GetBlocks()[0]
	if len(l.GetLocs()) != 1 || l.GetB().GetNumBytes() != 150 {
		t.Fatalf("located: %v", l)
	}
	for range 4 {
		r.clock.advance(6 * time.Second)
		r.turn(dns)
	}
	if got := dns[1].replicas[b.GetBlockId()].GetBlock(); got.GetGeneration() != next.GetGenerationStamp() || got.GetLength() != 150 {
		t.Fatalf("the replica that missed the append was not replaced: %v", got)
	}
}

func TestAddBlockAgain(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(3)
	r.create("/f", "w", 3)
	b := r.addBlock("/f", "w", nil)
	if again := r.addBlock("/f", "w", nil); again.GetB().GetBlockId() != b.GetB().GetBlockId() || len(again.GetLocs()) != 3 || again.GetLocs()[0].GetId().GetDatanodeUuid() != b.GetLocs()[0].GetId().GetDatanodeUuid() {
		t.Fatalf("asked again: %v, first %v", again, b)
	}
	b.B.NumBytes = proto.Uint64(1024)
	b2 := r.addBlock("/f", "w", b.GetB())
	if b2.GetOffset() != 1024 || b2.GetB().GetBlockId() == b.GetB().GetBlockId() {
		t.Fatalf("second block: %v", b2)
	}
	if again := r.addBlock("/f", "w", b.GetB()); again.GetB().GetBlockId() != b2.GetB().GetBlockId() {
		t.Fatalf("asked again: %v", again)
	}
	must[*hdfspb.AbandonBlockResponseProto](t)(r.nn.abandonBlock(r.as("root"), &hdfspb.AbandonBlockRequestProto{B: b2.GetB(), Src: proto.String("/f"), Holder: proto.String("w")}))
	b3 := r.addBlock("/f", "w", b.GetB())
	if b3.GetB().GetBlockId() == b2.GetB().GetBlockId() {
		t.Fatal("an abandoned block came back")
	}
	if b3.GetB().GetGenerationStamp() <= b2.GetB().GetGenerationStamp() {
		t.Fatal("generation stamps do not rise")
	}
	_ = dns
}

func TestStampsRiseOverRestarts(t *testing.T) {
	r := newRig(t)
	last := uint64(0)
	for range 5 {
		for range 3 {
			s, err := r.nn.stamp(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s <= last {
				t.Fatalf("stamp %d after %d", s, last)
			}
			last = s
		}
		r.nn.Close()
		r.open()
	}
}

func TestRetryCache(t *testing.T) {
	r := newRig(t)
	r.mkdirs("root", "/d")
	del := &hdfspb.DeleteRequestProto{Src: proto.String("/d"), Recursive: proto.Bool(true)}
	once := r.call("root", 1000)
	for i := range 3 {
		if !must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(once, del)).GetResult() {
			t.Fatalf("run %d of the same call did not get the first one's answer", i)
		}
		if i == 1 {
			r.nn.Close()
			r.open()
		}
	}
	if must[*hdfspb.DeleteResponseProto](t)(r.nn.delete(r.as("root"), del)).GetResult() {
		t.Fatal("another call deleted it again")
	}
	created := r.call("root", 1001)
	first := must[*hdfspb.CreateResponseProto](t)(r.nn.create(created, createRequest("/f", "w", 1, flagCreate))).GetFs().GetFileId()
	if got := must[*hdfspb.CreateResponseProto](t)(r.nn.create(created, createRequest("/f", "w", 1, flagCreate))).GetFs().GetFileId(); got != first {
		t.Fatalf("inode %d, then %d", first, got)
	}
	for i := range 11 {
		r.clock.advance(time.Minute)
		r.mkdirs("root", fmt.Sprint("/other", i)) // the log's time moves with its entries
	}
	r.mkdirs("root", "/other")
	_, err := r.nn.create(created, createRequest("/f", "w", 1, flagCreate))
	wantClass(t, err, exception.AlreadyBeingCreated)
	// At once: the second waits for the first.
	renameCall := r.call("root", 1002)
	results := make(chan bool)
	for range 8 {
		go func() {
			resp, err := r.nn.rename(renameCall, &hdfspb.RenameRequestProto{Src: proto.String("/other"), Dst: proto.String("/new")})
			results <- err == nil && resp.GetResult()
		}()
	}
	for range 8 {
		if !<-results {
			t.Error("a repetition of a rename under way failed")
		}
	}
}

// TestUnaskedHolderKeepsTheBlock: a DataNode of the pipeline is dead that is
// known to have begun the block, the other has nothing. What the dead one may
// have is not given up before the lease's hard limit.
func TestUnaskedHolderKeepsTheBlock(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	r.create("/f", "w", 2)
	b := r.addBlock("/f", "w", nil).GetB()
	dns[1].store(b.GetBlockId(), b.GetGenerationStamp(), 40, clusterpb.ReplicaState_BEING_WRITTEN)
	dns[1].changed(clusterpb.ReplicaChange_RECEIVING, dns[1].replicas[b.GetBlockId()])
	dns[1].dead = true
	r.clock.advance(20 * time.Second)
	r.turn(dns)
	r.clock.advance(20 * time.Second)
	r.turn(dns) // now it counts as dead
	refused := 0
	dns[0].recover = func(c *clusterpb.Command) {
		_, err := r.nn.CommitRecovery(context.Background(), &clusterpb.CommitRecoveryRequest{Block: blockPB(b.GetBlockId(), b.GetGenerationStamp(), 0), NewGeneration: c.NewGeneration})
		if err != nil {
			refused++
		}
	}
	recover := func() bool {
		return must[*hdfspb.RecoverLeaseResponseProto](t)(r.nn.recoverLease(r.as("root"), &hdfspb.RecoverLeaseRequestProto{Src: proto.String("/f"), ClientName: proto.String("x")})).GetResult()
	}
	recover()
	r.check()
	r.turn(dns)
	if refused != 1 || r.closed("/f") {
		t.Fatalf("refused %d times, closed %v", refused, r.closed("/f"))
	}
	// It comes back, and the next attempt finds what it has.
	dns[1].dead = false
	dns[1].store(b.GetBlockId(), b.GetGenerationStamp(), 40, clusterpb.ReplicaState_WAITING_RECOVERY)
	dns[1].register()
	dns[0].recover = nil
	for range 3 {
		r.clock.advance(16 * time.Second)
		r.turn(dns)
		r.turn(dns)
	}
	if !r.closed("/f") || r.length("/f") != 40 {
		t.Fatalf("closed %v with %d bytes, want 40", r.closed("/f"), r.length("/f"))
	}
}

// The writer dies before its first byte, and DataNodes of its pipeline never
// return. The file is closed all the same.
func TestDeadPipelineHoldsNoLease(t *testing.T) {
	const hardLimit, week = 20 * time.Minute, 7 * 24 * time.Hour
	for _, c := range []struct {
		name   string
		begun  bool // the replicas were set up, empty
		dead   int  // of two
		fsync  int64
		after  time.Duration // it takes so long
		length uint64
	}{
		{name: "nothing was set up, one is dead", dead: 1, after: hardLimit},
		{name: "empty replicas were set up, one is dead", begun: true, dead: 1},
		{name: "nothing was set up, all are dead", dead: 2, after: week},
		{name: "empty replicas were set up, all are dead", begun: true, dead: 2, after: week},
		{name: "bytes were flushed, the living one has lost them", dead: 1, fsync: 40, after: hardLimit, length: 40},
		{name: "bytes were flushed, all are dead", dead: 2, fsync: 40, after: week, length: 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			dns := r.datanodes(2)
			r.create("/f", "w", 2)
			b := r.addBlock("/f", "w", nil).GetB()
			if c.begun {
				for _, d := range dns {
					d.store(b.GetBlockId(), b.GetGenerationStamp(), 0, clusterpb.ReplicaState_BEING_WRITTEN)
					d.changed(clusterpb.ReplicaChange_RECEIVING, d.replicas[b.GetBlockId()])
				}
			}
			if c.fsync > 0 {
				must[*hdfspb.FsyncResponseProto](t)(r.nn.fsync(r.as("root"), &hdfspb.FsyncRequestProto{Src: proto.String("/f"), Client: proto.String("w"), LastBlockLength: &c.fsync}))
			}
			for i := range c.dead {
				dns[1-i].dead = true
			}
			for range 4 {
				r.clock.advance(10 * time.Second)
				r.turn(dns)
			}
			dns[0].recover = func(cmd *clusterpb.Command) {
				// It has no byte, and neither has any that it can ask.
				if cmd.GetMissing() != uint32(c.dead) || cmd.GetLate() && c.after == 0 {
					t.Errorf("%d are told to be missing, late %t", cmd.GetMissing(), cmd.GetLate())
				}
				_, _ = r.nn.CommitRecovery(context.Background(), &clusterpb.CommitRecoveryRequest{
					Block: blockPB(b.GetBlockId(), b.GetGenerationStamp(), 0), NewGeneration: cmd.NewGeneration, Unwritten: &c.begun,
				})
			}
			must[*hdfspb.RecoverLeaseResponseProto](t)(r.nn.recoverLease(r.as("root"), &hdfspb.RecoverLeaseRequestProto{Src: proto.String("/f"), ClientName: proto.String("x")}))
			for range 5 {
				r.clock.advance(16 * time.Second)
				r.turn(dns)
			}
			wait := func(d time.Duration) {
				for range 12 {
					r.clock.advance(d / 10)
					for range 3 {
						r.turn(dns)
					}
				}
			}
			for _, d := range []time.Duration{hardLimit, week} {
				if r.closed("/f") != (c.after < d) {
					t.Fatalf("before %v: closed %t", d, r.closed("/f"))
				}
				if c.after >= d {
					wait(d)
				}
			}
			if !r.closed("/f") || r.length("/f") != c.length {
				t.Fatalf("closed %t with %d bytes, want %d", r.closed("/f"), r.length("/f"), c.length)
			}
		})
	}
}

// A block that is being written has DataNodes for readers also when all of its pipeline are away,
// as in HDFS: without any they would take it for one that nobody has begun.
func TestBlocksBeingWrittenKeepTheirDataNodes(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	r.create("/f", "w", 2)
	r.addBlock("/f", "w", nil)
	r.nn.Close()
	r.open()
	locs := func(want ...uint32) {
		t.Helper()
		for _, lb := range append(r.locations("/f").GetBlocks(), r.locations("/f").GetLastBlock()) {
			var ports []uint32
			for _, n := range lb.GetLocs() {
				ports = append(ports, n.GetId().GetIpcPort())
			}
			if slices.Sort(ports); !slices.Equal(ports, want) {
				t.Errorf("DataNodes at %v, want %v", ports, want)
			}
		}
	}
	locs(9001, 9002)
	dns[1].register()
	locs(9002)
}

// Whoever comes back when the others have been asked may have what they lack: its bytes
// are not given up on their word. After a start that is each DataNode of the pipeline.
func TestHolderThatComesBackKeepsTheBlock(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restarts), func(t *testing.T) {
			r := newRig(t)
			dns := r.datanodes(2)
			r.create("/f", "w", 2)
			b := r.addBlock("/f", "w", nil).GetB()
			dns[1].dead = true
			if restarts {
				r.nn.Close()
				r.open()
				dns[0].register()
			}
			for range 4 {
				r.clock.advance(10 * time.Second)
				r.turn(dns)
			}
			back := func() {
				dns[1].dead = false
				dns[1].store(b.GetBlockId(), b.GetGenerationStamp(), 40, clusterpb.ReplicaState_WAITING_RECOVERY)
				dns[1].register()
			}
			refused := 0
			dns[0].recover = func(c *clusterpb.Command) {
				if !restarts {
					back()
				}
				_, err := r.nn.CommitRecovery(context.Background(), &clusterpb.CommitRecoveryRequest{Block: blockPB(b.GetBlockId(), b.GetGenerationStamp(), 0), NewGeneration: c.NewGeneration})
				if err != nil {
					refused++
				}
				dns[0].recover = nil
			}
			must[*hdfspb.RecoverLeaseResponseProto](t)(r.nn.recoverLease(r.as("root"), &hdfspb.RecoverLeaseRequestProto{Src: proto.String("/f"), ClientName: proto.String("x")}))
			r.check()
			r.turn(dns[:1])
			if refused != 1 || r.closed("/f") {
				t.Fatalf("refused %d times, closed %t", refused, r.closed("/f"))
			}
			if restarts {
				back()
			}
			for range 4 {
				r.clock.advance(16 * time.Second)
				r.turn(dns)
				r.turn(dns)
			}
			if !r.closed("/f") || r.length("/f") != 40 {
				t.Fatalf("closed %t with %d bytes, want 40", r.closed("/f"), r.length("/f"))
			}
		})
	}
}

// A block that is added after its call has given up, as on a disk that was full for a while, makes the
// file wait for the one before it, as any other does.
func TestBlockAddedAfterItsCall(t *testing.T) {
	r := newRig(t)
	d := r.datanode(1)
	r.check()
	r.create("/f", "w", 1)
	first := r.addBlock("/f", "w", nil).GetB()
	first.NumBytes = proto.Uint64(1024)
	stamp := must[uint64](t)(r.nn.stamp(r.as("root")))
	res := must[namespace.Result](t)(r.nn.propose(r.as("root"), &nspb.Entry{
		Caller: r.nn.callFrom(r.as("root")).caller, Limits: r.nn.blockLimits, Op: &nspb.Entry_AddBlock{AddBlock: &nspb.AddBlock{
			Path: proto.String("/f"), Holder: proto.String("w"), Previous: extended(first), Generation: &stamp, Targets: []string{d.uuid},
		}},
	}))
	last := &hdfspb.ExtendedBlockProto{PoolId: first.PoolId, BlockId: &res.Block.ID, GenerationStamp: &res.Block.Generation, NumBytes: proto.Uint64(10)}
	d.receive(last)
	if r.complete("/f", "w", last) {
		t.Error("the file was closed before its first block was reported")
	}
	d.receive(first)
	if !r.complete("/f", "w", last) {
		t.Error("the file was not closed")
	}
}

// As in HDFS a file gets no block while the one before its last has never been reported. A repeated call
// gets the block that the first got all the same.
func TestAddBlockWaitsForTheOneBeforeTheLast(t *testing.T) {
	r := newRig(t)
	d := r.datanode(1)
	r.create("/f", "w", 1)
	filled := func(b *hdfspb.ExtendedBlockProto) *hdfspb.ExtendedBlockProto {
		b.NumBytes = proto.Uint64(1024)
		return b
	}
	first := filled(r.addBlock("/f", "w", nil).GetB())
	second := filled(r.addBlock("/f", "w", first).GetB())
	if again := r.addBlock("/f", "w", first).GetB(); again.GetBlockId() != second.GetBlockId() {
		t.Errorf("asked again: block %d, want %d", again.GetBlockId(), second.GetBlockId())
	}
	third := func(path string) (*hdfspb.AddBlockResponseProto, error) {
		return r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: &path, ClientName: proto.String("w"), Previous: second})
	}
	_, err := third("/f")
	wantClass(t, err, exception.NotReplicatedYet)
	d.receive(second) // it is the first that is asked about
	_, err = third("/f")
	wantClass(t, err, exception.NotReplicatedYet)
	d.receive(first)
	d.changed(clusterpb.ReplicaChange_DELETED, d.replicas[first.GetBlockId()]) // once is enough
	if _, err := third("/f"); err != nil {
		t.Error(err)
	}
}

// The call that waits for the report of an earlier block goes on with it.
func TestAddBlockGoesOnWithTheReport(t *testing.T) {
	r := newRig(t)
	r.nn.Close()
	r.open(func(c *Config) { c.CompleteWait = time.Minute })
	d := r.datanode(1)
	r.create("/f", "w", 1)
	first := r.addBlock("/f", "w", nil).GetB()
	first.NumBytes = proto.Uint64(1024)
	second := r.addBlock("/f", "w", first).GetB()
	second.NumBytes = proto.Uint64(1024)
	done := make(chan error, 1)
	go func() {
		_, err := r.nn.addBlock(r.as("root"), &hdfspb.AddBlockRequestProto{Src: proto.String("/f"), ClientName: proto.String("w"), Previous: second})
		done <- err
	}()
	waits := func() bool {
		r.nn.blocks.mu.Lock()
		defer r.nn.blocks.mu.Unlock()
		return len(r.nn.blocks.waiting[first.GetBlockId()]) == 1
	}
	for !waits() && len(done) == 0 {
		runtime.Gosched()
	}
	d.receive(first)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Unlike in HDFS leases are renewed in safe mode: no writer that waits for its end gives its file up for that,
// and none loses it when it ends.
func TestLeasesAreRenewedInSafeMode(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	r.openFile("/f", "w", []uint64{40}, dns)
	set := func(action hdfspb.SafeModeActionProto) {
		must[*hdfspb.SetSafeModeResponseProto](t)(r.nn.setSafeMode(r.as("root"), &hdfspb.SetSafeModeRequestProto{Action: &action}))
	}
	set(hdfspb.SafeModeActionProto_SAFEMODE_ENTER)
	for range 3 {
		r.clock.advance(r.nn.cfg.LeaseHardLimit / 2)
		must[*hdfspb.RenewLeaseResponseProto](t)(r.nn.renewLease(r.as("root"), &hdfspb.RenewLeaseRequestProto{ClientName: proto.String("w")}))
	}
	set(hdfspb.SafeModeActionProto_SAFEMODE_LEAVE)
	r.check()
	r.nn.read(func(ns *namespace.Namespace) {
		if !ns.Leased("w") {
			t.Error("the file was taken from its writer")
		}
	})
}

// A file is closed when its last block is reported and each one before it has been at some time. As in HDFS
// nothing of those need be left.
func TestCompleteAfterAnEarlierBlockIsLost(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(2)
	lost, left := dns[0], dns[1]
	add := func(path string, previous *hdfspb.ExtendedBlockProto) *hdfspb.ExtendedBlockProto {
		b := r.addBlock(path, "w", previous).GetB()
		b.NumBytes = proto.Uint64(100)
		return b
	}
	// The report of /f's first block comes before the second is asked for, that of /g's after.
	r.create("/f", "w", 1)
	f1 := add("/f", nil)
	lost.receive(f1)
	f2 := add("/f", f1)
	r.create("/g", "w", 1)
	g1 := add("/g", nil)
	g2 := add("/g", g1)
	left.receive(f2)
	left.receive(g2)
	if r.complete("/g", "w", g2) {
		t.Error("a file was closed of whose first block no replica has ever been reported")
	}
	lost.receive(g1)
	// The DataNode is made anew at its address: nothing is remembered of what it held.
	anew := *lost
	anew.uuid, anew.replicas = "anew", map[uint64]*clusterpb.Replica{}
	anew.register()
	r.check()
	for path, last := range map[string]*hdfspb.ExtendedBlockProto{"/f": f2, "/g": g2} {
		if n := len(r.locations(path).GetBlocks()[0].GetLocs()); n != 0 {
			t.Fatalf("%d replicas of the first block of %s are left", n, path)
		}
		if !r.complete(path, "w", last) {
			t.Errorf("%s was not closed, though all its blocks have been reported", path)
		}
	}
	// The last block is another matter, though one that was there before is not asked about.
	r.create("/h", "w", 1)
	h1 := add("/h", nil)
	if r.complete("/h", "w", h1) {
		t.Error("a file was closed whose last block has not been reported")
	}
	left.receive(h1)
	if !r.complete("/h", "w", h1) {
		t.Error("not closed")
	}
	left.changed(clusterpb.ReplicaChange_DELETED, left.replicas[h1.GetBlockId()])
	must[*hdfspb.AppendResponseProto](t)(r.nn.append(r.as("root"), &hdfspb.AppendRequestProto{Src: proto.String("/h"), ClientName: proto.String("w"), Flag: proto.Uint32(flagNewBlock)}))
	h2 := add("/h", h1)
	left.receive(h2)
	if !r.complete("/h", "w", h2) {
		t.Error("not closed: its first block was complete when the file was opened again")
	}
}
