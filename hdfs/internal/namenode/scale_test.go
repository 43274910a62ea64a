package namenode

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// The scale run makes VERBENA_SCALE files of one block with three replicas each, and tells
// what they cost and how long writes stop. Its NameNode is a process of its own, which
// is killed at the end and started anew:
//
//	VERBENA_SCALE=10000000 go test -run TestScale -timeout 1h -v ./hdfs/internal/namenode
//
// It writes to TMPDIR; on a disk that is shared the stops are the disk's. The making takes
// minutes and stops there with VERBENA_SCALE_ONLY_BUILD; it is not repeated if VERBENA_SCALE_DIR
// names a directory that has the files. The rest asks for a quiet machine.
// Meanwhile this process tells when processors run no program: a write that was stopped by that
// would have been stopped in any server.
// VERBENA_SCALE_PHASES chooses phases by the names in scalePhases, separated by commas.
func TestScale(t *testing.T) {
	files := scaleOf(t, "VERBENA_SCALE")
	dir := cmp.Or(os.Getenv("VERBENA_SCALE_DIR"), t.TempDir())
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "TestScaleServer", "-test.v", "-test.timeout", "1h")
	cmd.Env = append(os.Environ(), fmt.Sprint("VERBENA_SCALE_SERVER=", files), "VERBENA_SCALE_DIR="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := newPulse()
	if err != nil {
		t.Log("whether processors stand still is not known:", err)
		p = &pulse{stop: make(chan struct{})}
	}
	defer p.close()
	p.watch(cmd.Process.Pid)
	ready := false
	lines := bufio.NewScanner(out)
	for !ready && lines.Scan() {
		line := lines.Text()
		ready = strings.Contains(line, "SCALE ready")
		if strings.Contains(line, "SCALE") || strings.Contains(line, ".go:") {
			fmt.Println(line)
		}
		if _, numbers, ok := strings.Cut(line, "SCALE     "); ok {
			var from, to int64
			if _, err := fmt.Sscanf(numbers, stopFormat, &from, &to); err == nil {
				p.tell(time.Duration(from)*time.Microsecond, time.Duration(to)*time.Microsecond)
			}
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if !ready {
		t.Fatal("the server ended before it was ready")
	}
	start := time.Now()
	nn := openScale(t, dir)
	defer nn.Close()
	took := time.Since(start)
	nn.read(func(ns *namespace.Namespace) {
		got, _, blocks := ns.Counts()
		t.Logf("SCALE start after kill -9: %v, %d files, %d blocks", took.Round(time.Millisecond), got, blocks)
	})
	t.Logf("SCALE live heap after the start, without locations: %d B a file", liveHeap()/uint64(files))
}

func scaleOf(t *testing.T, name string) int {
	var files int
	if _, err := fmt.Sscan(os.Getenv(name), &files); err != nil || files < 1000 {
		t.Skip("set " + name + " to a number of files, 1,000 at least")
	}
	return files
}

func openScale(t *testing.T, dir string) *NameNode {
	nn, err := Open(t.Context(), Config{
		Dir: dir, Superuser: "root", Groups: func(string) []string { return nil }, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		HeartbeatInterval: time.Hour, DeadAfter: 24 * time.Hour, SafeModeTimeout: 24 * time.Hour, StaleAfter: 24 * time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	return nn
}

func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// scaleRun is the server's part.
type scaleRun struct {
	t     *testing.T
	nn    *NameNode
	files int
	stop  chan struct{}
	wg    sync.WaitGroup
	worst atomic.Int64 // nanoseconds, of a write since the phase began
	write atomic.Int64 // how many
	// stops is the writer's; between two phases it is the run's.
	stops  *stopwatch
	paused sync.Mutex
}

func TestScaleServer(t *testing.T) {
	files := scaleOf(t, "VERBENA_SCALE_SERVER")
	debug.SetGCPercent(100)
	if os.Getenv("GOMAXPROCS") == "" { // as the command does
		runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0)))
	}
	threadTime = func() time.Duration {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
			t.Error(err)
		}
		return time.Duration(now.Nano())
	}
	before := liveHeap()
	r := &scaleRun{t: t, nn: openScale(t, os.Getenv("VERBENA_SCALE_DIR")), files: files, stop: make(chan struct{})}
	if r.count() == 0 {
		start := time.Now()
		r.build()
		r.say("built in %v", time.Since(start).Round(time.Second))
		if err := r.nn.journal.Snapshot(); err != nil {
			t.Fatal(err)
		}
		if os.Getenv("VERBENA_SCALE_ONLY_BUILD") != "" {
			fmt.Println("SCALE ready")
			select {}
		}
	}
	if got := r.count(); got != files {
		t.Fatalf("the directory has %d files", got)
	}
	r.say("live heap: %d B a file with its block, without locations", (liveHeap()-before)/uint64(files))
	r.stops = newStopwatch(t)
	r.wg.Go(r.writer)
	for _, p := range scalePhases {
		if r.chosen(p.name) {
			r.phase(p.what, func() { p.run(r) })
		}
		if p.name == "reports" {
			r.say("live heap: %d B a file with its block and three locations", (liveHeap()-before)/uint64(files))
		}
	}
	close(r.stop)
	r.wg.Wait()
	r.trail()
	fmt.Println("SCALE ready")
	select {} // until it is killed
}

