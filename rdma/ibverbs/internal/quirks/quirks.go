// Package quirks is what rdma/ibverbs has to know of the drivers of rdma-core: one
// table with a row for each driver, which says what it needs and why. A device's row
// is looked up when the device is opened, and nothing else asks for a driver's name.
//
// It imports nothing, and the binding and the provider above it import it.
package quirks

import (
	"strconv"
	"time"
)

// A CallMode chooses how posts and polls of a device enter the driver. Each tells
// the scheduler less than the one before.
type CallMode uint8

const (
	// CallAuto takes what the driver's row says.
	CallAuto CallMode = iota
	// CallBlocking lets the scheduler know: any driver may be used so.
	CallBlocking
	// CallNonBlockingPoll is CallNonBlocking for polls and CallBlocking for posts:
	// for drivers that ring the kernel when they post.
	CallNonBlockingPoll
	// CallNonBlocking costs about half, and holds up the garbage collector as long as
	// the driver takes. It is for drivers that make no system call, unless something
	// has failed, and take no lock but spin locks.
	CallNonBlocking
)

var callModes = [...]string{"auto", "blocking", "non-blocking poll", "non-blocking"}

func (m CallMode) String() string {
	if int(m) < len(callModes) {
		return callModes[m]
	}
	return "unknown call mode " + strconv.Itoa(int(m))
}

// A Driver is a row of the table. The zero value of every field but Calls asks for
// nothing out of the ordinary.
type Driver struct {
	// Calls is the most that the driver bears of not telling the scheduler.
	Calls CallMode
	// ReceivesStayInside says that posting a receive makes no system call although
	// posting a Send does: CallNonBlockingPoll then covers receives, too.
	ReceivesStayInside bool
	// BriefPosts says that the system call of a small post returns within
	// microseconds, so that the scheduler had better not hear of it: it takes the
	// processor from a thread that is away for 20 us, which wakes another one, and on
	// a host whose processors all spin that costs milliseconds.
	BriefPosts bool

	// Software says that the device is the kernel's: posts are system calls, so it
	// does not bypass the kernel.
	Software bool

	// FirstQueue is the depth of a completion queue that has to be made before
	// everything else in an open device; 0 is none. See the row that has it.
	FirstQueue int

	// EndlessRetryCount is the retry count that the driver takes for no bound; 0 is
	// none. With it, a queue pair whose peer repeats a request for ever is told
	// nothing of its failure, and has to be looked at.
	EndlessRetryCount int

	// ArmsForAll says that a completion queue armed for solicited completions alone is
	// never woken: it has to be armed for all.
	ArmsForAll bool

	// Garbles bounds the sources that the driver may send wrong bytes of.
	Garbles Garbles

	// EmptyReadsAreWrites says that a Read of no bytes ends the connection. A Write of
	// no bytes asks the peer as much.
	EmptyReadsAreWrites bool

	// BorrowsPages says that the driver hands the memory of a request of a page or more
	// to the network without a copy, unless the request is signalled: what is written
	// there before the peer acknowledges it goes out instead.
	BorrowsPages bool

	// OverlooksFirst says that a target may leave in its socket what the initiator
	// sends first, until more comes. Both ends do something about it.
	OverlooksFirst bool

	// ConnectsInCall says that rdma_connect makes the TCP connection before it returns
	// and does not bear to be interrupted by a signal.
	ConnectsInCall bool
}

// Garbles are sources that a driver may send wrong bytes of: those of one entry, of
// up to Length bytes, that cross a page of Page bytes. Two entries, or for a Read two
// Reads, are sent rightly. A Length of 0 is none.
type Garbles struct{ Length, Page int }

// Cut is after how many bytes a source of length bytes at an address has to be cut
// in two, so that neither part crosses a page; 0 is nowhere.
func (g Garbles) Cut(address uint64, length int) int {
	if g.Length == 0 || length > g.Length {
		return 0
	}
	first := g.Page - int(address%uint64(g.Page))
	if first >= length {
		return 0
	}
	return first
}

// Nudges are the times after a connect at which an initiator sends a Write of
// nothing, where a target overlooks what comes first. The second is for a target
// whose processor was away for long.
var Nudges = [...]time.Duration{50 * time.Millisecond, time.Second}

// SendDepth is how deep a send queue the driver has to make for depth requests of
// the application, and how many entries each request needs for entries of it.
func (d *Driver) SendDepth(depth, entries int) (places, each int) {
	if d.Garbles.Length > 0 {
		depth, entries = 2*depth, max(2, entries)
	}
	if d.OverlooksFirst {
		depth += len(Nudges)
	}
	return depth, entries
}

// MaxQueueDepth is the most requests that the application may have on a send queue
// of most places: it undoes SendDepth.
func (d *Driver) MaxQueueDepth(most int) int {
	if d.OverlooksFirst {
		most -= len(Nudges)
	}
	if d.Garbles.Length > 0 {
		most /= 2
	}
	return most
}
