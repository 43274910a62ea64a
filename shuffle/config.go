package shuffle

import (
	"errors"
	"fmt"
	"log/slog"

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
	// Addresses of the listeners, as dials take them, by rank. This process's own is not
	// used.
	Addresses []string
	// Threads is how many partitions each process receives, and how many of its goroutines
	// send. 0 means 1.
	Threads int
	// Memory bounds the blocks and places of this process, in bytes; half of it is
	// registered memory that peers write to. 0 means 6 MiB, or 28 MiB / 32 for each thread if
	// that is more. Join fails if that is too little for the number of streams. Beside it
	// the runtime has memory for messages.
	Memory int64
	// Transport is that of the endpoints: see [verbena.DialConfig]. Empty: the best one.
	Transport string
	// Mode says how blocks travel. The zero value chooses.
	Mode Mode
	// Spill is a directory for what receiving threads do not take in time. Empty: senders
	// wait.
	Spill string
	// MaxRecord is the longest record in bytes. 0 means 64 MiB.
	MaxRecord int
	// Logger gets what nobody else is told. Default: [slog.Default].
	Logger *slog.Logger

	block, depth int // bytes of a place, and places of a stream
	spare        int // blocks beside those that are being filled, which wait for a place
}

// A Mode says how full blocks travel between processes.
type Mode uint8

// The modes.
const (
	// Auto puts blocks where a device or this process's processor does so, and sends them over TCP.
	Auto Mode = iota
	// OneSided puts blocks into the receiving process's memory and notifies it.
	OneSided
	// TwoSided sends blocks as messages.
	TwoSided
)

func (m Mode) String() string {
	return [...]string{"auto", "one-sided", "two-sided"}[min(m, 2)]
}

const (
	maxName = 40
	// More places keep senders from sleeping, and shorter blocks stay in the caches: with
	// both the processor time is least where they meet.
	mostDepth, leastDepth = 8, 2
	largestBlock          = 8 << 10
	smallBlock            = 2 << 10
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
	if c.Memory == 0 {
		c.Memory = max(6<<20, 28<<20/32*int64(c.Threads))
	}
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

// layOut chooses the size and the number of places.
func (c *Config) layOut() error {
	// As many streams come in, from other processes, as go out.
	remote := int64(c.Threads) * int64(c.Threads) * int64(c.Size-1)
	c.spare = max(4, int(remote/8))
	for c.depth = mostDepth; ; c.depth-- {
		all := int64(c.blocks()) + remote*int64(c.depth)
		block := c.Memory/all/64*64 - 64 // which leaves room for prefixes
		if block >= largestBlock || c.depth <= leastDepth && block >= smallBlock || c.depth == 1 && block >= wire.MinBlock {
			c.block = int(min(block, largestBlock))
			return nil
		}
		if c.depth == 1 {
			return fmt.Errorf("%d bytes of Memory for the streams of %d threads to %d: at least %d are needed, or fewer Threads",
				c.Memory, c.Threads, c.Threads*c.Size, all*(wire.MinBlock+64))
		}
	}
}

// blocks is how many blocks there are at most: each stream has one that is being filled,
// those within the process have one in each place, and some wait.
func (c *Config) blocks() int {
	return c.Threads*c.Threads*(c.Size+c.depth) + c.spare
}

// service is what dials ask for.
func (c *Config) service() string {
	if c.Name == "" {
		return wire.Service
	}
	return wire.Service + "/" + c.Name
}

// shape is that of the streams between two processes.
func (c *Config) shape() flow.Shape {
	return flow.Shape{Senders: c.Threads, Receivers: c.Threads, Depth: c.depth, Block: c.block}
}