// scalePhases are in the order in which they run. A death and repeated reports need the reports
// before them.
var scalePhases = []struct {
	name, what string
	run        func(*scaleRun)
}{
	{"idle", "nothing else", func(r *scaleRun) { r.settle(3 * time.Second) }},
	{"reports", "full reports of three DataNodes", func(r *scaleRun) { r.reports(scaleUUIDs) }},
	{"gc", "after a garbage collection", func(*scaleRun) { runtime.GC() }},
	{"snapshot", "a snapshot", (*scaleRun).snapshot},
	{"again", "one DataNode registers and reports again", func(r *scaleRun) { r.reports(scaleUUIDs[:1]) }},
	{"death", "a DataNode's death", (*scaleRun).death},
	{"delete", "the delete of a tenth", (*scaleRun).delete},
	{"smaller", "a snapshot after it", (*scaleRun).snapshot},
}

func (r *scaleRun) chosen(phase string) bool {
	names := os.Getenv("VERBENA_SCALE_PHASES")
	return names == "" || slices.Contains(strings.Split(names, ","), phase)
}

func (r *scaleRun) snapshot() {
	if err := r.nn.journal.Snapshot(); err != nil {
		r.t.Error(err)
	}
}

func (r *scaleRun) count() (files int) {
	r.nn.read(func(ns *namespace.Namespace) { files, _, _ = ns.Counts() })
	return files
}

func (r *scaleRun) say(format string, args ...any) {
	fmt.Printf("SCALE "+format+"\n", args...)
}

