package fscmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

func mkdirCommand(run runner) *cobra.Command {
	var parents bool
	cmd := &cobra.Command{
		Use:   "mkdir PATH...",
		Short: "Make directories",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				if parents {
					return s.client.MkdirAll(ctx, s.path(name), 0)
				}
				return s.client.Mkdir(ctx, s.path(name), 0)
			})
		}),
	}
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make what is missing above, and accept what is there")
	return cmd
}

// A removal is what rm is to do.
type removal struct {
	recursive, force, skipTrash, safely bool
}

func removeCommand(run runner) *cobra.Command {
	var r removal
	cmd := &cobra.Command{
		Use:   "rm PATH...",
		Short: "Remove files, or directories with -r; to the trash, if the cluster keeps one",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			var failed failures
			found := s.expand(ctx, args, r.force, &failed)
			failed.add(s, s.each(found, func(name string) error { return r.remove(ctx, s, s.path(name)) }))
			return failed.err()
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&r.recursive, "recursive", "r", false, "directories, too, with all that is in them")
	flags.BoolVarP(&r.force, "force", "f", false, "a path that is not there, or a pattern that matches nothing, is no error")
	flags.BoolVarP(&r.recursive, "Recursive", "R", false, "the same")
	_ = flags.MarkHidden("Recursive") // it is there
	flags.BoolVar(&r.safely, "safely", false, fmt.Sprintf("ask before a directory with more than %d files is removed for good", manyFiles))
	flags.BoolVar(&r.skipTrash, "skip-trash", false, "remove for good, as is done with what is in the trash")
	flags.BoolVar(&r.skipTrash, "skipTrash", false, "the same, as hdfs dfs has it")
	_ = flags.MarkHidden("skipTrash") // it is there
	return cmd
}

func (r *removal) remove(ctx context.Context, s *session, name string) error {
	info, err := s.client.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) && r.force {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() && !r.recursive {
		return isNo("rm", name, syscall.EISDIR) // which -r removes
	}
	if !r.skipTrash {
		if moved, err := s.toTrash(ctx, name); moved || err != nil {
			return err
		}
	}
	if name == "/" {
		return errors.New("the root directory can't be removed")
	}
	remove := s.client.Remove
	if info.IsDir() {
		if r.safely {
			if sure, err := s.sure(ctx, name); err != nil || !sure {
				return err
			}
		}
		remove = s.client.RemoveAll
	}
	if err := remove(ctx, name); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.out, "Deleted %s\n", s.shown(name))
	return err
}

// toTrash moves a path to the trash. It does not if there is none, or if the path is there
// already: what is to be removed then goes for good.
func (s *session) toTrash(ctx context.Context, name string) (moved bool, err error) {
	to, err := s.client.MoveToTrash(ctx, name)
	switch {
	case err == nil:
		_, err = fmt.Fprintf(s.errOut, "%s is in the trash now: %s\n", name, to)
		return true, err
	case errors.Is(err, hdfs.ErrNoTrash), errors.Is(err, hdfs.ErrInTrash):
		return false, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	return false, &within{"Failed to move " + s.shown(name) + " to the trash: ", err, ". Consider using -skipTrash option"}
}

// manyFiles is how many files rm -safely removes without a question.
const manyFiles = 100

// sure asks whether a directory with many files is to be removed.
func (s *session) sure(ctx context.Context, name string) (bool, error) {
	sum, err := s.client.Summary(ctx, name)
	if err != nil || sum.Files <= manyFiles {
		return err == nil, err
	}
	if s.answers == nil {
		s.answers = bufio.NewReader(s.in)
	}
	for {
		fmt.Fprintf(s.errOut, "Proceed deleting %d files? (Y or N) ", sum.Files)
		line, err := s.answers.ReadString('\n')
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "y", "yes":
			return true, nil
		case "n", "no":
			fmt.Fprintln(s.errOut, "Delete aborted at user request.")
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("nobody says whether %s is to be removed: %w", s.shown(name), err)
		}
	}
}

func moveCommand(run runner) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "mv SOURCE... DESTINATION",
		Short: "Rename, or move into a directory",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			sources, target, err := s.destination(ctx, args)
			if err != nil {
				return err
			}
			return s.each(sources, func(name string) error {
				from := s.path(name)
				info, err := s.client.Stat(ctx, from)
				if err != nil {
					return err
				}
				to := target(path.Base(from))
				if info.IsDir() && strings.HasPrefix(to, from+"/") {
					return fmt.Errorf("`%s' to `%s': is a subdirectory of itself", s.shown(from), s.shown(to))
				}
				if _, err := s.client.Stat(ctx, to); err == nil && !force {
					return isNo("mv", to, fs.ErrExist)
				}
				return s.client.Rename(ctx, from, to, force)
			})
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "replace what is there")
	return cmd
}

// stampLayout is how touch has a time.
const stampLayout = "20060102:150405"

