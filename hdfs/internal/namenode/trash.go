package namenode

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace/nspb"
	"github.com/verbena-data/verbena/hdfs/internal/trash"
)

// Clients move what they delete to /user/NAME/.Trash/Current if they are told a trash
// interval. As HDFS's TrashPolicyDefault the NameNode names that directory after the time
// at each checkpoint, and deletes the ones that are older than the interval.
const homes = "/user"

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
		of := homes + "/" + home + "/" + trash.Name
		if err := nn.emptyTrash(ctx, of, now); err != nil {
			nn.log.Warn("namenode: empty the trash", "of", of, "err", err)
		}
	}
}

// emptyTrash deletes what is too old of one user's trash, and makes a checkpoint of the
// rest.
func (nn *NameNode) emptyTrash(ctx context.Context, of string, now time.Time) error {
	current := false
	for _, name := range nn.children(of) {
		if name == trash.Current {
			current = true
			continue
		}
		at, ok := trash.Time(name)
		if !ok {
			nn.log.Warn("namenode: what is this in the trash? it stays", "path", of+"/"+name)
			continue
		}
		if now.Sub(at) <= nn.cfg.TrashInterval {
			continue
		}
		if _, err := nn.change(ctx, &call{}, false, &nspb.Entry{Op: &nspb.Entry_Delete{Delete: &nspb.Delete{Path: proto.String(of + "/" + name), Recursive: proto.Bool(true)}}}); err != nil {
			return err
		}
		nn.log.Info("namenode: trash deleted", "path", of+"/"+name)
	}
	if !current {
		return nil
	}
	for attempt := 0; ; attempt++ {
		to := of + "/" + trash.Checkpoint(now, attempt)
		_, err := nn.change(ctx, &call{}, false, &nspb.Entry{Op: &nspb.Entry_Rename{Rename: &nspb.Rename{
			From: proto.String(of + "/" + trash.Current), To: &to, Strict: proto.Bool(true),
		}}})
		var refused *exception.Error
		if !errors.As(err, &refused) || refused.Class != exception.FileAlreadyExists {
			return err
		}
		if attempt == trash.MostCheckpoints {
			return fmt.Errorf("there is no name left for a checkpoint: %w", err)
		}
	}
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
