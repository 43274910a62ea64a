package perf

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/verbena-data/verbena"
)

// What a plan may ask for.
var (
	levels = []string{LevelVerbs, LevelRuntime, LevelRPC}
	tests  = []string{TestSend, TestWrite, TestRead, TestAtomic, TestCall, TestStream}
	modes  = []string{ModeLatency, ModeBandwidth, ModeRate}
	waits  = []string{WaitSpin, WaitAdaptive, WaitEvent}
)

const (
	LevelVerbs   = "verbs"   // queue pairs of a provider
	LevelRuntime = "runtime" // endpoints
	LevelRPC     = "rpc"     // Hadoop RPC: on endpoints, and over tcp as foreign clients speak it

	TestSend   = "send"
	TestWrite  = "write"
	TestRead   = "read"
	TestAtomic = "atomic"
	TestCall   = "call"   // and its answer, at the levels runtime and rpc
	TestStream = "stream" // of a call, at level runtime

	ModeLatency   = "lat"
	ModeBandwidth = "bw"
	ModeRate      = "rate"

	WaitSpin     = "spin"
	WaitAdaptive = "adaptive"
	WaitEvent    = "event"
)

// Bounds of a plan. Anybody may ask a server, which must not give away all its memory.
const (
	maxSize        = 1 << 30
	maxConnections = 4096
	maxPosters     = 1024
	maxWindow      = 1 << 14
	maxMemory      = 4 << 30 // of one end
	maxCall        = 64 << 20
	atomicSize     = 8
)

// A Plan is what both ends of a measurement agree on. The zero value of a
// number stands for a default that [Plan.resolve] fills in. Sizes are in bytes.
type Plan struct {
	Level     string `json:"level"`
	Transport string `json:"transport"`
	Test      string `json:"test"`
	Mode      string `json:"mode"`
	Wait      string `json:"wait"`
	Size      int    `json:"size"`

	Connections int `json:"connections"`
	Posters     int `json:"posters"`  // goroutines that post
	Window      int `json:"window"`   // requests of a poster outstanding on a connection
	Receives    int `json:"receives"` // posted on a connection
	Buffers     int `json:"buffers"`  // that the receives of a connection rotate over
	Signal      int `json:"signal"`   // one request in so many asks for a completion
	Batch       int `json:"batch"`    // requests of one post
	Inline      int `json:"inline"`   // the longest message that is posted inline

	// Credits says that the receiver tells the sender how many receives it has posted,
	// because the device does not make a Send wait for one.
	Credits bool `json:"credits"`
	// Polled says that the target of a Write polls its last byte; otherwise a
	// Send follows each Write.
	Polled bool `json:"polled"`
	// ReadPayload makes the sender write a byte in every cache line of each message,
	// and the receiver read a word of every line.
	ReadPayload bool `json:"read_payload"`
	// RepostFirst makes an end post its receive again before it answers, as perftest
	// does, and not after.
	RepostFirst bool `json:"repost_first"`
	// SharedReceives makes the connections of each completion queue receive by one
	// shared receive queue, at both ends. Servers of before know nothing of it.
	SharedReceives bool `json:"shared_receives,omitempty"`
	// Verify makes the receiver check every byte.
	Verify bool `json:"verify"`
}

// limits are what a device lets a plan ask for.
type limits struct {
	depth    int // of a queue
	inline   int
	notReady bool // a Send waits for a receive
	polled   bool
}

