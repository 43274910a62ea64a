package shuffle

import (
	"os"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// SpillTo makes spill files of another file, until restore.
func SpillTo(path string) (restore func()) {
	before := spillFileIn
	spillFileIn = func(string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR, 0) }
	return func() { spillFileIn = before }
}

// Words of a board, and how many entries it has.
const (
	BoardTail, BoardTaken = wire.BoardTail, wire.BoardTaken
	BoardEntries          = wire.BoardEntries
)

// Forge writes a word of the board that another process reads.
func (x *Exchange) Forge(rank, at int, word uint64) {
	p := x.peers[rank]
	p.sending.Lock()
	defer p.sending.Unlock()
	p.putWord(at, word)
}

// Rests tells whether the process has told its peers that it rests.
func (x *Exchange) Rests() bool { return !x.idle.armed.Load() }

// Resident and Spilt are how many blocks wait for a thread in memory and in its spill file.
func (x *Exchange) Resident(thread int) int {
	r := x.receivers[thread]
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.Len()
}

// Spilt is said beside Resident.
func (x *Exchange) Spilt(thread int) int {
	r := x.receivers[thread]
	r.spilling.Lock()
	defer r.spilling.Unlock()
	return r.spilt.Len()
}

// Ended is closed when the exchange has failed and the peers have been told, or when it is closed.
func (x *Exchange) Ended() <-chan struct{} { return x.ctx.Done() }

// Waiting is how many senders wait for room, or are about to.
func (x *Exchange) Waiting() (n int) {
	for _, s := range x.senders {
		if s.sleeper.asleep.Load() {
			n++
		}
	}
	return n
}

// Favoured tells whether a thread that shares its lane is the lane's favourite. The thread must not be sending.
func (x *Exchange) Favoured(thread int) bool {
	s := x.senders[thread]
	if !s.lane.mu.Enter(&s.user) {
		return false
	}
	s.user.Leave()
	return true
}

// ShareALane tells whether two threads do.
func (x *Exchange) ShareALane(a, b int) bool { return x.senders[a].lane == x.senders[b].lane }

// LateMeeting has an exchange fail, and then meet a process at the other end of an endpoint. It is freed when that is done.
func LateMeeting(c Config, e *verbena.Endpoint, rank int, err error) error {
	if err := c.complete(); err != nil {
		return err
	}
	x := newExchange(c)
	_ = x.fail(cannotJoin(c.Rank, err))
	<-x.ctx.Done() // all that were met have been told
	_ = x.met(x.peers[rank], e)
	return x.free()
}

// HelloOf is what a process without memory for others to fill says.
func HelloOf(c Config) *wire.Hello {
	if err := c.complete(); err != nil {
		panic(err)
	}
	return &wire.Hello{Rank: c.Rank, Size: c.Size, Threads: c.Threads, Lanes: c.lanes, Page: c.page, Pages: c.pages, MaxRecord: int64(c.MaxRecord)}
}

// What a receiver shows and asks for when a part is opened, in bytes, and by how many it shows more.
const (
	ShownAtFirst = recordsAhead - recordsStep
	AskedAtFirst = recordsAhead
	ShownAtOnce  = recordsStep
)

// Uncover is what is shown of a part when n bytes are to be, of which rest was, and what is asked for then.
func Uncover(rest []byte, n int) (shown, ask []byte) { return uncover(rest, n) }

// Depth is how many parts wait for a thread of the same process, if there is no limit of memory.
const Depth = mostDepth

// Choose is how blocks travel over a transport, and why.
func Choose(c Config, transport string) (Mode, string) {
	if c.MostPuts == 0 {
		c.MostPuts = defaultPuts
	}
	chosen := c.choose(transport)
	return chosen.Mode, chosen.Why
}

// Strangers is how many endpoints of none of the exchange may say nothing.
const Strangers = strangers

// SetHelloLimit sets how long an endpoint may say nothing, and returns what sets it back.
func SetHelloLimit(d time.Duration) func() {
	was := helloLimit
	helloLimit = d
	return func() { helloLimit = was }
}
