package fscmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

func copyCommand(run runner) *cobra.Command {
	p := put{}
	var letters string
	cmd := &cobra.Command{
		Use:   "cp SOURCE... DESTINATION",
		Short: "Copy files, and directories with all that is in them, within the file system",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			keep, err := parseKept(letters)
			if err != nil {
				return err
			}
			sources, target, err := s.destination(ctx, args)
			if err != nil {
				return err
			}
			ctx = p.threads.begin(ctx, s)
			return p.threads.each(ctx, sources, func(name string) error {
				from := s.path(name)
				to := target(path.Base(from))
				if to == from || strings.HasPrefix(to, strings.TrimSuffix(from, "/")+"/") {
					return fmt.Errorf("`%s' to `%s': is a subdirectory of itself", s.shown(from), s.shown(to))
				}
				return s.copyTree(ctx, from, to, &p, keep)
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&p.force, "force", "f", false, "replace files that are there")
	flags.BoolVarP(&p.direct, "direct", "d", false, "write where the file belongs, not under a name of its own first")
	flags.StringVarP(&letters, "preserve", "p", "", "keep times (t), owner and group (o), permissions (p), ACL (a), attributes (x): `LETTERS`; top without any")
	flags.Lookup("preserve").NoOptDefVal = "top"
	p.threads.flags(cmd)
	return cmd
}

// copyTree copies a file, or a directory with what is in it.
func (s *session) copyTree(ctx context.Context, from, to string, p *put, keep kept) error {
	var later afterwards
	p.threads.fail(s.client.Walk(ctx, from, func(at string, info *hdfs.FileInfo, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			p.threads.fail(err)
			return nil
		}
		target := join(to, strings.TrimPrefix(at, from))
		preserve := func() error { return s.preserve(ctx, at, target, info, keep) }
		if !info.IsDir() {
			p.threads.fail(p.threads.copy(ctx, func() error {
				if err := s.copyOne(ctx, at, target, info, p); err != nil {
					return err
				}
				return preserve()
			}))
			return nil
		}
		if err := s.makeDir(ctx, target, 0); err != nil {
			p.threads.fail(err)
			return fs.SkipDir
		}
		later = append(later, preserve)
		return nil
	}))
	return p.threads.finish(later)
}

func (s *session) copyOne(ctx context.Context, from, to string, info *hdfs.FileInfo, p *put) error {
	f, err := s.openFile(ctx, from)
	if err != nil {
		return err
	}
	defer f.Close()
	return p.stream(ctx, s, f, path.Base(from), info.Size(), 0, to)
}

func mergeCommand(run runner) *cobra.Command {
	var newline, skipEmpty bool
	cmd := &cobra.Command{
		Use:   "getmerge PATH... LOCAL",
		Short: "Fetch files, and the files of directories in their order, into one local file",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if len(args) == 1 {
				return nil // of patterns that match nothing, which is told: what is there stays
			}
			local := args[len(args)-1]
			return fillLocal(local, 0o644, func(to io.Writer) error {
				return s.merge(ctx, args[:len(args)-1], to, newline, skipEmpty)
			})
		}),
	}
	cmd.Flags().BoolVar(&newline, "nl", false, "a new line after each file")
	cmd.Flags().BoolVar(&skipEmpty, "skip-empty-file", false, "no new line for empty files")
	return cmd
}

// merge writes files, and the files of directories in their order, one after the other.
func (s *session) merge(ctx context.Context, names []string, to io.Writer, newline, skipEmpty bool) error {
	merge := func(info *hdfs.FileInfo, name string) error {
		if skipEmpty && info.Size() == 0 {
			return nil
		}
		f, err := s.openFile(ctx, name)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := copyFile(to, f); err != nil || !newline {
			return err
		}
		_, err = io.WriteString(to, "\n")
		return err
	}
	for _, name := range names {
		name = s.path(name)
		info, err := s.client.Stat(ctx, name)
		if err != nil {
			return err
		}
		if !info.IsDir() {
			if err := merge(info, name); err != nil {
				return err
			}
			continue
		}
		for info, err := range s.client.List(ctx, name) {
			if err != nil {
				return err
			}
			if info.IsDir() {
				continue
			}
			if err := merge(info, join(name, info.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func emptyFileCommand(run runner) *cobra.Command {
	return &cobra.Command{
		Use:   "touchz PATH...",
		Short: "Make empty files; one that is there must be empty, and is made anew",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				info, err := s.client.Stat(ctx, name)
				switch {
				case errors.Is(err, fs.ErrNotExist):
					return s.create(ctx, name, false)
				case err != nil:
					return err
				case info.IsDir():
					return isNo("touchz", name, syscall.EISDIR)
				case info.Size() > 0:
					return fmt.Errorf("`%s': Not a zero-length file", s.shown(name))
				}
				return s.create(ctx, name, true)
			})
		}),
	}
}

func removeDirCommand(run runner) *cobra.Command {
	var ignore bool
	cmd := &cobra.Command{
		Use:   "rmdir PATH...",
		Short: "Remove empty directories",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				info, err := s.client.Stat(ctx, name)
				if err != nil {
					return err
				}
				if !info.IsDir() {
					return &fs.PathError{Op: "rmdir", Path: name, Err: syscall.ENOTDIR}
				}
				err = s.client.Remove(ctx, name)
				if ignore && errors.Is(err, syscall.ENOTEMPTY) {
					return nil
				}
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&ignore, "ignore-fail-on-non-empty", false, "a directory that is not empty is no error")
	return cmd
}

func groupCommand(run runner) *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:   "chgrp GROUP PATH...",
		Short: "Change the group",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if err := checkNames(args[0]); err != nil {
				return err
			}
			return s.each(args[1:], func(name string) error {
				return s.walk(ctx, s.path(name), recursive, func(name string, info *hdfs.FileInfo) error {
					return s.chown(ctx, name, info, "", args[0])
				})
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "all that is below, too")
	return cmd
}

func moveFromLocalCommand(run runner) *cobra.Command {
	p := put{}
	cmd := &cobra.Command{
		Use:   "moveFromLocal LOCAL... [PATH]",
		Short: "Store local files and trees, and remove them here",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return p.all(ctx, s, args, func(local string) error { return os.RemoveAll(local) })
		}),
	}
	p.flags(cmd)
	return cmd
}

// moveToLocalCommand is a command that Hadoop has and does not carry out.
func moveToLocalCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "moveToLocal PATH LOCAL",
		Short:  "Not implemented, as in Hadoop",
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return (&session{errOut: c.ErrOrStderr(), verb: c.Name()}).say(errors.New("Option '-moveToLocal' is not implemented yet.")) //nolint:staticcheck // Hadoop's words
		},
	}
}

func expungeCommand(run runner) *cobra.Command {
	var immediate bool
	cmd := &cobra.Command{
		Use:   "expunge",
		Short: "Set aside what is in your trash now, and remove what was set aside longer ago than the trash is kept",
		Args:  between(0, 0),
		RunE: run(func(ctx context.Context, s *session, _ []string) error {
			return s.client.ExpungeTrash(ctx, immediate)
		}),
	}
	cmd.Flags().BoolVar(&immediate, "immediate", false, "remove all that was set aside, however long ago")
	cmd.Flags().String("fs", "", "hdfs://HOST:PORT, which --namenode tells already")
	_ = cmd.Flags().MarkHidden("fs") // it is there
	return cmd
}
