// Package flow is the protocol of the streams between two processes as a machine without
// I/O: where in the memory of the receiving process the next block lies, and which memory comes back. It knows no
// memory and no goroutines; whoever uses it has a lock.
//
// A stream goes from a process to a thread of another one. All streams between two processes share a
// [Slab], whose pages they take for their blocks as they need them, and which come back in any order. The
// lowest pages are taken first, so that memory that is in the caches is used again, and that which no load needs is
// never touched. [Out] is the side that fills, [In] the one that receives.
//
// # Why nobody waits for ever
//
// Each stream has one page in reserve, which others cannot take. So one that holds nothing has room for a block
// of a page, whatever the others do; and one that holds something gets it back when it has been
// read. A longer block needs pages in one piece, and for those nobody waits: [Cut] says that there is no such
// piece.
//
// A stream may hold at most twice as many pages as are left to all, beside what is in reserve. So one whose thread
// reads nothing takes at most two thirds, two such take four fifths, and others go on.
package flow

import (
	"errors"
	"fmt"
)

// ErrBreach is wrapped by errors that the peer's messages have caused.
var ErrBreach = errors.New("breach of the protocol")

// Unit is what the sizes of pages are multiples of, in bytes: blocks begin in lines of their own.
const Unit = 64

// LeastPages is how many pages a slab has at least for each stream, beside the spare ones.
const LeastPages = 3

// A Slab is memory for the blocks of several streams: Pages pages of Page bytes. Spare of them are taken only while there
// are blocks of more than Short pages: fewer of those are on their way than of short ones, which should not leave
// the caches.
type Slab struct{ Page, Pages, Streams, Spare, Short int }

// Size is in bytes.
func (s Slab) Size() int { return s.Page * s.Pages }

// mostBytes is how long blocks are at most, unless a page is longer.
const mostBytes = 1 << 20

// Longest is how many bytes a block has at most.
func (s Slab) Longest() int { return max(1, min((s.Pages-s.Spare)/6, mostBytes/s.Page)) * s.Page }

// pages is how many n bytes take.
func (s Slab) pages(n int) int { return (n + s.Page - 1) / s.Page }

// A run is the pages of a block.
type run struct{ stream, pages int }

// Out is the side that fills the slab.
type Out struct {
	slab    Slab
	used    bits
	runs    []run // by first page
	held    []int // pages, by stream
	free    int   // pages that nobody holds and that are no stream's reserve
	waiting []wait
}

// A wait is what a stream waits for.
type wait struct {
	pages int // that the next block needs; 0: nobody waits
	most  int // pages that it may hold when it is woken
}

// NewOut returns the filling side of an empty slab.
func NewOut(s Slab) *Out {
	return &Out{slab: s, used: newBits(s.Pages), runs: make([]run, s.Pages), held: make([]int, s.Streams), free: s.Pages - s.Streams, waiting: make([]wait, s.Streams)}
}

// A Verdict says whether a block can begin.
type Verdict uint8

// Verdicts.
const (
	Begun Verdict = iota
	Full          // not before something is free: the stream is Ready then
	Cut           // there is no such piece: it has to be divided
)

// beside is how many of n pages of a stream are not its reserve.
func beside(n int) int { return max(0, n-1) }

// left is how many pages are left for blocks of n.
func (o *Out) left(n int) int {
	if n > o.slab.Short {
		return o.free
	}
	return max(0, o.free-o.slab.Spare)
}

// may tells whether a stream may take n pages more.
func (o *Out) may(stream, n int) bool {
	held, left := o.held[stream], o.left(n)
	return beside(held+n)-beside(held) <= left && (held+n == 1 || held+n <= 2*left)
}

// Begin begins a block of at least least bytes, with room for want if that can be. It tells where it lies, and
// how long it may become.
func (o *Out) Begin(stream, least, want int) (offset, room int, v Verdict) {
	n := o.slab.pages(least)
	if !o.may(stream, n) {
		if n > 1 && o.held[stream] == 0 {
			return 0, 0, Cut
		}
		o.waiting[stream] = wait{n, o.held[stream] / 2}
		return 0, 0, Full
	}
	most := min(max(n, o.slab.pages(want)), o.slab.Pages)
	for most > n && !o.may(stream, most) {
		most--
	}
	first, length := o.used.find(most)
	if length < n {
		return 0, 0, Cut
	}
	o.take(stream, first, length)
	return first * o.slab.Page, length * o.slab.Page, Begun
}

func (o *Out) take(stream, first, n int) {
	o.used.set(first, n)
	o.runs[first] = run{stream, n}
	o.free -= beside(o.held[stream]+n) - beside(o.held[stream])
	o.held[stream] += n
}

func (o *Out) giveBack(stream, first, n int) {
	o.used.clear(first, n)
	o.free += beside(o.held[stream]) - beside(o.held[stream]-n)
	o.held[stream] -= n
}

// Seal says how long the block at offset has become. Pages behind it are free again.
func (o *Out) Seal(offset, length int) {
	first, n := offset/o.slab.Page, o.slab.pages(length)
	r := &o.runs[first]
	if more := r.pages - n; more > 0 {
		r.pages = n
		o.giveBack(r.stream, first+n, more)
	}
}

// Free says that the peer has freed a block.
func (o *Out) Free(stream, offset, length int) error {
	first, n := offset/o.slab.Page, o.slab.pages(length)
	if offset%o.slab.Page != 0 || first >= o.slab.Pages || n == 0 || o.runs[first] != (run{stream, n}) {
		return fmt.Errorf("%w: %d bytes at %d are said to be free, no block was there", ErrBreach, length, offset)
	}
	o.runs[first] = run{}
	o.giveBack(stream, first, n)
	return nil
}

// Ready tells whether a stream waits whose next block may have room. So that it is not woken for every page, it holds
// half of what it held when it began to wait then, or would not hold more than is left.
func (o *Out) Ready(stream int) bool {
	w := &o.waiting[stream]
	held := o.held[stream]
	return w.pages > 0 && (held == 0 || (held <= w.most || held+w.pages <= o.left(w.pages)) && o.may(stream, w.pages))
}

// In is the side that receives.
type In struct {
	slab Slab
	used bits
	runs []run // by first page
	held int   // pages
}

// NewIn returns the receiving side of an empty slab.
func NewIn(s Slab) *In {
	return &In{slab: s, used: newBits(s.Pages), runs: make([]run, s.Pages)}
}

// Filled says that the peer has filled a block.
func (in *In) Filled(stream, offset, length int) error {
	first, n := offset/in.slab.Page, in.slab.pages(length)
	if stream >= in.slab.Streams || length <= 0 || offset%in.slab.Page != 0 || first+n > in.slab.Pages || !in.used.none(first, n) {
		return fmt.Errorf("%w: a block of %d bytes for thread %d at %d, where is no room", ErrBreach, length, stream, offset)
	}
	in.used.set(first, n)
	in.runs[first] = run{stream, n}
	in.held += n
	return nil
}

// Freed says that the block at offset is not used any more.
func (in *In) Freed(offset int) {
	first := offset / in.slab.Page
	n := in.runs[first].pages
	in.used.clear(first, n)
	in.held -= n
}

// Pressing tells whether the peer may be waiting for room. While less than a quarter, without the spare pages, is in use it does
// not, when its open blocks have gone out: a third at most is in reserve, so that a quarter and more is
// free, twice which is more than what a stream holds with a block of [Slab.Longest].
func (in *In) Pressing() bool { return 4*in.held >= in.slab.Pages-in.slab.Spare }