// build makes the files in the state itself: the log would take most of the time, and
// the first snapshot has them anyway. A directory has 1,000 files.
func (r *scaleRun) build() {
	ns := r.nn.state.ns
	r.nn.state.mu.Lock()
	defer r.nn.state.mu.Unlock()
	apply := func(e *nspb.Entry) namespace.Result {
		e.TimeMs = proto.Int64(time.Now().UnixMilli())
		e.Caller = &nspb.Caller{User: proto.String("root"), Superuser: proto.Bool(true)}
		res, err := ns.Apply(e)
		if err != nil {
			r.t.Fatal(err)
		}
		return res
	}
	apply(&nspb.Entry{Op: &nspb.Entry_ReserveGenerations{ReserveGenerations: &nspb.ReserveGenerations{Limit: proto.Uint64(1 << 40)}}})
	holder := proto.String("client")
	for i := range r.files {
		path := proto.String(r.path(i))
		res := apply(&nspb.Entry{Op: &nspb.Entry_Create{Create: &nspb.Create{Path: path, Holder: holder, Mode: proto.Uint32(0o644), CreateParent: proto.Bool(true), Replication: proto.Uint32(3), BlockSize: proto.Uint64(128 << 20)}}})
		file := res.Inode
		res = apply(&nspb.Entry{Op: &nspb.Entry_AddBlock{AddBlock: &nspb.AddBlock{Path: path, File: &file, Holder: holder, Generation: proto.Uint64(uint64(2000 + i)), Targets: []string{"a", "b", "c"}}}})
		apply(&nspb.Entry{Op: &nspb.Entry_Complete{Complete: &nspb.Complete{Path: path, File: &file, Holder: holder, Last: &nspb.Block{Id: &res.Block.ID, Generation: &res.Block.Generation, Length: proto.Uint64(1000)}}}})
	}
	r.nn.blocks.mu.Lock()
	r.nn.blocks.delayed, r.nn.blocks.ready = nil, blockQueue{}
	r.nn.blocks.mu.Unlock()
}

func (r *scaleRun) path(i int) string {
	return fmt.Sprintf("/tree%d/%05d/part-%05d.parquet", i/(r.files/10), i/1000, i%1000)
}

// writer makes directories one after the other, and notes how long each takes.
func (r *scaleRun) writer() {
	ctx := rpc.WithCall(context.Background(), &rpc.Call{User: "root"})
	for i := 0; ; i++ {
		select {
		case <-r.stop:
			return
		default:
		}
		req := &hdfspb.MkdirsRequestProto{Src: proto.String(fmt.Sprintf("/w/%d/%d", i/1000, i)), Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)}
		r.paused.Lock()
		r.stops.begin(i)
		start := time.Now()
		_, err := r.nn.mkdirs(ctx, req)
		took := int64(time.Since(start))
		r.stops.end(i, time.Duration(took))
		r.paused.Unlock()
		if err != nil {
			r.t.Error(err)
			return
		}
		r.write.Add(1)
		for {
			worst := r.worst.Load()
			if took <= worst || r.worst.CompareAndSwap(worst, took) {
				break
			}
		}
	}
}

func (r *scaleRun) phase(name string, f func()) {
	r.paused.Lock()
	r.stops.took = 0
	r.worst.Store(0)
	r.write.Store(0)
	r.paused.Unlock()
	start := time.Now()
	f()
	r.settle(200 * time.Millisecond)
	r.paused.Lock()
	lines := r.stops.reset()
	r.paused.Unlock()
	r.say("%-45s longest write %8v of %6d, took %v", name+":", time.Duration(r.worst.Load()).Round(10*time.Microsecond), r.write.Load(), time.Since(start).Round(time.Millisecond))
	for _, line := range lines {
		r.say("    %s", line)
	}
	for _, h := range []*holds{&r.nn.state.held, &r.nn.blocks.held} {
		for s := range sections {
			if held := h.reset(s); held.wall > time.Millisecond {
				round := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
				r.say("    longest hold by %s: %v, of it %v on a processor; most on a processor: %v", sectionNames[s], round(held.wall), round(held.cpu), round(held.most))
			}
		}
	}
}

// settle waits until the monitor has nothing left to do, and for at least.
func (r *scaleRun) settle(least time.Duration) {
	timer := time.NewTimer(least)
	<-timer.C
	// A loop without a pause would be what the writer waits for.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for busy := true; busy; <-tick.C {
		r.nn.wakeMonitor()
		m := r.nn.blocks
		m.mu.Lock()
		busy = len(m.scans) > 0 || !m.safeMode && m.ready.count > 0
		m.mu.Unlock()
		r.nn.read(func(ns *namespace.Namespace) { busy = busy || ns.Reaping() })
	}
}

var scaleUUIDs = []string{"node-a", "node-b", "node-c"}

