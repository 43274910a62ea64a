// Package fscmd is `verbena fs`: the file commands, on a client that somebody
// else has connected. It is the user's view of the file system; which transport
// carries the bytes is none of its business.
package fscmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
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
there: *, ?, [a-z] and {one,two}, in quotes because of the shell. hdfs://HOST:PORT/PATH is not
needed, --namenode tells where the file system is. "-" stands for standard input
in put and for standard output in get.`,
		Example: `  verbena fs put report.csv /reports/     # a file into a directory
  verbena fs put -r ./photos /photos      # a tree
  verbena fs cat /reports/report.csv | head
  verbena fs ls -l /
  verbena fs get --transport shm /photos/1.jpg -  > 1.jpg`,
	}
	var explain bool
	run := func(f func(context.Context, *session, []string) error) func(*cobra.Command, []string) error {
		return func(c *cobra.Command, args []string) error {
			client, err := connect(c.Context())
			if err != nil {
				return err
			}
			defer client.Close()
			s := &session{client: client, in: c.InOrStdin(), out: c.OutOrStdout(), errOut: c.ErrOrStderr(), verb: c.Name()}
			err = f(c.Context(), s, args)
			if explain {
				err = errors.Join(err, s.explain(c.Context()))
			}
			return err
		}
	}
	paths, behind, sources := expanding(run, 0, 0), expanding(run, 1, 0), expanding(run, 0, 1)
	cmd.AddCommand(
		listCommand(paths), putCommand(run), getCommand(sources), catCommand(paths), mkdirCommand(run),
		removeCommand(paths), moveCommand(sources), statCommand(paths), usageCommand(paths), freeCommand(run),
		modeCommand(behind), ownerCommand(behind), groupCommand(behind), touchCommand(run), emptyFileCommand(run), checksumCommand(paths),
		findCommand(paths), tailCommand(paths), headCommand(paths), textCommand(paths), appendCommand(run), truncateCommand(behind), testCommand(paths),
		countCommand(paths), replicationCommand(behind), concatCommand(run), getACLCommand(paths), setACLCommand(paths), getAttributeCommand(paths), setAttributeCommand(paths),
		copyCommand(sources), mergeCommand(sources), moveFromLocalCommand(run), removeDirCommand(paths), expungeCommand(run),
	)
	cmd.PersistentFlags().BoolVar(&explain, "explain", false, "tell on standard error how blocks were read, and how each DataNode is reached")
	return cmd
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
}

// path makes a name absolute, as HDFS does: relative to the user's home.
func (s *session) path(name string) string {
	if !strings.HasPrefix(name, "/") {
		name = "/user/" + s.client.User() + "/" + name
	}
	return path.Clean(name)
}

// join puts a name into a directory.
func join(dir, name string) string { return path.Join(dir, name) }

func (s *session) json(v any) error {
	e := json.NewEncoder(s.out)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// each runs f for every argument, tells what failed and goes on.
func (s *session) each(args []string, f func(name string) error) error {
	failed := 0
	for _, name := range args {
		if err := f(name); err != nil {
			failed++
			if len(args) == 1 {
				return err
			}
			fmt.Fprintf(s.errOut, "%s: %v\n", s.verb, err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d failed", failed, len(args))
	}
	return nil
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

// create makes an empty file.
func (s *session) create(ctx context.Context, name string) error {
	w, err := s.client.Create(ctx, name, hdfs.CreateOptions{})
	if err != nil {
		return err
	}
	return w.Close()
}

// size writes a length for people: 1.5 GiB.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n)/1024, 0
	for f >= 1024 && unit < len(units)-1 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[unit])
}
