package namenode

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// model is what a writer believes of its own subtree, by path.
type model map[string]modelNode

type modelNode struct {
	dir         bool
	open        bool
	length      uint64
	last        uint64 // id of the last block
	mode        uint32
	replication uint32
}

func (m model) String() string {
	var out strings.Builder
	for _, p := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&out, "%s %+v\n", p, m[p])
	}
	return out.String()
}

// ancestors adds the directories that a path needs.
func (m model) ancestors(p string) {
	for i := strings.LastIndexByte(p, '/'); i > 0; i = strings.LastIndexByte(p[:i], '/') {
		if _, ok := m[p[:i]]; !ok {
			m[p[:i]] = modelNode{dir: true, mode: 0o755}
		}
	}
}

func (m model) remove(p string) {
	for q := range m {
		if q == p || strings.HasPrefix(q, p+"/") {
			delete(m, q)
		}
	}
}

// recovered reads a subtree back.
func recovered(t *testing.T, nn *NameNode, root string) model {
	t.Helper()
	m := model{}
	nn.read(func(ns *namespace.Namespace) {
		super := namespace.Caller{Superuser: true}
		stack := []string{root}
		for len(stack) > 0 {
			p := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			s, ok, err := ns.Stat(super, p)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				continue
			}
			n := modelNode{dir: s.Directory, open: s.Open, length: s.Length, mode: uint32(s.Mode), replication: uint32(s.Replication)}
			if s.Directory {
				entries, _, _, err := ns.List(super, p, "", 1<<20, false)
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					stack = append(stack, p+"/"+e.Status.Name)
				}
			} else {
				f, err := ns.File(super, p, 0)
				if err != nil {
					t.Fatal(err)
				}
				if k := len(f.Blocks); k > 0 {
					n.last = f.Blocks[k-1].ID
				}
			}
			m[p] = n
		}
	})
	return m
}

// writer runs operations in a subtree of its own and keeps every state that
// it has gone through.
type writer struct {
	nn     *NameNode
	root   string
	rng    *rand.Rand
	model  model
	calls  int32
	blocks map[string]*hdfspb.ExtendedBlockProto // last block of open files
	// reports is held for each of the DataNode's, which come one after another.
	reports *sync.Mutex

	mu      sync.Mutex
	states  []string // after each operation acknowledged, the first before any
	started int      // operations begun
}

func (w *writer) ctx() context.Context {
	w.calls++
	var id rpc.ClientID
	copy(id[:], w.root)
	return rpc.WithCall(context.Background(), &rpc.Call{User: "root", ClientID: id, CallID: w.calls})
}

func (w *writer) path() string {
	p := w.root
	for range 1 + w.rng.IntN(2) {
		p += "/" + string(rune('a'+w.rng.IntN(4)))
	}
	return p
}

// step does one operation. Those that are refused change nothing, in the
// model as in the NameNode.
func (w *writer) step(dn *fakeDatanode) error {
	w.mu.Lock()
	w.started++
	w.mu.Unlock()
	p := w.path()
	m := maps.Clone(w.model)
	n, exists := m[p]
	var err error
	switch w.rng.IntN(10) {
	case 0:
		_, err = w.nn.mkdirs(w.ctx(), &hdfspb.MkdirsRequestProto{Src: &p, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true)})
		if err == nil && !exists {
			m.ancestors(p)
			m[p] = modelNode{dir: true, mode: 0o755}
		}
	case 1, 2, 3:
		_, err = w.nn.create(w.ctx(), createRequest(p, w.root, 1, flagCreate|flagOverwrite))
		if err == nil {
			m.ancestors(p)
			m[p] = modelNode{open: true, mode: 0o644, replication: 1}
			delete(w.blocks, p)
		}
	case 4, 5, 6:
		var resp *hdfspb.AddBlockResponseProto
		resp, err = w.nn.addBlock(w.ctx(), &hdfspb.AddBlockRequestProto{Src: &p, ClientName: &w.root, Previous: w.blocks[p]})
		if err == nil {
			b := resp.GetBlock().GetB()
			if prev := w.blocks[p]; prev != nil {
				n.length += prev.GetNumBytes()
			}
			n.last = b.GetBlockId()
			m[p] = n
			b.NumBytes = proto.Uint64(uint64(1 + w.rng.IntN(1000)))
			w.blocks[p] = b
			w.reports.Lock()
			_, err := w.nn.BlocksChanged(context.Background(), &clusterpb.BlocksChangedRequest{Uuid: &dn.uuid, Session: &dn.session, Sequence: dn.next(), Changes: []*clusterpb.ReplicaChange{{
				Kind:    clusterpb.ReplicaChange_RECEIVED.Enum(),
				Replica: &clusterpb.Replica{Block: blockPB(b.GetBlockId(), b.GetGenerationStamp(), b.GetNumBytes()), State: clusterpb.ReplicaState_FINALIZED.Enum()},
			}}})
			w.reports.Unlock()
			if err != nil {
				return err
			}
		}
	case 7:
		var resp *hdfspb.CompleteResponseProto
		resp, err = w.nn.complete(w.ctx(), &hdfspb.CompleteRequestProto{Src: &p, ClientName: &w.root, Last: w.blocks[p]})
		if err == nil && resp.GetResult() && n.open {
			if b := w.blocks[p]; b != nil {
				n.length += b.GetNumBytes()
			}
			n.open = false
			m[p] = n
			delete(w.blocks, p)
		}
	case 8:
		q := w.path()
		_, err = w.nn.rename2(w.ctx(), &hdfspb.Rename2RequestProto{Src: &p, Dst: &q, OverwriteDest: proto.Bool(true)})
		if err == nil {
			m.remove(q)
			delete(w.blocks, q)
			for from, n := range maps.Clone(m) {
				if from == p || strings.HasPrefix(from, p+"/") {
					delete(m, from)
					to := q + from[len(p):]
					m[to] = n
					if b := w.blocks[from]; b != nil {
						w.blocks[to] = b
						delete(w.blocks, from)
					}
				}
			}
		}
	case 9:
		if w.rng.IntN(2) == 0 {
			var resp *hdfspb.DeleteResponseProto
			resp, err = w.nn.delete(w.ctx(), &hdfspb.DeleteRequestProto{Src: &p, Recursive: proto.Bool(true)})
			if err == nil && resp.GetResult() {
				for q := range m {
					if q == p || strings.HasPrefix(q, p+"/") {
						delete(w.blocks, q)
					}
				}
				m.remove(p)
			}
		} else if exists && !n.dir {
			mode := uint32(w.rng.IntN(0o1000))
			_, err = w.nn.setPermission(w.ctx(), &hdfspb.SetPermissionRequestProto{Src: &p, Permission: &hdfspb.FsPermissionProto{Perm: &mode}})
			n.mode = mode
			m[p] = n
		}
	}
	if err != nil {
		m = w.model
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.model = m
	w.states = append(w.states, m.String())
	return nil
}

