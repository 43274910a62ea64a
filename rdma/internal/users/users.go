// Package users decides whose processes of this host a provider serves: those of
// its own user, and of users that are named. The kernel translates a peer's user
// into this process's user namespace. It shows each user that the namespace does
// not map as one and the same, the overflow user (65534 unless a sysctl says
// otherwise), so that this number stands for many.
//
// Providers import it; it imports nothing of the module.
package users

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Users are those that a process serves.
type Users struct {
	own      uint32
	overflow uint32
	whole    bool // the namespace maps every user, so that the overflow user is one as any other
	allowed  []uint32
}

// Served are the user of this process and those that are allowed.
func Served(allowed []uint32) Users {
	return Users{own: uint32(os.Geteuid()), overflow: overflowUser(), whole: mapsEveryUser(), allowed: allowed}
}

// Foreign tells whether a peer is, or may be, of another user.
func (u Users) Foreign(peer uint32) bool {
	return peer != u.own || peer == u.overflow && !u.whole
}

// Admits tells whether a peer may connect.
func (u Users) Admits(peer uint32) bool { return !u.Foreign(peer) || slices.Contains(u.allowed, peer) }

// Why tells this side why a peer is not admitted.
func (u Users) Why(peer uint32) string {
	switch {
	case peer == u.overflow && u.own != u.overflow:
		return fmt.Sprintf("this process is of user %d, and user %d stands for every user that this user namespace does not map", u.own, peer)
	case peer == u.overflow:
		return fmt.Sprintf("user %d stands for every user that this user namespace does not map, so the peer need not be of this process's user", peer)
	}
	return fmt.Sprintf("this process is of user %d", u.own)
}

// overflowUser is what the kernel calls users without a number in this namespace.
var overflowUser = sync.OnceValue(func() uint32 {
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	if err == nil {
		if uid, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
			return uint32(uid)
		}
	}
	return 65534
})

// mapsEveryUser tells whether this process's user namespace has a number for
// every user, as the host's own one has. Where that can't be found out, it has not.
var mapsEveryUser = sync.OnceValue(func() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && mapIsWhole(string(text))
})

// mapIsWhole tells whether the ranges of a uid_map have all users. The number
// 2^32-1 is no user.
func mapIsWhole(text string) bool {
	const everyUser = 1<<32 - 1
	mapped := uint64(0)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return false
		}
		count, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return false
		}
		mapped += count
	}
	return mapped == everyUser
}