// resolve fills in the defaults for what a device can do.
func (p *Plan) resolve(l limits) {
	set(&p.Connections, 1)
	set(&p.Posters, 1)
	if p.Test == TestAtomic {
		p.Size = atomicSize
	}
	p.Credits = p.Test == TestSend && p.Mode != ModeLatency && !l.notReady
	p.Polled = p.Test == TestWrite && p.Mode == ModeLatency && l.polled && !p.Verify
	if p.Inline < 0 {
		p.Inline = min(l.inline, 256)
	}
	if p.Test == TestRead || p.Test == TestAtomic {
		p.Inline = 0
	}
	if p.Mode == ModeLatency {
		p.Window = 1
		set(&p.Signal, 1)
		set(&p.Receives, 16)
		p.Batch = 1
	} else {
		// Enough to keep both ends busy, and few enough to stay in the caches.
		set(&p.Window, min(max(1<<20/max(p.Size, 1), 8), 256))
		set(&p.Signal, max(min(64, p.Window/2), 1))
		set(&p.Receives, max(2*p.Window, 16))
		if p.Mode == ModeRate {
			set(&p.Batch, max(min(16, p.Window/4), 1))
		}
		set(&p.Batch, 1)
	}
	if l.depth > 0 {
		// One more place is for the empty last message and its answer.
		p.Window = max(min(p.Window, l.depth/max(p.sharers(), 1)-2), 1)
		p.Receives = max(min(p.Receives, l.depth-2), 1)
	}
	p.Signal = max(min(p.Signal, p.Window), 1)
	p.Batch = max(min(p.Batch, p.Window), 1)
	switch {
	case p.Verify:
		p.Window = max(min(p.Window, 16, (64<<20)/max(p.Size, 1)), 1)
		p.Receives = max(min(p.Receives, 2*p.Window), 4)
		p.Buffers = max(p.Receives, p.Window)
		p.Batch, p.Signal = min(p.Batch, p.Window), 1
	case p.ReadPayload:
		set(&p.Buffers, max(min(p.Receives, 16<<20/max(p.Size, 1)), 1))
	default:
		set(&p.Buffers, max(min(p.Receives, 4, 16<<20/max(p.Size, 1)), 1))
	}
}

// sleepsForMessages tells whether the ends of a ping-pong sleep until a message comes.
func (p *Plan) sleepsForMessages() bool {
	return p.Mode == ModeLatency && p.Wait != WaitSpin && (p.Test == TestSend || p.Test == TestWrite && !p.Polled)
}

// roundTrips tells whether what is recorded is there and back.
func (p *Plan) roundTrips() bool {
	return p.Mode == ModeLatency && (p.Test == TestSend || p.Test == TestWrite || p.Test == TestCall)
}

// onCalls tells whether the endpoints are for the runtime's calls.
func (p *Plan) onCalls() bool {
	return p.Level == LevelRuntime && (p.Test == TestCall || p.Test == TestStream)
}

// sharers is how many posters share a connection.
func (p *Plan) sharers() int { return (p.Posters + p.lanes() - 1) / p.lanes() }

// lanes is how many completion queues an end has: one for each poster that has
// connections of its own.
func (p *Plan) lanes() int { return max(min(p.Posters, p.Connections), 1) }

