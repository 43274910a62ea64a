//go:build !linux

package fscmd

import (
	"io/fs"
	"time"
)

// ownerOf is who owns a local file, and when it was read last; nothing where that is not known.
func ownerOf(fs.FileInfo) (owner, group string, accessed time.Time) { return "", "", time.Time{} }
