package datanode

import (
	"container/list"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

const (
	// mostProofs bounds the tokens that are known to be good, and longestProof the bytes of
	// one with its block: 16 MiB all together.
	mostProofs   = 16 << 10
	longestProof = 1 << 10
)

// kept are finalized replicas that stay open between reads, and the requests whose tokens
// have been found good for them. A request is known by its bytes, block and token, so who
// shows the same bytes has the same right; it ends with the token. What is kept of a
// replica goes before the replica changes.
type kept struct {
	most   int // replicas
	tokens *blocktoken.Keys
	sums   atomic.Int64 // bytes of checksums that replicas keep
	// mostSums bounds them. Beyond it they are read from files, until replicas that have some close.
	mostSums int64

	mu       sync.Mutex
	closed   bool
	replicas map[uint64]*keptReplica
	proofs   map[string]*proof
	used     list.List // of *keptReplica, the one that was used last behind
	shown    list.List // of *proof, likewise
}

// A keptReplica is an open replica. Reads of it may be under way at the same time.
type keptReplica struct {
	*store.Reader
	files  store.Local
	direct bool // files has descriptors
	sums   keptSums
	state  atomic.Int32

	// Guarded by the mu of kept:
	uses   int           // reads under way, and one as long as it is kept
	place  *list.Element // in used; nil: it is not kept any more
	proofs map[*proof]struct{}
}

// endless is when no token's right ends, in ms: in a hundred million years.
const endless = math.MaxInt64 / 1000

// States of a keptReplica.
const (
	unproven  = int32(iota) // it may have changed before it was kept
	unchanged               // what is read while it is so is the replica
	changed                 // or about to be, or it is not kept any more
)

// A proof says that a request may read a replica.
type proof struct {
	request string
	replica *keptReplica
	expires int64 // in ms since 1970
	free    bool  // no tokens were needed
	place   *list.Element
}

func newKept(most int, mostSums int64, tokens *blocktoken.Keys) *kept {
	return &kept{most: most, mostSums: mostSums, tokens: tokens, replicas: map[uint64]*keptReplica{}, proofs: map[string]*proof{}}
}

// find returns the replica that a request may read, to be given back by done; nil if
// nothing is known of it.
func (k *kept) find(request []byte, now time.Time) *keptReplica {
	free := !k.tokens.Enabled()
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.proofs[string(request)]
	if p == nil {
		return nil
	}
	if p.expires <= now.UnixMilli() || p.free != free {
		k.forget(p)
		return nil
	}
	r := p.replica
	r.uses++
	k.used.MoveToBack(r.place)
	k.shown.MoveToBack(p.place)
	return r
}

// until is when a request's token expires; the zero time if nothing is known of it.
func (k *kept) until(request []byte) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.proofs[string(request)]; p != nil {
		return time.UnixMilli(p.expires)
	}
	return time.Time{}
}

// done ends a read.
func (k *kept) done(r *keptReplica) {
	k.mu.Lock()
	r.uses--
	last := r.uses == 0
	k.mu.Unlock()
	if last {
		r.end()
	}
}

// proof makes one of a request whose token has been found good.
func (k *kept) proof(request []byte, token *hdfspb.TokenProto) *proof {
	p := &proof{request: string(request), expires: endless, free: !k.tokens.Enabled()}
	if !p.free {
		p.expires = k.tokens.Until(token).UnixMilli()
	}
	return p
}

