//go:build unix

package launch

import (
	"io/fs"
	"os"
	"syscall"
)

// owns tells whether a file is this user's.
func owns(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}
