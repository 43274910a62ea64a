package shortcircuit

import (
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckPath tells whether somebody else could put a socket of his in the place of the one
// at path, as HDFS's DataNode checks it: each directory above may be written to by root
// and the user uid alone. One that everybody may write to is accepted, unlike in HDFS, if
// its sticky bit keeps what is in it in its owner's hands, and it is not the socket's own.
func CheckPath(path string, uid int) error {
	if !filepath.IsAbs(path) || strings.HasSuffix(path, "/") {
		return fmt.Errorf("domain socket %q: want an absolute path that does not end in a slash", path)
	}
	path = filepath.Clean(path)
	own := filepath.Dir(path)
	for dir := own; ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return fmt.Errorf("domain socket %s: %s: %w", path, dir, err)
		}
		if err := checkDirectory(dir, &st, uid, dir == own); err != nil {
			return fmt.Errorf("domain socket %s: %w; mend that, or choose another path", path, err)
		}
		if dir == "/" {
			return nil
		}
	}
}

func checkDirectory(dir string, st *unix.Stat_t, uid int, own bool) error {
	mode := st.Mode & 0o1777
	sticky := mode&unix.S_ISVTX != 0 && !own
	switch {
	case mode&0o002 != 0 && !sticky:
		return fmt.Errorf("everybody may write to %s (mode %04o)", dir, mode)
	case mode&0o020 != 0 && st.Gid != 0 && !sticky:
		return fmt.Errorf("the group %d may write to %s (mode %04o)", st.Gid, dir, mode)
	case mode&0o200 != 0 && st.Uid != 0 && int(st.Uid) != uid:
		return fmt.Errorf("%s is user %d's, neither root's nor this process's (%d)", dir, st.Uid, uid)
	}
	return nil
}