// TestCrash runs writers at once, takes away at a random moment what was not
// synced, and compares what comes back with what each writer was told.
func TestCrash(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			crash(t, seed)
		})
	}
}

func crash(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 99))
	fs := vfs.NewCrashableMem()
	roots := []string{"/w0", "/w1", "/w2"}
	models := make([]model, len(roots))
	open := func(fs vfs.FS) *NameNode {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		nn, err := Open(ctx, Config{Dir: "/data/nn", FS: fs, Superuser: "root", MinBlockSize: 1, manual: true, CompleteWait: time.Nanosecond})
		if err != nil {
			t.Fatal(err)
		}
		return nn
	}
	nn := open(fs)
	clusterID := nn.ClusterID()
	for round := range 3 {
		r := &rig{t: t, nn: nn}
		dn := &fakeDatanode{r: r, uuid: "dn", host: "10.0.0.1", port: 1, room: 1 << 40}
		dn.register()
		writers, reports := make([]*writer, len(roots)), new(sync.Mutex)
		for i, root := range roots {
			if models[i] == nil {
				models[i] = model{}
			}
			// Files left open belong to a writer that is gone; this one has other names.
			w := &writer{nn: nn, reports: reports, root: root, rng: rand.New(rand.NewPCG(seed, uint64(round*10+i))), model: models[i], blocks: map[string]*hdfspb.ExtendedBlockProto{}, calls: int32(round * 100000)}
			for p, n := range w.model {
				if n.open {
					if _, err := nn.delete(w.ctx(), &hdfspb.DeleteRequestProto{Src: &p, Recursive: proto.Bool(true)}); err != nil {
						t.Fatal(err)
					}
					delete(w.model, p)
				}
			}
			w.states = []string{w.model.String()}
			writers[i] = w
		}
		ops := 20 + rng.IntN(100)
		var wg sync.WaitGroup
		trigger := make(chan struct{})
		crashAt := rng.IntN(ops)
		for i, w := range writers {
			wg.Go(func() {
				for k := range ops {
					if i == 0 && k == crashAt {
						close(trigger)
					}
					if err := w.step(dn); err != nil {
						t.Error(err)
						return
					}
					if i == 1 && k%25 == 24 {
						if err := nn.journal.Snapshot(); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		<-trigger
		acked := make([]int, len(writers))
		for i, w := range writers {
			w.mu.Lock()
			acked[i] = len(w.states) - 1
			w.mu.Unlock()
		}
		fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		begun := make([]int, len(writers))
		for i, w := range writers {
			w.mu.Lock()
			begun[i] = w.started
			w.mu.Unlock()
		}
		wg.Wait()
		nn.Close()

		nn = open(fs)
		if got := nn.ClusterID(); got != clusterID {
			t.Fatalf("cluster id %s, was %s", got, clusterID)
		}
		for i, w := range writers {
			models[i] = recovered(t, nn, roots[i])
			got := models[i].String()
			at := slices.Index(w.states[acked[i]:min(begun[i]+1, len(w.states))], got)
			if at < 0 {
				t.Fatalf("round %d: writer %d had %d operations acknowledged and %d begun; what came back is none of the states between:\n%s\nlast acknowledged:\n%s", round, i, acked[i], begun[i], got, w.states[acked[i]])
			}
		}
	}
	nn.Close()
}
