package tmpfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A write to tmpfs gets large pages if its mount allows it since Linux 6.14 (acd7ccb284b8, "mm:
// shmem: add large folio support for tmpfs"). Before, it did only where the file was that long already.
const largeMajor, largeMinor = 6, 14

const shmemEnabled = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

// Holds tells whether a directory lies in memory, where no read or write waits for a disk.
func Holds(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC)
}

// SmallPages tells whether the kernel gives the files of a directory in tmpfs pages of 4 KiB
// alone, where it could give writes large ones, and where the file system is mounted.
func SmallPages(dir string) (mount string, small bool) {
	var name unix.Utsname
	if unix.Uname(&name) != nil || !givesLarge(unix.ByteSliceToString(name.Release[:])) {
		return "", false
	}
	enabled, err := os.ReadFile(shmemEnabled)
	if err != nil || strings.Contains(string(enabled), "[deny]") || strings.Contains(string(enabled), "[force]") {
		return "", false // no mount changes anything
	}
	mount, huge := mountOf(dir)
	return mount, mount != "" && huge != "always" && huge != "within_size"
}

// mountOf tells where the tmpfs of a directory is mounted, empty if it lies in none, and the
// mount's option huge, empty if it has none: never.
func mountOf(dir string) (mount, huge string) {
	var st unix.Stat_t
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || unix.Stat(dir, &st) != nil {
		return "", ""
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", ""
	}
	return mounted(string(mounts), fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)), dir)
}

// mounted is mountOf by the text of proc_pid_mountinfo(5).
func mounted(mounts, device, dir string) (mount, huge string) {
	for line := range strings.Lines(mounts) {
		front, back, _ := strings.Cut(line, " - ")
		at, of := strings.Fields(front), strings.Fields(back)
		if len(at) < 6 || len(of) < 3 || at[2] != device || of[0] != "tmpfs" {
			continue
		}
		point := unescaped.Replace(at[4])
		if rest, in := strings.CutPrefix(dir, strings.TrimSuffix(point, "/")); !in || rest != "" && rest[0] != '/' || len(point) < len(mount) {
			continue
		}
		mount, huge = point, ""
		for option := range strings.SplitSeq(of[2], ",") {
			if value, found := strings.CutPrefix(option, "huge="); found {
				huge = value
			}
		}
	}
	return mount, huge
}

// unescaped undoes what mountinfo does to paths.
var unescaped = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// givesLarge tells whether a release of Linux gives writes to tmpfs large pages.
func givesLarge(release string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major > largeMajor || major == largeMajor && minor >= largeMinor
}
