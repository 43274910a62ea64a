package fscmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// snapshotCommands are of file systems that have snapshots.
func snapshotCommands(run runner) []*cobra.Command {
	return []*cobra.Command{{
		Use:   "createSnapshot DIRECTORY [NAME]",
		Short: "Make a snapshot of a directory, where the file system has snapshots",
		Args:  between(1, 2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			name := ""
			if len(args) == 2 {
				name = args[1]
			}
			at, err := s.client.CreateSnapshot(ctx, s.path(args[0]), name)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(s.out, "Created snapshot %s\n", at)
			return err
		}),
	}, {
		Use:   "renameSnapshot DIRECTORY OLD NEW",
		Short: "Give a snapshot another name",
		Args:  between(3, 3),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			err := s.client.RenameSnapshot(ctx, s.path(args[0]), args[1], args[2])
			if err == nil {
				_, err = fmt.Fprintf(s.out, "Renamed snapshot %s to %s under hdfs path %s\n", args[1], args[2], args[0])
			}
			return err
		}),
	}, {
		Use:   "deleteSnapshot DIRECTORY NAME",
		Short: "Remove a snapshot",
		Args:  between(2, 2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			err := s.client.DeleteSnapshot(ctx, s.path(args[0]), args[1])
			if err == nil {
				_, err = fmt.Fprintf(s.out, "Deleted snapshot %s under hdfs path %s\n", args[1], args[0])
			}
			return err
		}),
	}}
}
