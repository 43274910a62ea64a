package shuffle

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/shuffle/internal/flow"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// Config says who takes part in an exchange, and with what memory. Name, Size, Threads,
// Memory, Transport, Mode and MaxRecord must be the same in all processes.
type Config struct {
	// Name tells exchanges of a job apart that may exist at the same time. It is at most 40
	// bytes that can be printed, without blanks.
	Name string
	// Runtime connects the processes, and Listener is one of it, on which the exchange
	// registers its service until Close. Neither is needed with Size 1; both stay the
	// caller's.
	Runtime  *verbena.Runtime
	Listener *verbena.Listener
	// Rank is this process's number, 0 to Size-1. Size 0 means 1.
	Rank, Size int
	// Addresses of the listeners, as dials take them, by rank. Of this process's own only the
	// host is used: it tells how many processes share its processors.
	Addresses []string
	// Threads is how many partitions each process receives, and how many of its goroutines
	// send. 0 means 1.
	Threads int
	// Memory bounds what this process has for records on their way, in bytes: the parts that
	// its threads collect, and a slab for each other process, which the streams from there
	// share. Join fails if it is too little for the number of threads. Beside it the runtime
	// has memory for messages.
	//
	// 0 means parts of 1 to 8 KiB, and slabs of 128 KiB for each thread. All slabs together have
	// 3.5 MiB at least, and at most 5.5 MiB, or 10 MiB if Transport names another one than shm.
	// Over shm each has as much again for long records. Pages of a slab that the load does not
	// need are never touched.
	Memory int64
	// Transport is that of the endpoints: see [verbena.DialConfig]. Empty: the best one.
	Transport string
	// Mode says how blocks travel. The zero value chooses.
	Mode Mode
	// MostPuts is up to which scale Auto puts blocks over an RDMA adapter, and sends them beyond: to how many pieces of this
	// host's memory processes of other hosts would write, one for each of them and each process here. 0 means 256. Less than 0 is an error: Mode TwoSided never puts.
	MostPuts int
	// Spill is a directory for what receiving threads do not take in time. Empty: senders
	// wait.
	Spill string
	// MaxRecord is the longest record in bytes. 0 means 64 MiB.
	MaxRecord int
	// Logger gets what nobody else is told. Default: [slog.Default].
	Logger *slog.Logger

	lanes   int // in which the threads collect
	pending int // bytes of short records that a thread keeps back from a lane that it shares
	part    int // bytes of what a lane collects for a partition
	depth   int // parts of a lane that wait for a thread of the same process
	page    int // bytes, of a slab
	pages   int // of one
	spare   int // of those, for long records
	full    int // bytes for which a block begins
	prompt  int // bytes of blocks that a peer is told of at once
}

const (
	maxName = 40
	// Slabs are as small as they can be without that senders wait for receivers that would read: what has left the
	// caches costs more than a wait. Over a network more is on its way.
	shareOfStream                  = 128 << 10
	leastSlabs, allSlabs, farSlabs = 7 << 19, 11 << 19, 10 << 20
	// As many threads as this have a lane each.
	privateLanes = 4
	// What lanes collect for all partitions should stay in the second cache, and a part be
	// long enough to be worth the hand-over.
	collected                = 2 << 20
	largestPart, defaultPart = 8 << 10, 1 << 10
	leastPart                = 256
	mostPending              = 4 << 10 // stays in the first cache
	mostDepth, leastDepth    = 16, 2
	largestBlock             = 32 << 10
)

func (c *Config) complete() error {
	set := func(v *int, otherwise int) {
		if *v == 0 {
			*v = otherwise
		}
	}
	set(&c.Size, 1)
	set(&c.Threads, 1)
	set(&c.MaxRecord, 64<<20)
	set(&c.MostPuts, defaultPuts)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.Size < 1 || c.Size > wire.MaxSize:
		return fmt.Errorf("%d processes, 1 to %d are possible", c.Size, wire.MaxSize)
	case c.Rank < 0 || c.Rank >= c.Size:
		return fmt.Errorf("rank %d of %d processes", c.Rank, c.Size)
	case c.Threads < 1 || c.Threads > wire.MaxThreads:
		return fmt.Errorf("%d threads, 1 to %d are possible", c.Threads, wire.MaxThreads)
	case c.MaxRecord < 1:
		return fmt.Errorf("records of at most %d bytes", c.MaxRecord)
	case c.MostPuts < 0:
		return fmt.Errorf("MostPuts %d: want 0, for the default, or more; TwoSided never puts", c.MostPuts)
	case c.Mode > TwoSided:
		return fmt.Errorf("mode %d", c.Mode)
	case c.Size > 1 && (c.Runtime == nil || c.Listener == nil):
		return errors.New("several processes need a Runtime and a Listener")
	case c.Size > 1 && len(c.Addresses) != c.Size:
		return fmt.Errorf("%d addresses of %d processes", len(c.Addresses), c.Size)
	case len(c.Name) > maxName:
		return fmt.Errorf("a name of %d bytes, at most %d are possible", len(c.Name), maxName)
	}
	return c.layOut()
}

