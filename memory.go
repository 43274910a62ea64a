package verbena

import (
	"time"

	"github.com/verbena-data/verbena/internal/pressure"
	"github.com/verbena-data/verbena/internal/slab"
)

// MemoryStats tell how short of memory the process is: see [Config].IgnorePressure.
type MemoryStats struct {
	// Pressure is "calm", "tight" or "critical", and Why tells what is short. A
	// runtime that ignores it shows it all the same.
	Pressure, Why string
	// Limit in bytes is the least of the machine's memory and the limits of the
	// process's cgroup and those around it, 0 if none is known. LimitOf names the
	// cgroup's directory, or "machine". Used is the use there, by everybody, and
	// Room the least that is left of a limit when this process has touched all the
	// memory that it has registered.
	Limit, Used, Room int64
	LimitOf           string
	// Stalled is how long tasks of the cgroup, or of the machine if the cgroup does
	// not tell, have waited for memory since its beginning.
	Stalled time.Duration
}

// memoryStats looks, unless somebody has within a second.
func memoryStats() MemoryStats {
	r := pressure.Process().Now()
	return MemoryStats{
		Pressure: r.Level.String(), Why: r.Why,
		Limit: r.Limit, Used: r.Used, Room: r.Room, LimitOf: r.LimitOf, Stalled: r.Stalls.Some,
	}
}

// leastAllowed is how far pressure shrinks what has a limit.
func leastAllowed(limit int64) int64 { return min(max(limit/64, 4<<20), limit) }

// squeezable is what follows the pressure: pools of registered memory.
type squeezable interface {
	InUse() int64
	Limit() int64
	Squeezed() bool
	Squeeze(allowed int64)
	Relax()
}

// follow makes memory follow a reading: tight, it stays as it is; critical, it
// shrinks to half of what is in use, and further while that lasts.
func follow(r pressure.Reading, memory squeezable) {
	switch {
	case r.Level == pressure.Critical:
		memory.Squeeze(max(memory.InUse()/2, leastAllowed(memory.Limit())))
	case r.Level == pressure.Calm:
		memory.Relax()
	case !memory.Squeezed():
		memory.Squeeze(max(memory.InUse(), leastAllowed(memory.Limit())))
	}
}

// watchMemory lets pools follow the pressure until stop is called.
func watchMemory(exposed *lending, user *registrations, pools ...*slab.Pool) (stop func()) {
	w := pressure.Process()
	for _, p := range pools {
		p.OnTake(w.Take)
		p.OnOverdue(w.HasRoom)
	}
	return w.Subscribe(func(r pressure.Reading) {
		for _, p := range pools {
			follow(r, p)
		}
		if r.Level != pressure.Calm {
			user.relax()
		}
	}, func() (n int64) {
		for _, p := range pools {
			n += p.Registered()
		}
		lent, _ := exposed.inUse()
		own, _ := user.room.inUse()
		return n + lent + own
	})
}
