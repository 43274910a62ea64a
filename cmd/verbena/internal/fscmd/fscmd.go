// Package fscmd is `verbena fs`: the file commands, on a client that somebody
// else has connected. It is the user's view of the file system; which transport
// carries the bytes is none of its business.
package fscmd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// Connect connects to the file system that the command line names.
type Connect func(ctx context.Context) (*hdfs.Client, error)

// Command returns the command tree; connect is called once per command.
func Command(connect Connect) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fs",
		Short: "Work with files: ls, put, get, cat, find, tail, append, getfacl and more, as hdfs dfs",
		Long: `Work with the files of a cluster.

Paths are absolute, or relative to /user/NAME, and may be patterns of paths that are
there: *, ?, [a-z] and {one,two}, in quotes because of the shell. hdfs://HOST:PORT/PATH is
a path, too, but --namenode tells where the file system is. "-" stands for standard input
in put and for standard output in get. Commands may be written as in hdfs dfs: -ls.`,
		Example: `  verbena fs put report.csv /reports/     # a file into a directory
  verbena fs put ./photos /photos         # a tree
  verbena fs cat /reports/report.csv | head
  verbena fs ls /
  verbena fs get --transport shm /photos/1.jpg - > 1.jpg`,
	}
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return c.Help()
		}
		f := &Failure{255, "Unknown command"}
		fmt.Fprintf(c.ErrOrStderr(), "-%s: %s\n", args[0], f.text)
		return f
	}
	var explain bool
	run := func(f func(context.Context, *session, []string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			client, err := connect(c.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			s := &session{client: client, in: c.InOrStdin(), out: c.OutOrStdout(), errOut: c.ErrOrStderr(), verb: c.CalledAs(), ended: c.Context().Err}
			if err = f(c.Context(), s, args); err != nil {
				err = s.say(err)
			}
			if explain {
				err = errors.Join(err, s.explain(c.Context()))
			}
			return err
		}
	}
	help := helpOfCommand(cmd)
	cmd.SetHelpCommand(help) // in place of cobra's
	paths, behind, sources := expanding(run, 0, 0, ""), expanding(run, 1, 0, ""), expanding(run, 0, 1, "")
	orHome, orRoot := expanding(run, 0, 0, "."), expanding(run, 0, 0, "/")
	cmd.AddCommand(
		listCommand(orHome), putCommand(run), getCommand(run), catCommand(paths), mkdirCommand(paths),
		removeCommand(run), moveCommand(sources), statCommand(run), usageCommand(orHome), freeCommand(orRoot),
		modeCommand(behind), ownerCommand(behind), groupCommand(behind), touchCommand(paths), emptyFileCommand(paths), checksumCommand(paths),
		findCommand(orHome), tailCommand(paths), headCommand(paths), textCommand(paths), appendCommand(run), truncateCommand(behind), testCommand(paths),
		countCommand(paths), replicationCommand(behind), concatCommand(run), getACLCommand(paths), setACLCommand(paths), getAttributeCommand(paths), setAttributeCommand(paths),
		copyCommand(sources), mergeCommand(sources), moveFromLocalCommand(run), moveToLocalCommand(), removeDirCommand(paths), expungeCommand(run),
		deprecated(listCommand(orHome), "lsr", "ls -R", "recursive"), deprecated(removeCommand(run), "rmr", "-rm -r", "recursive"), deprecated(usageCommand(orHome), "dus", "du -s", "summary"),
		usageOfCommand(cmd), help,
	)
	cmd.AddCommand(snapshotCommands(run)...)
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return (&session{errOut: c.ErrOrStderr(), verb: c.Name()}).say(usage{err})
	})
	cmd.PersistentFlags().BoolVar(&explain, "explain", false, "tell on standard error how blocks were read, and how each DataNode is reached")
	return cmd
}

// deprecated is a command by an older name, which has a flag set.
func deprecated(cmd *cobra.Command, name, now, flag string) *cobra.Command {
	_, arguments, _ := strings.Cut(cmd.Use, " ")
	cmd.Use, cmd.Hidden, cmd.Aliases = name+" "+arguments, true, nil
	if err := cmd.Flags().Set(flag, "true"); err != nil {
		panic(err) // it is a flag of the command
	}
	cmd.PreRun = func(c *cobra.Command, _ []string) {
		fmt.Fprintf(c.ErrOrStderr(), "%s: DEPRECATED: Please use '%s' instead.\n", name, now)
	}
	return cmd
}

// usageOfCommand shows how commands, or all of them, are called.
func usageOfCommand(parent *cobra.Command) *cobra.Command {
	return aboutCommands(parent, "usage", "Show how commands are called", func(out io.Writer, other *cobra.Command) {
		fmt.Fprintf(out, "Usage: %s\n", other.UseLine())
	})
}

// helpOfCommand shows what commands, or all of them, do.
func helpOfCommand(parent *cobra.Command) *cobra.Command {
	return aboutCommands(parent, "help", "Show what commands do, and their options", func(out io.Writer, other *cobra.Command) {
		text := other.Long
		if text == "" {
			text = other.Short
		}
		fmt.Fprintf(out, "%s\n\n%s\n", text, other.UsageString())
	})
}