// layOut chooses the sizes of parts, pages and slabs.
func (c *Config) layOut() error {
	if c.lanes = c.Threads; c.Threads > privateLanes {
		c.lanes = max(1, min(c.Threads, runtime.GOMAXPROCS(0)/c.neighbours()))
	}
	c.part = min(max(collected/c.lanes/c.Partitions()/flow.Unit*flow.Unit, defaultPart), largestPart)
	c.depth = mostDepth
	c.paginate()
	peers := c.Size - 1
	if c.Memory == 0 {
		all := allSlabs
		if c.Transport != "" && c.Transport != "shm" {
			all = farSlabs
		}
		bytes := min(c.largeSlab(), all/max(peers, 1))
		for bytes/c.page < flow.LeastPages*c.Threads && c.part > leastPart {
			c.part /= 2
			c.paginate()
		}
		c.pages = max(bytes/c.page, flow.LeastPages*c.Threads)
		if all == allSlabs { // memory that is not used costs nothing there
			c.spare = c.pages
			c.pages += c.spare
		}
		c.Memory = c.parts() + c.slabs()
	} else {
		// The slabs get half of it at least. They count twice: for what comes, and for what goes out.
		most := c.largeSlab()
		fits := func() bool {
			c.paginate()
			if peers > 0 {
				c.pages = max(0, min(most, int(min((c.Memory-c.parts())/int64(2*peers), wire.MaxSlab)))) / c.page
				return c.parts() <= c.Memory/2 && c.pages >= flow.LeastPages*c.Threads
			}
			return c.parts() <= c.Memory
		}
		for !fits() && (c.depth > leastDepth || c.part > leastPart) {
			if c.depth > leastDepth {
				c.depth /= 2
			} else {
				c.part = max(leastPart, c.part/2/flow.Unit*flow.Unit)
			}
		}
		if !fits() {
			c.pages = flow.LeastPages * c.Threads
			return fmt.Errorf("%d bytes of Memory for %d threads that send to %d: at least %d are needed, or fewer Threads",
				c.Memory, c.Threads, c.Partitions(), max(2*c.parts(), c.parts()+c.slabs()))
		}
	}
	c.pending = c.pends()
	c.full = max(c.page, min(largestBlock, c.share()/3, c.slab().Longest()))
	c.prompt = c.slab().Size() / 2
	return nil
}

// paginate makes pages as long as a block for one part.
func (c *Config) paginate() {
	c.page = (c.part + wire.HeaderSize + flow.Unit - 1) / flow.Unit * flow.Unit
}

// slab is what the streams between two processes share.
func (c *Config) slab() flow.Slab {
	return flow.Slab{Page: c.page, Pages: c.pages, Streams: c.Threads, Spare: c.spare, Short: largestBlock/c.page + 1}
}

// largeSlab is how many bytes a slab has if there are few.
func (c *Config) largeSlab() int { return max(c.Threads*shareOfStream, leastSlabs/max(c.Size-1, 1)) }

// slabs is how many bytes all have.
func (c *Config) slabs() int64 { return 2 * int64(c.Size-1) * int64(c.slab().Size()) }

// share is how many bytes of a slab a stream would have if all had the same, without the spare pages.
func (c *Config) share() int { return (c.pages - c.spare) * c.page / c.Threads }

// neighbours is how many processes this one's host has, itself among them.
func (c *Config) neighbours() (n int) {
	host := func(address string) string {
		h, _, _ := net.SplitHostPort(address) // an error shows when it is dialled
		return h
	}
	for _, address := range c.Addresses {
		if host(address) == host(c.Addresses[c.Rank]) {
			n++
		}
	}
	return max(1, n)
}

// Partitions is how many partitions the exchange has: Size times Threads.
func (c *Config) Partitions() int { return max(1, c.Size) * max(1, c.Threads) }

// parts is how many bytes the parts have at most: one that is being filled for each
// partition of each lane, those that wait within the process,
// and one in each thread's hands, with what it keeps back.
func (c *Config) parts() int64 {
	return (int64(c.lanes)*int64(c.Partitions()+c.Threads*c.depth)+int64(c.Threads))*int64(c.part) +
		int64(c.lanes*c.Threads*(c.depth/2)*besideLong) + int64(c.Threads*c.pends())
}

// longPlaces is how many of the parts that wait for a thread of the same process one long record may stand for.
// Two are possible: one is read while the next is put together.
func (c *Config) longPlaces() int { return max(1, c.depth/2) }

// pends is how many bytes of short records each thread keeps back.
func (c *Config) pends() int {
	if c.lanes == c.Threads {
		return 0
	}
	return min(mostPending, 2*c.part)
}

// service is what dials ask for.
func (c *Config) service() string {
	if c.Name == "" {
		return wire.Service
	}
	return wire.Service + "/" + c.Name
}
