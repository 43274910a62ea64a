//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/foreign"
)

// modes says what drivers bear, by rdma-core's source of August 2026. Most only
// write to memory and to the adapter's doorbells, under spin locks, both when they
// post and when they poll (irdma tells the kernel, too, when it posts to a queue
// pair that has failed). The kernel's rxe and siw ring through write(2) when they
// post, and poll a ring that they share with the kernel; cxgb4 asks the kernel to
// ring when the adapter's doorbells are congested.
//
// Two may be held up in a poll, too: bnxt_re waits, and asks the kernel, while the
// adapter's doorbells are congested, and hns moves a queue pair to its error state
// when it finds a completion that says so.
var modes = map[string]CallMode{
	"mlx4": CallNonBlocking, "mlx5": CallNonBlocking, "irdma": CallNonBlocking,
	"mthca": CallNonBlocking, "ocrdma": CallNonBlocking, "qedr": CallNonBlocking,
	"erdma": CallNonBlocking, "mana": CallNonBlocking, "ionic": CallNonBlocking,
	"vmw_pvrdma": CallNonBlocking,
	"rxe":        CallNonBlockingPoll, "siw": CallNonBlockingPoll, "cxgb4": CallNonBlockingPoll,
	"bnxt_re": CallBlocking, "hns": CallBlocking,
}

// unknownMode is how a driver is called that is not among modes: who posts may
// wait in the kernel, but a poll waits for nothing, as ibv_poll_cq(3) has it. If it
// makes a system call after all, the collector waits for that, and no more.
const unknownMode = CallNonBlockingPoll

// ringRecvs are drivers whose posted receives only go into a ring, though their
// posts to send queues tell the kernel.
var ringRecvs = map[string]bool{"rxe": true, "siw": true}

// briefPosts are drivers whose posts make a system call that returns within
// microseconds when there is little to send: rxe makes its packets and hands them
// to the interface in it, and waits for nothing. The scheduler had better not hear
// of those. It takes the processor from a thread that is away for 20 us, which wakes
// another one: on a host whose processors all spin, that costs milliseconds.
var briefPosts = map[string]bool{"rxe": true}

// choose finds out the driver and sets how it is called.
func (c *Context) choose(mode CallMode) error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err == nil {
		c.driver = driverAt(maps, c.postSend)
	}
	return c.chooseFor(mode)
}

func (c *Context) chooseFor(mode CallMode) error {
	most, known := modes[c.driver]
	switch {
	case mode == CallAuto && known:
		mode = most
	case mode == CallAuto:
		mode = unknownMode
	case known && mode > most:
		return fmt.Errorf("verbs: %s: the driver %s may make system calls and can't be called in the mode %q, only %q", c.name, c.driver, mode, most)
	}
	c.setMode(mode)
	if mode == CallNonBlockingPoll {
		if briefPosts[c.driver] {
			c.briefPosts = foreign.NonBlocking
		}
		if ringRecvs[c.driver] {
			c.recvs = foreign.NonBlocking
		}
	}
	return nil
}

// driverAt is the driver whose library holds the code at address, by the
// process's memory maps: the file is called librxe-rdmav34.so or libmlx5.so.1.
func driverAt(maps []byte, address uintptr) string {
	for scan := bufio.NewScanner(bytes.NewReader(maps)); scan.Scan(); {
		var from, to uintptr
		if n, _ := fmt.Sscanf(scan.Text(), "%x-%x ", &from, &to); n != 2 || address < from || address >= to {
			continue
		}
		fields := strings.Fields(scan.Text())
		if len(fields) < 6 {
			return ""
		}
		base, ok := strings.CutPrefix(filepath.Base(fields[5]), "lib")
		if !ok {
			return ""
		}
		base, _, _ = strings.Cut(base, ".so")
		base, _, _ = strings.Cut(base, "-rdmav")
		return base
	}
	return ""
}
