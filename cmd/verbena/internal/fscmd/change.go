package fscmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

func removeCommand(run runner) *cobra.Command {
	var recursive, force, skipTrash, safely bool
	cmd := &cobra.Command{
		Use:   "rm PATH...",
		Short: "Remove files, or directories with -r; to the trash, if the cluster keeps one",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				if name == "/" {
					return usage{errors.New("the root directory can't be removed")}
				}
				info, err := s.client.Stat(ctx, name)
				if errors.Is(err, fs.ErrNotExist) && force {
					return nil
				}
				if err != nil {
					return err
				}
				if info.IsDir() && !recursive {
					return isNo("rm", name, syscall.EISDIR) // which -r removes
				}
				if !skipTrash {
					to, err := s.client.MoveToTrash(ctx, name)
					if err == nil {
						_, err = fmt.Fprintf(s.errOut, "%s is in the trash now: %s\n", name, to)
						return err
					}
					if !errors.Is(err, hdfs.ErrNoTrash) {
						return fmt.Errorf("%w: use rm --skip-trash to remove it for good", err)
					}
				}
				remove := s.client.Remove
				if info.IsDir() {
					if safely {
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
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "directories, too, with all that is in them")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "a path that is not there is no error")
	cmd.Flags().BoolVarP(&recursive, "Recursive", "R", false, "the same")
	_ = cmd.Flags().MarkHidden("Recursive") // it is there
	cmd.Flags().BoolVar(&safely, "safely", false, fmt.Sprintf("ask before a directory with more than %d files is removed for good", manyFiles))
	cmd.Flags().BoolVar(&skipTrash, "skip-trash", false, "remove for good")
	cmd.Flags().BoolVar(&skipTrash, "skipTrash", false, "the same, as hdfs dfs has it")
	_ = cmd.Flags().MarkHidden("skipTrash") // it is there
	return cmd
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
				err := s.create(ctx, name)
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
				return s.walk(ctx, s.path(name), recursive, func(name string, info os.FileInfo) error {
					return s.client.Chmod(ctx, name, fileMode(change(octal(info.Mode()), info.IsDir())))
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
				return s.walk(ctx, s.path(name), recursive, func(name string, _ os.FileInfo) error {
					return s.client.Chown(ctx, name, owner, group)
				})
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "all that is below, too")
	return cmd
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

// walk calls f for name and, if recursive, for what is below it, a directory
// before its children.
func (s *session) walk(ctx context.Context, name string, recursive bool, f func(string, os.FileInfo) error) error {
	if recursive {
		return s.client.Walk(ctx, name, func(name string, info *hdfs.FileInfo, err error) error {
			if err != nil {
				return err
			}
			return f(name, info)
		})
	}
	info, err := s.client.Stat(ctx, name)
	if err != nil {
		return err
	}
	return f(name, info)
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
