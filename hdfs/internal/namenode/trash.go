package namenode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
)

// Clients move what they delete to /user/NAME/.Trash/Current if they are told a trash
// interval. As HDFS's TrashPolicyDefault the NameNode names that directory after the time
// at each checkpoint, and deletes the ones that are older than the interval.
const (
	trashName    = ".Trash"
	trashCurrent = "Current"
	homes        = "/user"
	// A checkpoint's name is the local time, to the second; Hadoop 1's was to the minute.
	trashCheckpoint    = "060102150405"
	trashOldCheckpoint = "0601021504"
	maxCheckpointNames = 1000
)

// checkTrash empties all trash when a checkpoint is due: when the time is a multiple of the
// interval, as in HDFS.
func (nn *NameNode) checkTrash(ctx context.Context) {
	every := nn.cfg.TrashCheckpoint
	if every <= 0 || every > nn.cfg.TrashInterval {
		every = nn.cfg.TrashInterval
	}
	if every <= 0 {
		return
	}
	now := nn.cfg.now()
	due := nn.trashDue
	if due.IsZero() || !now.Before(due) {
		nn.trashDue = time.UnixMilli((now.UnixMilli()/every.Milliseconds() + 1) * every.Milliseconds())
	}
	if due.IsZero() || now.Before(due) {
		return
	}
	for _, home := range nn.children(homes) {
		if ctx.Err() != nil {
			return
		}
		trash := homes + "/" + home + "/" + trashName
		if err := nn.emptyTrash(ctx, trash, now); err != nil {
			nn.log.Warn("namenode: empty the trash", "of", trash, "err", err)
		}
	}
}

// emptyTrash deletes what is too old of one user's trash, and makes a checkpoint of the
// rest.
func (nn *NameNode) emptyTrash(ctx context.Context, trash string, now time.Time) error {
	current := false
	for _, name := range nn.children(trash) {
		if name == trashCurrent {
			current = true
			continue
		}
		at, ok := checkpointTime(name)
		if !ok {
			nn.log.Warn("namenode: what is this in the trash? it stays", "path", trash+"/"+name)
			continue
		}
		if now.Sub(at) <= nn.cfg.TrashInterval {
			continue
		}
		if _, err := nn.change(ctx, &call{}, false, &nspb.Entry{Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: proto.String(trash + "/" + name), Recursive: proto.Bool(true)}}}); err != nil {
			return err
		}
		nn.log.Info("namenode: trash deleted", "path", trash+"/"+name)
	}
	if !current {
		return nil
	}
	base := trash + "/" + now.Format(trashCheckpoint)
	to := base
	for attempt := 1; ; attempt++ {
		_, err := nn.change(ctx, &call{}, false, &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{
			From: proto.String(trash + "/" + trashCurrent), To: &to, Strict: proto.Bool(true),
		}}})
		var refused *exception.Error
		if !errors.As(err, &refused) || refused.Class != exception.FileAlreadyExists {
			return err
		}
		if attempt > maxCheckpointNames {
			return fmt.Errorf("there is no name left for a checkpoint: %w", err)
		}
		to = fmt.Sprintf("%s-%d", base, attempt)
	}
}

// checkpointTime reads the time off a checkpoint's name, which may end in -1, -2, ...
func checkpointTime(name string) (time.Time, bool) {
	name, _, _ = strings.Cut(name, "-")
	for _, layout := range []string{trashCheckpoint, trashOldCheckpoint} {
		if at, err := time.ParseInLocation(layout, name, time.Local); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// children are the names in a directory, none if it is not there.
func (nn *NameNode) children(path string) (names []string) {
	for after, rest := "", 1; rest > 0; {
		var (
			entries []namespace.Entry
			err     error
		)
		nn.read(func(ns *namespace.Namespace) {
			entries, rest, _, err = ns.List(namespace.Caller{Superuser: true}, path, after, nn.cfg.ListLimit, false)
		})
		if err != nil || len(entries) == 0 {
			return names
		}
		for _, e := range entries {
			if after = e.Status.Name; after != "" { // a file is its own only entry, without a name
				names = append(names, after)
			}
		}
	}
	return names
}
