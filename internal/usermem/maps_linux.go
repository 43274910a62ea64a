package usermem

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
)

// look asks the kernel. known tells that the memory is not on the Go heap.
func look(start, length uintptr, known bool) (Facts, error) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return Facts{}, fmt.Errorf("what it is cannot be asked: %w", err)
	}
	defer f.Close()
	return judge(f, uint64(start), uint64(start)+uint64(length), known)
}

// judge looks for the memory from start to end in a list as /proc/self/maps has it.
func judge(list io.Reader, start, end uint64, known bool) (Facts, error) {
	facts := Facts{Writable: true}
	at := start
	for lines := bufio.NewScanner(list); at < end && lines.Scan(); {
		var from, to, offset, inode uint64
		var rights, device string
		line := lines.Text()
		if _, err := fmt.Sscanf(line, "%x-%x %4s %x %5s %d", &from, &to, &rights, &offset, &device, &inode); err != nil {
			// The number of a device may be longer.
			if _, err := fmt.Sscanf(line, "%x-%x %4s %x %s %d", &from, &to, &rights, &offset, &device, &inode); err != nil {
				continue
			}
		}
		if to <= at || len(rights) != 4 {
			continue
		}
		if from > at {
			break // a gap
		}
		name := nameOf(line)
		switch {
		case strings.HasPrefix(name, "[anon: Go:"), strings.HasPrefix(name, "[stack"):
			return facts, ErrGo
		case rights[0] != 'r', strings.HasPrefix(name, "[v"): // of the kernel's own
			return facts, ErrUnmapped
		case !known && inode == 0 && rights[3] != 's':
			return facts, fmt.Errorf("%w (or it may be: this release of Go does not tell; shared mappings are none)", ErrGo)
		}
		facts.Writable = facts.Writable && rights[1] == 'w'
		if inode != 0 && !lasting(name) {
			facts.File = name
		}
		at = to
	}
	if at < end {
		return facts, ErrUnmapped
	}
	return facts, nil
}

// nameOf is what stands behind the inode number of a line.
func nameOf(line string) string {
	for range 5 {
		_, rest, found := strings.Cut(strings.TrimLeft(line, " "), " ")
		if !found {
			return ""
		}
		line = rest
	}
	return strings.TrimSpace(line)
}

// lasting tells whether what the kernel shows as a file is memory whose size nobody can
// change: shared anonymous memory, and that of System V.
func lasting(name string) bool {
	return name == "/dev/zero (deleted)" || name == "/anon_hugepage (deleted)" || strings.HasPrefix(name, "/SYSV")
}