// check tells what is wrong with a plan that has been resolved, whoever sent it.
func (p *Plan) check() error {
	var errs []error
	oneOf := func(what, value string, of []string) {
		if !slices.Contains(of, value) {
			errs = append(errs, fmt.Errorf("%s %q is not one of %s", what, value, strings.Join(of, ", ")))
		}
	}
	between := func(what string, value, least, most int) {
		if value < least || value > most {
			errs = append(errs, fmt.Errorf("%s %d is not between %d and %d", what, value, least, most))
		}
	}
	oneOf("level", p.Level, levels)
	oneOf("test", p.Test, tests)
	oneOf("mode", p.Mode, modes)
	oneOf("wait", p.Wait, waits)
	if n := len(p.Transport); n == 0 || n > 32 {
		errs = append(errs, fmt.Errorf("transport %.40q is no name of a transport", p.Transport))
	}
	between("size", p.Size, 1, maxSize)
	between("connections", p.Connections, 1, maxConnections)
	between("posters", p.Posters, 1, maxPosters)
	between("window", p.Window, 1, maxWindow)
	between("receives", p.Receives, 1, 2*maxWindow)
	between("buffers", p.Buffers, 1, max(p.Receives, p.Window, 1))
	between("signal", p.Signal, 1, max(p.Window, 1))
	between("batch", p.Batch, 1, max(p.Window, 1))
	if p.Mode == ModeLatency {
		between("window of a ping-pong", p.Window, 1, 1)
	}
	between("inline", p.Inline, 0, 1<<16)
	if len(errs) > 0 {
		return fmt.Errorf("perf: plan: %w", errors.Join(errs...))
	}
	switch {
	case p.Level == LevelRuntime && p.Test != TestSend && !p.onCalls():
		errs = append(errs, fmt.Errorf("endpoints carry messages: at level %s the test is %s, %s or %s", LevelRuntime, TestSend, TestCall, TestStream))
	case p.Test == TestStream && (p.Level != LevelRuntime || p.Mode == ModeLatency):
		errs = append(errs, fmt.Errorf("streams are measured at level %s in mode %s or %s", LevelRuntime, ModeBandwidth, ModeRate))
	case p.Test == TestCall && (p.Level == LevelVerbs || p.Mode != ModeLatency):
		errs = append(errs, fmt.Errorf("calls are measured at the levels %s and %s in mode %s; more --posters make more calls at a time", LevelRuntime, LevelRPC, ModeLatency))
	case p.Level == LevelRPC && p.Test != TestCall:
		errs = append(errs, fmt.Errorf("level %s makes calls of Hadoop RPC: there the test is %s", LevelRPC, TestCall))
	case p.Level == LevelRPC && p.Size > maxCall:
		errs = append(errs, fmt.Errorf("calls of Hadoop RPC have at most %d MiB", maxCall>>20))
	case (p.Test == TestCall || p.Test == TestStream) && (p.Verify || p.ReadPayload):
		errs = append(errs, errors.New("a measurement of calls or streams does not look at their payload"))
	case p.Level == LevelVerbs && p.Transport == verbena.TransportTCP:
		errs = append(errs, errors.New("plain TCP has no verbs: use --level runtime, or another --transport"))
	case p.Mode == ModeLatency && p.Posters > p.Connections && p.Test != TestCall:
		errs = append(errs, fmt.Errorf("in mode %s each poster needs a connection of its own: %d posters, %d connections", ModeLatency, p.Posters, p.Connections))
	case p.SharedReceives && p.Level != LevelVerbs:
		errs = append(errs, fmt.Errorf("shared receives are measured at level %s: endpoints have their own way with receives", LevelVerbs))
	case p.SharedReceives && p.Verify && p.Connections > p.Posters:
		errs = append(errs, errors.New("with shared receives a verifying run needs a poster for each connection"))
	case p.Test == TestAtomic && p.Size != atomicSize:
		errs = append(errs, fmt.Errorf("atomics are of %d bytes", atomicSize))
	case !p.RepostFirst && p.Receives < 2 && p.Mode == ModeLatency:
		errs = append(errs, errors.New("with one receive an answer may find none: use more --receives, or --repost-first"))
	case p.Verify && p.Posters > p.Connections:
		errs = append(errs, errors.New("a verifying run needs a connection for each poster"))
	}
	if n := p.memory(); n > maxMemory {
		errs = append(errs, fmt.Errorf("%d connections with %d buffers of %d bytes are %d MiB, at most %d are lent: use fewer connections or --buffers",
			p.Connections, p.Buffers, p.Size, n>>20, int64(maxMemory)>>20))
	}
	if len(errs) > 0 {
		return fmt.Errorf("perf: plan: %w", errors.Join(errs...))
	}
	return nil
}

// memory is what one end registers, in bytes.
func (p *Plan) memory() int64 { return int64(newLayout(p).connection) * int64(p.Connections) }

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Amount says how much the client measures: a number of messages, or for how long.
type Amount struct {
	Iterations int           // 0: as many as fit into Duration
	Duration   time.Duration // how long, if Iterations is 0
	Warmup     int           // messages before, which do not count: at most 256 MiB of them, but at least 4
	// Half has the first half of the messages, or of the time, warm up in place of Warmup.
	Half  bool
	Pause time.Duration // before each call
}

// split divides the amount, of messages of size bytes by so many recorders, into what warms
// up, what does so once more behind the pause in which the ends agree to begin, and what is
// measured. What warms up may be nothing.
func (a Amount) split(size, recorders int) (first, again, rest Amount) {
	if !a.Half {
		// Caches and pages are warm after fewer messages if those are long.
		first.Iterations = min(a.Warmup, max(256<<20/size, 4))
		again.Iterations = min(first.Iterations, 64*recorders)
		return first, again, a
	}
	first, again, rest = a, a, a
	if half := a.Iterations / 2; a.Iterations > 0 {
		again.Iterations = min(half/2, 64*recorders)
		first.Iterations = half - again.Iterations
		rest.Iterations -= half
		first.Duration, again.Duration = 0, 0
	} else {
		again.Duration = a.Duration / 40
		first.Duration = a.Duration/2 - again.Duration
		rest.Duration -= a.Duration / 2
	}
	return first, again, rest
}

// nothing tells that no message is asked for.
func (a Amount) nothing() bool { return a.Iterations <= 0 && a.Duration <= 0 }
