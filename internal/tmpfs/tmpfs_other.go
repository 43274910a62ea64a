//go:build !linux

package tmpfs

// Holds reports false: there is no tmpfs.
func Holds(string) bool { return false }

// SmallPages reports false: there is no tmpfs.
func SmallPages(string) (mount string, small bool) { return "", false }
