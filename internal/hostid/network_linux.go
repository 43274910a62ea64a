package hostid

import (
	"fmt"
	"os"
	"syscall"
)

// namespace identifies the network namespace of this process.
func namespace() string {
	info, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}