// blocks returns the ids of all blocks. It holds the lock for as many as the NameNode itself would.
func (r *scaleRun) blocks() []uint64 {
	ids := make([]uint64, 0, r.files)
	for before := -1; before < len(ids); giveWay() {
		before = len(ids)
		next := uint64(0)
		if before > 0 {
			next = ids[before-1] + 1
		}
		r.nn.read(func(ns *namespace.Namespace) {
			ns.EachBlock(next, func(id uint64) bool {
				ids = append(ids, id)
				return len(ids) < before+scanStep
			})
		})
	}
	return ids
}

// reports has DataNodes register and report all blocks, in parts as a DataNode sends them.
func (r *scaleRun) reports(uuids []string) {
	const part = 10_000
	ids := r.blocks()
	ctx := context.Background()
	sessions := make([]*uint64, len(uuids))
	for i, uuid := range uuids {
		resp, err := r.nn.Register(ctx, &clusterpb.RegisterRequest{Datanode: &clusterpb.Datanode{Uuid: &uuid, Host: proto.String(fmt.Sprintf("10.0.0.%d", i+1)), Port: proto.Uint32(9866)}})
		if err != nil {
			r.t.Fatal(err)
		}
		if _, err := r.nn.Heartbeat(ctx, &clusterpb.HeartbeatRequest{Uuid: &uuid, Session: resp.Session, Storages: []*clusterpb.Storage{{Capacity: proto.Uint64(1 << 50), Remaining: proto.Uint64(1 << 49)}}}); err != nil {
			r.t.Fatal(err)
		}
		sessions[i] = resp.Session
	}
	for i, uuid := range uuids {
		parts := uint32((len(ids) + part - 1) / part)
		for p := range parts {
			some := ids[p*part : min(int(p+1)*part, len(ids))]
			req := &clusterpb.BlockReportRequest{Uuid: &uuid, Session: sessions[i], Sequence: proto.Uint64(uint64(p) + 1), ReportId: proto.Uint64(7), Part: &p, Parts: &parts, Replicas: make([]*clusterpb.Replica, len(some))}
			for j, id := range some {
				gen := 2000 + id - ids[0]
				req.Replicas[j] = &clusterpb.Replica{Block: &clusterpb.Block{Id: &id, Generation: &gen, Length: proto.Uint64(1000)}, State: clusterpb.ReplicaState_FINALIZED.Enum()}
			}
			if _, err := r.nn.BlockReport(ctx, req); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func (r *scaleRun) death() {
	m := r.nn.blocks
	m.mu.Lock()
	n := m.nodes[scaleUUIDs[0]]
	n.lastSeen = n.lastSeen.Add(-25 * time.Hour)
	m.mu.Unlock()
	r.nn.wakeMonitor()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for alive := true; alive; <-tick.C {
		m.mu.Lock()
		alive = n.alive
		m.mu.Unlock()
	}
}

func (r *scaleRun) delete() {
	ctx := rpc.WithCall(context.Background(), &rpc.Call{User: "root"})
	start := time.Now()
	resp, err := r.nn.delete(ctx, &hdfspb.DeleteRequestProto{Src: proto.String("/tree3"), Recursive: proto.Bool(true)})
	if err != nil || !resp.GetResult() {
		r.t.Fatal(resp, err)
	}
	r.say("the call of the delete took %v", time.Since(start).Round(10*time.Microsecond))
}

// trail writes what a start has to read beside the snapshot: almost as many entries as come
// between two snapshots.
func (r *scaleRun) trail() {
	r.snapshot()
	const writers, each = 64, 4080 // of 262,144
	start := time.Now()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			ctx := rpc.WithCall(context.Background(), &rpc.Call{User: "root"})
			for i := range each {
				if _, err := r.nn.mkdirs(ctx, &hdfspb.MkdirsRequestProto{Src: proto.String(fmt.Sprintf("/trail/%d/%d", w, i)), Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)}); err != nil {
					r.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	r.say("%d entries behind the last snapshot, written in %v", writers*each, time.Since(start).Round(time.Millisecond))
}
