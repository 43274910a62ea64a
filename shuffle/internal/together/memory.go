package together

import "fmt"

// Overhead is what a process takes beside what Divide gives out, in bytes: the program,
// its heap, the runtime's memory for messages.
const Overhead = 45 << 20

// The exchange gets a sixteenth of the memory, but 4 MiB at least and 64 MiB at most.
const (
	exchangeShare               = 16
	LeastExchange, exchangeMost = 4 << 20, 64 << 20
)

// Divide gives a process's memory to the exchange and to the work. least is what the process
// needs in all, and buffers what its threads have beside the work.
func Divide(memory, least, buffers int64, threads int) (exchange, work int64, err error) {
	if memory < least {
		return 0, 0, fmt.Errorf("a process with %d threads needs %d MiB of memory at least, it would have %d MiB: raise --memory, or take fewer --workers", threads, (least+1<<20-1)>>20, memory>>20)
	}
	exchange = min(max(memory/exchangeShare, LeastExchange), exchangeMost)
	return exchange, memory - Overhead - exchange - buffers, nil
}
