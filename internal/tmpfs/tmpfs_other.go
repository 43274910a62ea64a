//go:build !linux

package tmpfs

import "errors"

// Holds reports false: there is no tmpfs.
func Holds(string) bool { return false }

// SmallPages reports false: there is no tmpfs.
func SmallPages(string) (mount string, small bool) { return "", false }

// Enlarge fails: there are no large pages.
func Enlarge(int, int64) error { return errors.ErrUnsupported }