func touchCommand(run runner) *cobra.Command {
	var accessed, changed, onlyThere bool
	var stamp string
	cmd := &cobra.Command{
		Use:   "touch PATH...",
		Short: "Make empty files, or set the times of those that exist to now",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			at := time.Now()
			if stamp != "" {
				var err error
				if at, err = time.ParseInLocation(stampLayout, stamp, time.Local); err != nil {
					return usage{fmt.Errorf("Unable to parse the specified timestamp %s. The expected format is yyyyMMdd:HHmmss", stamp)} //nolint:staticcheck // Hadoop's words
				}
			}
			access, change := at, at
			if accessed && !changed {
				change = time.Time{}
			}
			if changed && !accessed {
				access = time.Time{}
			}
			return s.each(args, func(name string) error {
				name = s.path(name)
				if onlyThere {
					err := s.client.Chtimes(ctx, name, access, change)
					return ignoreMissing(err)
				}
				err := s.create(ctx, name, false)
				if errors.Is(err, fs.ErrExist) || err == nil && stamp != "" {
					return s.client.Chtimes(ctx, name, access, change)
				}
				return err
			})
		}),
	}
	cmd.Flags().BoolVarP(&accessed, "access", "a", false, "the time of the last access alone")
	cmd.Flags().BoolVarP(&changed, "modification", "m", false, "the time of the last change alone")
	cmd.Flags().StringVarP(&stamp, "time", "t", "", "not now, but then: yyyyMMdd:HHmmss")
	cmd.Flags().BoolVarP(&onlyThere, "no-create", "c", false, "make no file")
	return cmd
}

func modeCommand(run runner) *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:   "chmod MODE PATH...",
		Short: "Change permissions: 0644, u+x, go-w, a=r",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			change, err := parseMode(args[0])
			if err != nil {
				return usage{err}
			}
			return s.each(args[1:], func(name string) error {
				return s.walk(ctx, s.path(name), recursive, func(name string, info *hdfs.FileInfo) error {
					now := octal(info.Mode())
					mode := change(now, info.IsDir())
					if mode == now {
						return nil // who is not the owner may do that
					}
					return s.changing("permissions", name, s.client.Chmod(ctx, name, fileMode(mode)))
				})
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "all that is below, too")
	return cmd
}

func ownerCommand(run runner) *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:   "chown OWNER[:GROUP] PATH...",
		Short: "Change the owner (superuser only) or the group (:GROUP)",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			owner, group, _ := strings.Cut(args[0], ":")
			if err := checkNames(owner, group); err != nil {
				return err
			}
			if owner == "" && group == "" {
				return fmt.Errorf("%q names neither an owner nor a group: write OWNER, OWNER:GROUP or :GROUP", args[0])
			}
			return s.each(args[1:], func(name string) error {
				return s.walk(ctx, s.path(name), recursive, func(name string, info *hdfs.FileInfo) error {
					return s.chown(ctx, name, info, owner, group)
				})
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "all that is below, too")
	return cmd
}

// chown changes the owner, the group or both of a path, if they are others.
func (s *session) chown(ctx context.Context, name string, info *hdfs.FileInfo, owner, group string) error {
	if owner == info.Owner() {
		owner = ""
	}
	if group == info.Group() {
		group = ""
	}
	if owner == "" && group == "" {
		return nil // who is not the superuser may do that
	}
	return s.changing("ownership", name, s.client.Chown(ctx, name, owner, group))
}

// checkNames refuses names of users and groups that Hadoop does not take.
func checkNames(names ...string) error {
	for _, name := range names {
		for _, c := range name {
			if !strings.ContainsRune("-_./@", c) && (c > unicode.MaxASCII || !unicode.IsLetter(c) && !unicode.IsDigit(c)) {
				return usage{fmt.Errorf("%q is no name of a user or a group: it may have letters, digits and -_./@", name)}
			}
		}
	}
	return nil
}

// parseMode reads an octal or symbolic mode and returns what it makes of a
// file's bits.
func parseMode(text string) (func(bits uint32, dir bool) uint32, error) {
	bad := fmt.Errorf("%q is no mode: write octal digits (0644, 1777) or changes such as u+x,go-w,a=rX", text)
	if text == "" {
		return nil, bad
	}
	if text[0] >= '0' && text[0] <= '9' {
		var bits uint32
		for _, c := range text {
			if c < '0' || c > '7' || bits > 0o777 {
				return nil, bad
			}
			bits = bits<<3 | uint32(c-'0')
		}
		if bits > 0o1777 {
			return nil, fmt.Errorf("%q: HDFS knows the sticky bit and nine permission bits, at most 1777", text)
		}
		return func(uint32, bool) uint32 { return bits }, nil
	}
	var changes []func(uint32, bool) uint32
	for _, clause := range strings.Split(text, ",") {
		at := strings.IndexAny(clause, "+-=")
		if at < 0 {
			return nil, bad
		}
		var who uint32
		for _, c := range clause[:at] {
			switch c {
			case 'u':
				who |= 0o700
			case 'g':
				who |= 0o070
			case 'o':
				who |= 0o007
			case 'a':
				who |= 0o777
			default:
				return nil, bad
			}
		}
		if who == 0 {
			who = 0o777
		}
		var what uint32
		executeIfAny := false
		for _, c := range clause[at+1:] {
			switch c {
			case 'r':
				what |= 0o444
			case 'w':
				what |= 0o222
			case 'x':
				what |= 0o111
			case 'X':
				executeIfAny = true
			case 't':
				what |= 0o1000
			default:
				return nil, bad
			}
		}
		op := clause[at]
		changes = append(changes, func(bits uint32, dir bool) uint32 {
			w := what
			if executeIfAny && (dir || bits&0o111 != 0) {
				w |= 0o111
			}
			w &= who | 0o1000
			switch op {
			case '+':
				return bits | w
			case '-':
				return bits &^ w
			}
			return bits&^who | w
		})
	}
	return func(bits uint32, dir bool) uint32 {
		for _, change := range changes {
			bits = change(bits, dir)
		}
		return bits
	}, nil
}
