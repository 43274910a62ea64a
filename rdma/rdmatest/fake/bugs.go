package fake

import "strings"

// Bugs is a set of deliberate breaches of the model, for testing the tests.
type Bugs uint64

// The bugs.
const (
	// BugBounds lets an access run past the end of its region (and cuts it there).
	BugBounds Bugs = 1 << iota
	// BugBefore lets an access begin before its region.
	BugBefore
	// BugWrap checks address + length after it has wrapped around.
	BugWrap
	// BugForeignDomain honours the keys of all domains.
	BugForeignDomain
	// BugAllReadable, BugAllWritable and BugAllAtomic ignore a missing right.
	BugAllReadable
	BugAllWritable
	BugAllAtomic
	// BugAnyKey takes the region by address alone.
	BugAnyKey
	// BugStaleKey keeps a key after Region.Close, while the memory is given to
	// the next region of that size.
	BugStaleKey
	// BugDirtyMemory gives out memory that is not zeroed.
	BugDirtyMemory
	// BugSequentialKeys counts keys up.
	BugSequentialKeys
	// BugLostCompletion drops a completion now and then.
	BugLostCompletion
	// BugDoubleCompletion adds one twice now and then.
	BugDoubleCompletion
	// BugSwappedCompletions adds two in the wrong order now and then.
	BugSwappedCompletions
	// BugCompletesUnsignaled adds completions that nobody asked for.
	BugCompletesUnsignaled
	// BugLostWakeup raises an event only for one who waits already.
	BugLostWakeup
	// BugWakesUnsolicited ignores what Arm was told.
	BugWakesUnsolicited
	// BugDeafWait ignores the context of Wait.
	BugDeafWait
	// BugDeafConnect ignores the context of Connect.
	BugDeafConnect
	// BugNoFence ignores Fence.
	BugNoFence
	// BugEarlyRead completes a Read before its data is there.
	BugEarlyRead
	// BugEarlySpace gives queue space back before a completion says so.
	BugEarlySpace
	// BugFullFails fails the queue pair that was full.
	BugFullFails
	// BugInvalidFails fails the queue pair that was posted nonsense.
	BugInvalidFails
	// BugNoFlush drops outstanding sends when the queue pair fails.
	BugNoFlush
	// BugNoReceiveFlush drops outstanding receives.
	BugNoReceiveFlush
	// BugFlushBackwards flushes the last request first.
	BugFlushBackwards
	// BugSilentEnd closes no Done and raises no event when a queue pair fails.
	BugSilentEnd
	// BugDisconnectUnseen tells the peer nothing of a Disconnect or Close.
	BugDisconnectUnseen
	// BugInlineReference reads inline data after the post.
	BugInlineReference
	// BugNoImmediate delivers no immediate.
	BugNoImmediate
	// BugCutsMessages cuts a message to the length of its receive.
	BugCutsMessages
	// BugPatientSender waits for a receive without end.
	BugPatientSender
	// BugImpatientSender does not wait for a receive.
	BugImpatientSender
	// BugGap swaps the last two entries of a list.
	BugGap
	// BugNoSwap compares and never swaps.
	BugNoSwap
	// BugSum returns the new value of Fetch-and-add.
	BugSum
	// BugQuietOverrun drops completions of a full queue and says nothing.
	BugQuietOverrun
	// BugNoLimitEvent never raises EventReceiveLimit.
	BugNoLimitEvent
	// BugCutsPrivateData loses the last byte of the answer's private data.
	BugCutsPrivateData
	// BugLeaksGoroutine leaves one behind with every queue pair.
	BugLeaksGoroutine
	// BugAllocates allocates on every post.
	BugAllocates
	// BugStuckClose never returns from Close of a connected queue pair.
	BugStuckClose
	// BugLateWrite carries out Writes after the Sends that follow them.
	BugLateWrite
	// BugPollForgets loses what does not fit when Poll is given little room.
	BugPollForgets
	// BugWrongLength tells the length of the receive, not of the message.
	BugWrongLength
	// BugTakesAfterError takes posts after the queue pair failed.
	BugTakesAfterError
	// BugDeathUnseen tells the peers nothing of Kill.
	BugDeathUnseen
	// BugFlushesShared flushes shared receives with one of their queue pairs.
	BugFlushesShared
	// BugLeaksMemory keeps the memory of closed regions mapped.
	BugLeaksMemory
	// BugEarlyWrite completes a Write before it has read its memory.
	BugEarlyWrite
	// BugUnaligned carries out atomics at any address.
	BugUnaligned
	// BugNoRevocation reports an invalidated key and still honours it.
	BugNoRevocation
	// BugAllRevocable lets peers invalidate keys without the right to it.
	BugAllRevocable
	// BugLosesShared forgets a shared receive with each of its queue pairs.
	BugLosesShared
	// BugDropsWaiting drops a message that would have to wait at the receiver.
	BugDropsWaiting
	// BugSleepsOverClose does not end a Wait when its queue is closed.
	BugSleepsOverClose
	// BugDeafDoorbell carries out nothing when the doorbell is rung.
	BugDeafDoorbell
	bugsEnd
)

var bugNames = [...]string{
	"Bounds",
	"Before",
	"Wrap",
	"ForeignDomain",
	"AllReadable",
	"AllWritable",
	"AllAtomic",
	"AnyKey",
	"StaleKey",
	"DirtyMemory",
	"SequentialKeys",
	"LostCompletion",
	"DoubleCompletion",
	"SwappedCompletions",
	"CompletesUnsignaled",
	"LostWakeup",
	"WakesUnsolicited",
	"DeafWait",
	"DeafConnect",
	"NoFence",
	"EarlyRead",
	"EarlySpace",
	"FullFails",
	"InvalidFails",
	"NoFlush",
	"NoReceiveFlush",
	"FlushBackwards",
	"SilentEnd",
	"DisconnectUnseen",
	"InlineReference",
	"NoImmediate",
	"CutsMessages",
	"PatientSender",
	"ImpatientSender",
	"Gap",
	"NoSwap",
	"Sum",
	"QuietOverrun",
	"NoLimitEvent",
	"CutsPrivateData",
	"LeaksGoroutine",
	"Allocates",
	"StuckClose",
	"LateWrite",
	"PollForgets",
	"WrongLength",
	"TakesAfterError",
	"DeathUnseen",
	"FlushesShared",
	"LeaksMemory",
	"EarlyWrite",
	"Unaligned",
	"NoRevocation",
	"AllRevocable",
	"LosesShared",
	"DropsWaiting",
	"SleepsOverClose",
	"DeafDoorbell",
}

// String names the bugs of the set.
func (b Bugs) String() string {
	var names []string
	for i, name := range bugNames {
		if b&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "+")
}

// AllBugs lists every bug on its own.
func AllBugs() []Bugs {
	var all []Bugs
	for b := Bugs(1); b < bugsEnd; b <<= 1 {
		all = append(all, b)
	}
	return all
}

func (d *Device) has(b Bugs) bool { return d.config.Bugs&b != 0 }
