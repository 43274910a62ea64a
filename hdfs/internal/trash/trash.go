// Package trash names what is in a user's trash as Hadoop's TrashPolicyDefault does. Clients
// put there what they remove, and clients and the NameNode set it aside in checkpoints.
package trash

import (
	"fmt"
	"strings"
	"time"
)

const (
	// Name is the trash in a home directory.
	Name = ".Trash"
	// Current is the directory in it for what is removed now, until it is set aside.
	Current = "Current"
	// MostCheckpoints is how many checkpoints of one second there may be, beside the first.
	MostCheckpoints = 1000
)

// A checkpoint's name is the local time, to the second; Hadoop 1's was to the minute.
const (
	layout    = "060102150405"
	oldLayout = "0601021504"
)

// Checkpoint is the name of a checkpoint. attempt counts those of the same second: 0 for the
// first one.
func Checkpoint(at time.Time, attempt int) string {
	name := at.Format(layout)
	if attempt > 0 {
		name = fmt.Sprintf("%s-%d", name, attempt)
	}
	return name
}

// Time reads the time off a checkpoint's name. What has another name is no checkpoint.
func Time(name string) (at time.Time, ok bool) {
	name, _, _ = strings.Cut(name, "-")
	for _, l := range []string{layout, oldLayout} {
		if at, err := time.ParseInLocation(l, name, time.Local); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}
