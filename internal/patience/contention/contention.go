// Package contention tells how long threads of this machine have had to wait for a
// processor, by the kernel's account of it (PSI, /proc/pressure/cpu).
//
// So who polls for what others are to bring can tell whether he takes their processor. A look
// costs a system call of some 2 us and allocates nothing. Where the kernel keeps no such
// account, which is so on all systems but Linux, nothing is known.
package contention

import (
	"bytes"
	"math"
	"time"
)

// parse reads the text of a PSI file: for how long some thread has waited, since the machine
// came up.
func parse(b []byte) (waited time.Duration, ok bool) {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	kind, rest, _ := bytes.Cut(line, []byte(" "))
	_, digits, found := bytes.Cut(rest, []byte("total="))
	if string(kind) != "some" || !found || len(digits) == 0 {
		return 0, false
	}
	var us int64
	for _, d := range digits {
		if d < '0' || d > '9' || us > (math.MaxInt64/1000-9)/10 {
			return 0, false
		}
		us = 10*us + int64(d-'0')
	}
	return time.Duration(us) * time.Microsecond, true
}