// keep takes over a reader whose request has been found good, and returns what it reads
// from, to be given back by done. A replica that is being written, or changing, is not
// kept, but read all the same.
func (k *kept) keep(request []byte, token *hdfspb.TokenProto, rd *store.Reader) *keptReplica {
	r := &keptReplica{Reader: rd, uses: 1, proofs: map[*proof]struct{}{}}
	r.files, r.direct = rd.Local()
	if rd.Info.State != store.Finalized || len(request) > longestProof {
		return r
	}
	if r.direct {
		r.sums.held, r.sums.most = &k.sums, k.mostSums
	}
	p := k.proof(request, token)
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return r
	}
	if old := k.replicas[rd.Info.ID]; old != nil {
		k.drop(old)
	}
	r.uses++
	r.place = k.used.PushBack(r)
	k.replicas[rd.Info.ID] = r
	k.show(p, r)
	for len(k.replicas) > k.most {
		k.drop(k.used.Front().Value.(*keptReplica))
	}
	k.mu.Unlock()
	// Whoever changes the replica from here on finds it; whoever did before shows here. That
	// lock is taken before the one of kept.
	if !rd.Current() || !r.state.CompareAndSwap(unproven, unchanged) {
		k.mu.Lock()
		k.drop(r)
		k.mu.Unlock()
	}
	return r
}

// prove notes that another request may read a replica that is kept already, and returns
// the replica as find does; nil if it is not kept.
func (k *kept) prove(request []byte, token *hdfspb.TokenProto, block *hdfspb.ExtendedBlockProto) *keptReplica {
	if len(request) > longestProof {
		return nil
	}
	p := k.proof(request, token)
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.replicas[block.GetBlockId()]
	if r == nil || r.Info.Generation < block.GetGenerationStamp() {
		return nil
	}
	k.show(p, r)
	r.uses++
	k.used.MoveToBack(r.place)
	return r
}

// show adds a proof. mu is held.
func (k *kept) show(p *proof, r *keptReplica) {
	if old := k.proofs[p.request]; old != nil {
		k.forget(old)
	}
	p.replica, p.place = r, k.shown.PushBack(p)
	r.proofs[p] = struct{}{}
	k.proofs[p.request] = p
	for len(k.proofs) > mostProofs {
		k.forget(k.shown.Front().Value.(*proof))
	}
}

// forget drops a proof. mu is held.
func (k *kept) forget(p *proof) {
	k.shown.Remove(p.place)
	delete(k.proofs, p.request)
	delete(p.replica.proofs, p)
}

// drop lets go of a replica. mu is held.
func (k *kept) drop(r *keptReplica) {
	if r.place == nil {
		return
	}
	k.used.Remove(r.place)
	r.place = nil
	r.state.Store(changed) // from here on nobody would tell
	delete(k.replicas, r.Info.ID)
	for p := range r.proofs {
		k.forget(p)
	}
	if r.uses--; r.uses == 0 {
		r.end()
	}
}

// end closes a replica that nobody reads any more.
func (r *keptReplica) end() {
	r.sums.forget()
	_ = r.Close() // it was only read
}

// changing lets go of a replica that is about to change. Reads that have not ended know.
func (k *kept) changing(id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.replicas[id]; r != nil {
		k.drop(r)
	}
}

// close lets go of all. Reads that are under way end first.
func (k *kept) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for _, r := range k.replicas {
		k.drop(r)
	}
}

// count tells how many replicas are open.
func (k *kept) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.replicas)
}

// readNow fills data and sums, as [store.Reader.Read] does, if that takes no disk and the
// replica does not change meanwhile.
func (r *keptReplica) readNow(data, sums []byte, off int64) bool {
	if !r.direct || !r.at(r.files.Data, data, off) {
		return false
	}
	chunk := off / int64(r.Sum.BytesPerChunk)
	full := max(0, min(int64(len(sums)/4), r.Length/int64(r.Sum.BytesPerChunk)-chunk))
	if !r.sumsAt(sums[:4*full], 4*chunk) {
		return false
	}
	if rest := sums[4*full:]; len(rest) > 0 {
		t := r.files.Tail
		rest[0], rest[1], rest[2], rest[3] = byte(t>>24), byte(t>>16), byte(t>>8), byte(t)
	}
	return r.state.Load() == unchanged
}

func (r *keptReplica) at(fd uintptr, b []byte, off int64) bool {
	return len(b) == 0 || readAtOnce(fd, b, off, r.files.Memory)
}
