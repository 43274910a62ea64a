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
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
)

// choose finds out the driver and sets how it is called.
func (c *Context) choose(mode quirks.CallMode) error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err == nil {
		c.driver = driverAt(maps, c.postSend)
	}
	return c.chooseFor(mode)
}

func (c *Context) chooseFor(mode quirks.CallMode) error {
	row, known := quirks.Of(c.driver)
	switch {
	case mode == quirks.CallAuto:
		mode = row.Calls
	case known && mode > row.Calls:
		return fmt.Errorf("verbs: %s: the driver %s may make system calls and can't be called in the mode %q, only %q", c.name, c.driver, mode, row.Calls)
	}
	c.setMode(mode)
	if mode == quirks.CallNonBlockingPoll {
		if row.BriefPosts {
			c.briefPosts = foreign.NonBlocking
		}
		if row.ReceivesStayInside {
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
