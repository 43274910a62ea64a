package verbena

import "runtime"

// Tuning holds the sizes and limits of one transport. Sizes are in bytes.
type Tuning struct {
	// Eager is the longest message that goes into a posted receive buffer of the
	// peer. Longer ones are read by the peer, in chunks, out of this side's memory.
	Eager int
	// Window is how many eager messages may be on their way at first, and
	// MaxWindow how many once a peer has shown that it needs more.
	Window, MaxWindow int
	// Chunk is how much of a long message is offered at a time, and Chunks how
	// many offers of an endpoint may be open.
	Chunk, Chunks int
	// Spin is how long a waiting caller polls, in nanoseconds, before it sleeps.
	// It is the upper limit: a wait that polling did not shorten halves it, and
	// four or so in a row stop polling but for a try now and then. Nobody polls
	// while more programs want to run than there are processors.
	Spin int
}

// tuning is the built-in table. Eager is where copying through a posted buffer
// starts to cost more than an offer, a Read and a confirmation, as far as the
// memory of receives that each connection has posted allows. 48 bytes on top (64 of a chunk) let a layer above add its header to a round size; with
// ours it still fills a slab.
var tuning = map[string]Tuning{
	"":           {Eager: 16<<10 + 48, Window: 8, MaxWindow: 64, Chunk: 512<<10 + 64, Chunks: 4, Spin: 20_000},
	"shm":        {Eager: 32<<10 + 48, Window: 4, MaxWindow: 64, Chunk: 512<<10 + 64, Chunks: 4, Spin: 30_000},
	"iwarp":      {Eager: 32<<10 + 48, Window: 4, MaxWindow: 64, Chunk: 512<<10 + 64, Chunks: 4, Spin: 20_000},
	TransportTCP: {Chunk: 256 << 10}, // fragments; the rest is TCP's own
}

// Bounds of what a configuration may ask for.
const (
	minEager, maxEager   = 256, 256 << 10
	minWindow, maxWindow = 2, 1024
	minChunk, maxChunk   = 4 << 10, 1 << 20
	minChunks, maxChunks = 1, 64
)

func (r *Runtime) tuningFor(transport string) Tuning {
	t, ok := tuning[transport]
	if !ok {
		t = tuning[""]
	}
	if o, ok := r.cfg.Tuning[transport]; ok {
		override(&t.Eager, o.Eager)
		override(&t.Window, o.Window)
		override(&t.MaxWindow, o.MaxWindow)
		override(&t.Chunk, o.Chunk)
		override(&t.Chunks, o.Chunks)
		override(&t.Spin, o.Spin)
	}
	t.Eager = min(max(t.Eager, minEager), maxEager)
	t.Window = min(max(t.Window, minWindow), maxWindow)
	t.MaxWindow = min(max(t.MaxWindow, t.Window), maxWindow)
	t.Chunk = min(max(t.Chunk, minChunk), maxChunk)
	t.Chunks = min(max(t.Chunks, minChunks), maxChunks)
	t.Spin = max(t.Spin, 0)
	return t
}

func override(field *int, value int) {
	if value != 0 {
		*field = value
	}
}

func defaultWorkers() int { return min(max(runtime.GOMAXPROCS(0)/2, 1), 8) }
