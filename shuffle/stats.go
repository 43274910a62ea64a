package shuffle

import (
	"slices"
	"sync/atomic"
	"time"
)

// Stats are the numbers of an exchange in this process, from its beginning. Those of a
// record that is being sent come when its part is complete. Bytes are those of records
// with their lengths.
type Stats struct {
	// Sent and Received are what this process's threads have sent and received; Local is
	// the part of Sent that went to threads of this process.
	Sent, Received, Local StreamStats
	// Stalls is how often senders waited for room, and Stalled for how long, all together.
	Stalls  uint64
	Stalled time.Duration
	// Waits is how often receivers waited for blocks, and Waited for how long.
	Waits  uint64
	Waited time.Duration
	// Messages is how many messages went to other processes; to those on the same host, how
	// often something was left in their memory.
	Messages uint64
	// Spilt is how many bytes were written to the spill directory.
	Spilt uint64
	// Memory is how many bytes this process has for records on their way at the moment, and
	// Registered how many of those peers write to or a device reads from.
	Memory, Registered int64
	// Part is how many bytes a thread collects for a partition, and Slab how many the
	// streams from another process share.
	Part, Slab int
	// Ways are how blocks travel to the peers that have been met.
	Ways []Way
}

// A Way is how blocks travel to some peers.
type Way struct {
	Transport string `json:"transport"`
	Mode      Mode   `json:"mode"` // OneSided or TwoSided
	Why       string `json:"why"`  // it was chosen
	Peers     int    `json:"peers"`
}

// StreamStats are numbers of streams.
type StreamStats struct{ Records, Bytes, Parts uint64 }

type streamCounters struct{ records, bytes, parts atomic.Uint64 }

func (c *streamCounters) add(records, bytes uint64) {
	c.records.Add(records)
	c.bytes.Add(bytes)
	c.parts.Add(1)
}

func (c *streamCounters) addTo(s *StreamStats) {
	s.Records += c.records.Load()
	s.Bytes += c.bytes.Load()
	s.Parts += c.parts.Load()
}

// waits counts waits.
type waits struct{ count, nanoseconds atomic.Uint64 }

func (w *waits) add(d time.Duration) {
	w.count.Add(1)
	w.nanoseconds.Add(uint64(d))
}

type senderStats struct {
	all, local streamCounters
	stalls     waits
}

func (s *senderStats) add(records, bytes uint64, local bool) {
	s.all.add(records, bytes)
	if local {
		s.local.add(records, bytes)
	}
}

type receiverStats struct {
	all   streamCounters
	waits waits
}

// Stats returns the numbers at this moment. It may be called at any time, also after Close.
func (x *Exchange) Stats() Stats {
	s := Stats{Part: x.c.part, Slab: x.c.slab().Size(), Memory: x.blocks.bytes() + x.mapped.bytes(), Registered: x.registered.Load()}
	for _, sender := range x.senders {
		sender.stats.all.addTo(&s.Sent)
		sender.stats.local.addTo(&s.Local)
		s.Stalls += sender.stats.stalls.count.Load()
		s.Stalled += time.Duration(sender.stats.stalls.nanoseconds.Load())
	}
	for _, receiver := range x.receivers {
		receiver.stats.all.addTo(&s.Received)
		s.Waits += receiver.stats.waits.count.Load()
		s.Waited += time.Duration(receiver.stats.waits.nanoseconds.Load())
	}
	for _, p := range x.peers {
		s.Messages += p.messages.Load()
	}
	x.modes.Lock()
	s.Ways = slices.Clone(x.ways)
	x.modes.Unlock()
	if x.spill != nil {
		s.Spilt = x.spill.bytes.Load()
	}
	return s
}
