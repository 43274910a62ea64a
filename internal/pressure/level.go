package pressure

import (
	"fmt"
	"time"
)

// A Level is how short memory is.
type Level int

// Levels: give back what nobody uses and stop growing; and shrink.
const (
	Calm Level = iota
	Tight
	Critical
)

// String is "calm", "tight" or "critical".
func (l Level) String() string {
	switch l {
	case Calm:
		return "calm"
	case Tight:
		return "tight"
	}
	return "critical"
}

const (
	// patience is how long a level must have been lower before it falls.
	patience = 3 * time.Second
	// window is the least time over which stalls are a share of it.
	window = time.Second
	// critical is the part of a cgroup's limit below which what is left is critical.
	critical = 32
)

// judge tells how short memory is, and why. base is a sample of at least a window
// ago, or the zero one; reported says that the kernel has just told of stalls.
func judge(base, now Sample, reported bool) (level Level, why string) {
	worse := func(l Level, format string, args ...any) {
		if l > level {
			level, why = l, fmt.Sprintf(format, args...)
		}
	}
	machineShort := false
	for _, s := range now.Scopes {
		tight, least := int64(8), int64(critical)
		if s.Name == machine {
			machineShort = s.room() < s.Limit/8
			tight, least = 16, 64
		}
		due := ""
		if s.Due > 0 {
			due = fmt.Sprintf(", when %d that are registered have been touched", s.Due)
		}
		switch room := max(s.Limit-s.Used-s.Due, 0); {
		case room < s.Limit/least:
			worse(Critical, "%s: %d of %d bytes are left%s", s.Name, room, s.Limit, due)
		case room < s.Limit/tight:
			worse(Tight, "%s: %d of %d bytes are left%s", s.Name, room, s.Limit, due)
		}
		if s.Used > s.High {
			worse(Tight, "%s: %d bytes in use, above memory.high, which is %d", s.Name, s.Used, s.High)
		}
	}
	if base.At.IsZero() {
		return level, why
	}
	if now.Kills > base.Kills {
		worse(Critical, "the kernel killed a process of the cgroup for want of memory")
	}
	if now.Stalled && base.Stalled && now.Machine == base.Machine && (!now.Machine || machineShort) {
		past := now.At.Sub(base.At)
		some, full := now.Stalls.Some-base.Stalls.Some, now.Stalls.Full-base.Stalls.Full
		switch {
		case past >= window && full >= past/10:
			worse(Critical, "all tasks waited for memory for %v of %v", full.Round(time.Millisecond), past.Round(time.Millisecond))
		case past >= window && some >= past/10:
			worse(Tight, "tasks waited for memory for %v of %v", some.Round(time.Millisecond), past.Round(time.Millisecond))
		case reported:
			worse(Tight, "tasks waited for memory for a tenth of 2s")
		}
	}
	return level, why
}

const machine = "machine"