// aboutCommands is a command that tells of others, by their names of today or earlier ones.
func aboutCommands(parent *cobra.Command, name, short string, tell func(io.Writer, *cobra.Command)) *cobra.Command {
	return &cobra.Command{
		Use:   name + " [COMMAND...]",
		Short: short,
		RunE: func(c *cobra.Command, args []string) error {
			commands := parent.Commands()
			if len(args) == 0 {
				for _, other := range commands {
					if !other.Hidden {
						tell(c.OutOrStdout(), other)
					}
				}
			}
			for _, arg := range args {
				i := slices.IndexFunc(commands, func(other *cobra.Command) bool { return other.Name() == arg || other.HasAlias(arg) })
				if i < 0 {
					return (&session{errOut: c.ErrOrStderr(), verb: name}).say(usage{fmt.Errorf("`%s': Unknown command", arg)})
				}
				tell(c.OutOrStdout(), commands[i])
			}
			return nil
		},
	}
}

// explain tells how the bytes of a command went.
func (s *session) explain(ctx context.Context) error {
	nodes, err := s.client.DataNodes(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.errOut, "NameNode %s\n", s.client.NameNode())
	for _, n := range nodes {
		fmt.Fprintf(s.errOut, "DataNode %s: %s\n", n.Address, s.client.ExplainTransfers(n.Address))
	}
	local := s.client.LocalReads()
	_, err = fmt.Fprintf(s.errOut, "%d ranges were read by descriptor, %d over connections\n", local.Reads, local.Passed)
	return err
}

type runner func(func(context.Context, *session, []string) error) func(*cobra.Command, []string) error

// session is one command at work.
type session struct {
	client *hdfs.Client
	in     io.Reader
	out    io.Writer
	errOut io.Writer
	verb   string
	ended  func() error // why the command is to end, such as an interrupt

	answers    *bufio.Reader // of in, to what is asked: one for all, as it reads ahead
	unverified bool          // files are read without checksums

	mu    sync.Mutex
	roots []root
}

// clean is path.Clean.
func clean(name string) string { return path.Clean(name) }

// join puts a name into a directory.
func join(dir, name string) string { return path.Join(dir, name) }

func (s *session) json(v any) error {
	e := json.NewEncoder(s.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// isDir tells whether a name is a directory; a missing one is not.
func (s *session) isDir(ctx context.Context, name string) (bool, error) {
	info, err := s.client.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return info.IsDir(), nil
}

// destination tells where what a command line names goes: to the last argument, or into it if
// that is a directory. target tells it of a name.
func (s *session) destination(ctx context.Context, args []string) (sources []string, target func(name string) string, err error) {
	found, err := s.glob(ctx, args[len(args)-1])
	if err != nil {
		return nil, nil, err
	}
	if len(found) > 1 {
		return nil, nil, fmt.Errorf("`%s': Too many matches", args[len(args)-1])
	}
	to := s.path(found[0])
	sources = args[:len(args)-1]
	info, err := s.client.Stat(ctx, to)
	into := err == nil && info.IsDir()
	switch {
	case err != nil && (!errors.Is(err, fs.ErrNotExist) || len(sources) > 1):
		return nil, nil, err
	case len(sources) > 1 && !into:
		return nil, nil, isNo(s.verb, to, syscall.ENOTDIR)
	}
	return sources, func(name string) string {
		if into {
			return join(to, name)
		}
		return to
	}, nil
}

// entry is a file or directory as --json shows it.
type entry struct {
	Path        string    `json:"path"`
	Type        string    `json:"type"`
	Mode        string    `json:"mode"`
	Owner       string    `json:"owner"`
	Group       string    `json:"group"`
	Length      int64     `json:"length"`
	Replication int       `json:"replication"`
	BlockSize   int64     `json:"block_size"`
	Modified    time.Time `json:"modified"`
	Accessed    time.Time `json:"accessed"`
}

func newEntry(name string, info os.FileInfo) entry {
	e := entry{
		Path: name, Type: "file", Length: info.Size(), Modified: info.ModTime().UTC(),
		Mode: fmt.Sprintf("%04o", octal(info.Mode())),
	}
	if info.IsDir() {
		e.Type = "directory"
	}
	if f, ok := info.(*hdfs.FileInfo); ok {
		e.Owner, e.Group, e.Accessed = f.Owner(), f.Group(), f.AccessTime().UTC()
		e.Replication, e.BlockSize = f.Replication(), f.BlockSize()
	}
	return e
}

// octal is a mode as HDFS writes it: nine bits and the sticky bit.
func octal(mode os.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&os.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}

// fileMode is a mode of HDFS as Go has it.
func fileMode(bits uint32) os.FileMode {
	mode := os.FileMode(bits & 0o777)
	if bits&0o1000 != 0 {
		mode |= os.ModeSticky
	}
	return mode
}

// create makes an empty file in a directory that is there, or makes one anew.
func (s *session) create(ctx context.Context, name string, replace bool) error {
	if _, err := s.client.Stat(ctx, path.Dir(name)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return isNo(s.verb, name, fs.ErrNotExist)
		}
		return err
	}
	w, err := s.client.Create(ctx, name, hdfs.CreateOptions{Replace: replace})
	if err != nil {
		return err
	}
	return w.Close()
}
