package host

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// WarmMemory writes to so much free memory, at most half of what is available, and gives
// it back. A virtual machine may hand free memory to its host within seconds
// (/sys/module/page_reporting): then who writes to it first waits for the host, which
// makes a program that takes a GiB two or three times slower than the one after it.
func WarmMemory(bytes int64) error {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return err
	}
	var available int64 // KiB
	if _, rest, ok := strings.Cut(string(raw), "MemAvailable:"); ok {
		_, _ = fmt.Sscan(rest, &available) // 0 if it is not told: nothing is done
	}
	n := int(min(bytes, available<<10/2))
	if n <= 0 {
		return nil
	}
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("%d bytes of memory: %w", n, err)
	}
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE) // faster where the kernel has it
	for at := 0; at < n; at += 4096 {
		m[at] = 1
	}
	return unix.Munmap(m)
}
