package fscmd

import (
	"io/fs"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

// ownerOf is who owns a local file, and when it was read last.
func ownerOf(info fs.FileInfo) (owner, group string, accessed time.Time) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", "", time.Time{}
	}
	owner, group = strconv.FormatUint(uint64(st.Uid), 10), strconv.FormatUint(uint64(st.Gid), 10)
	if u, err := user.LookupId(owner); err == nil {
		owner = u.Username
	}
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return owner, group, time.Unix(st.Atim.Unix())
}
