package fscmd

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// humanFlag is -h, as in hdfs dfs, where other commands have their help.
func humanFlag(cmd *cobra.Command, human *bool) {
	cmd.Flags().Bool("help", false, "help for "+cmd.Name())
	cmd.Flags().BoolVarP(human, "human", "h", false, "lengths in KiB, MiB, ...")
}

// pageSize is after how many entries of a directory the output is shown.
const pageSize = 1000

func listCommand(run runner) *cobra.Command {
	var long, recursive, asJSON, human bool
	cmd := &cobra.Command{
		Use:   "ls [PATH...]",
		Short: "List files and directories",
		Example: `  verbena fs ls /
  verbena fs ls -l --human /data
  verbena fs ls -R --json / | jq .path`,
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			out := bufio.NewWriter(s.out)
			show := func(name string, info os.FileInfo) error {
				switch {
				case asJSON:
					return (&session{out: out}).json(newEntry(name, info))
				case long:
					_, err := fmt.Fprintln(out, longLine(name, info, human))
					return err
				}
				if info.IsDir() {
					name += "/"
				}
				_, err := fmt.Fprintln(out, name)
				return err
			}
			err := s.each(args, func(name string) error {
				return s.list(ctx, s.path(name), recursive, show, out)
			})
			return errors.Join(out.Flush(), err)
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&long, "long", "l", false, "mode, replication, owner, group, length and time of each")
	flags.BoolVarP(&recursive, "recursive", "R", false, "directories below, too")
	humanFlag(cmd, &human)
	flags.BoolVar(&asJSON, "json", false, "an object a line")
	return cmd
}

// list shows name, or what is in it.
func (s *session) list(ctx context.Context, name string, recursive bool, show func(string, os.FileInfo) error, out *bufio.Writer) error {
	info, err := s.client.Stat(ctx, name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return show(name, info)
	}
	shown := 0
	for info, err := range s.client.List(ctx, name) {
		if err != nil {
			return err
		}
		if err := show(join(name, info.Name()), info); err != nil {
			return err
		}
		if recursive && info.IsDir() {
			if err := s.list(ctx, join(name, info.Name()), true, show, out); err != nil {
				return err
			}
		}
		if shown++; shown%pageSize == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

// longLine has columns wide enough that pages line up without knowing each other.
func longLine(name string, info os.FileInfo, human bool) string {
	e := newEntry(name, info)
	length := fmt.Sprint(e.Length)
	if human {
		length = size(e.Length)
	}
	replication := "-"
	if !info.IsDir() {
		replication = fmt.Sprint(e.Replication)
	}
	return fmt.Sprintf("%s %3s %-10s %-10s %14s %s %s", modeString(info), replication, e.Owner, e.Group,
		length, e.Modified.Local().Format("2006-01-02 15:04"), name)
}

func modeString(info os.FileInfo) string {
	const letters = "rwxrwxrwx"
	bits := octal(info.Mode())
	b := []byte("----------")
	if info.IsDir() {
		b[0] = 'd'
	}
	for i := range letters {
		if bits&(1<<(8-i)) != 0 {
			b[i+1] = letters[i]
		}
	}
	if bits&0o1000 != 0 {
		if b[9] == 'x' {
			b[9] = 't'
		} else {
			b[9] = 'T'
		}
	}
	return string(b)
}

func catCommand(run runner) *cobra.Command {
	return &cobra.Command{
		Use:   "cat PATH...",
		Short: "Write files to standard output",
		Args:  cobra.MinimumNArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.eachFile(ctx, args, func(f *hdfs.FileReader) error { return copyFile(s.out, f) })
		}),
	}
}

// openFile opens a file for reading and refuses a directory by name.
func (s *session) openFile(ctx context.Context, name string) (*hdfs.FileReader, error) {
	f, err := s.client.Open(ctx, name)
	if err != nil {
		if dir, derr := s.isDir(ctx, name); derr == nil && dir {
			return nil, fmt.Errorf("%s is a directory", name)
		}
	}
	return f, err
}

func statCommand(run runner) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stat PATH...",
		Short: "Tell all that is known of a file or directory",
		Args:  cobra.MinimumNArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				info, err := s.client.Stat(ctx, name)
				if err != nil {
					return err
				}
				e := newEntry(name, info)
				if asJSON {
					return s.json(e)
				}
				w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
				fmt.Fprintf(w, "path\t%s\n", e.Path)
				fmt.Fprintf(w, "type\t%s\n", e.Type)
				fmt.Fprintf(w, "mode\t%s (%s)\n", e.Mode, modeString(info))
				fmt.Fprintf(w, "owner\t%s\n", e.Owner)
				fmt.Fprintf(w, "group\t%s\n", e.Group)
				if e.Type == "file" {
					fmt.Fprintf(w, "length\t%d (%s)\n", e.Length, size(e.Length))
					fmt.Fprintf(w, "replication\t%d\n", e.Replication)
					fmt.Fprintf(w, "block size\t%d (%s)\n", e.BlockSize, size(e.BlockSize))
					fmt.Fprintf(w, "accessed\t%s\n", e.Accessed.Local().Format(time.RFC3339Nano))
				}
				fmt.Fprintf(w, "modified\t%s\n", e.Modified.Local().Format(time.RFC3339Nano))
				return w.Flush()
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "an object a line")
	return cmd
}

func usageCommand(run runner) *cobra.Command {
	var asJSON, exact bool
	cmd := &cobra.Command{
		Use:   "du [PATH...]",
		Short: "Count the bytes, files and directories below a path",
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if len(args) == 0 {
				args = []string{"/"}
			}
			w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
			if !asJSON {
				fmt.Fprintln(w, "length\twith replicas\tfiles\tdirectories\t  path")
			}
			err := s.each(args, func(name string) error {
				name = s.path(name)
				sum, err := s.client.Summary(ctx, name)
				if err != nil {
					return err
				}
				if asJSON {
					return s.json(struct {
						Path        string `json:"path"`
						Length      int64  `json:"length"`
						Consumed    int64  `json:"space_consumed"`
						Files       int64  `json:"files"`
						Directories int64  `json:"directories"`
					}{name, sum.Length, sum.Space, sum.Files, sum.Directories})
				}
				show := size
				if exact {
					show = func(n int64) string { return fmt.Sprint(n) }
				}
				_, err = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t  %s\n", show(sum.Length), show(sum.Space),
					sum.Files, sum.Directories, name)
				return err
			})
			return errors.Join(w.Flush(), err)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "an object a line")
	cmd.Flags().BoolVar(&exact, "bytes", false, "lengths in bytes")
	return cmd
}

func freeCommand(run runner) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Tell the capacity of the file system and the health of its blocks",
		Args:  cobra.NoArgs,
		RunE: run(func(ctx context.Context, s *session, _ []string) error {
			info, err := s.client.Status(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return s.json(struct {
					Capacity        int64 `json:"capacity"`
					Used            int64 `json:"used"`
					Remaining       int64 `json:"remaining"`
					UnderReplicated int64 `json:"under_replicated_blocks"`
					Corrupt         int64 `json:"corrupt_blocks"`
					Missing         int64 `json:"missing_blocks"`
				}{info.Capacity, info.Used, info.Remaining, info.UnderReplicated, info.Corrupt, info.Gone})
			}
			w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
			for _, row := range []struct {
				name  string
				bytes int64
			}{{"capacity", info.Capacity}, {"used", info.Used}, {"remaining", info.Remaining}} {
				fmt.Fprintf(w, "%s\t%s\n", row.name, size(row.bytes))
			}
			fmt.Fprintf(w, "under-replicated blocks\t%d\n", info.UnderReplicated)
			fmt.Fprintf(w, "blocks with corrupt replicas\t%d\n", info.Corrupt)
			fmt.Fprintf(w, "missing blocks\t%d\n", info.Gone)
			return w.Flush()
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one object")
	return cmd
}

func checksumCommand(run runner) *cobra.Command {
	var composite, asSum bool
	cmd := &cobra.Command{
		Use:   "checksum PATH...",
		Short: "Tell a file's HDFS checksum as hdfs dfs does: its kind, and its bytes",
		Args:  cobra.MinimumNArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				mode := hdfs.MD5MD5CRC
				if composite {
					mode = hdfs.CompositeCRC
				}
				sum, err := s.client.ChecksumOf(ctx, name, mode)
				if err != nil {
					return err
				}
				if !asSum {
					_, err = fmt.Fprintf(s.out, "%s\t%s\t%s\n", name, sum.Algorithm, hex.EncodeToString(sum.Encoded))
					return err
				}
				_, err = fmt.Fprintf(s.out, "%s  %s\n", hex.EncodeToString(sum.Sum), name)
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&composite, "composite", false, "the CRC of the whole file, which does not depend on its blocks")
	cmd.Flags().BoolVar(&asSum, "sum", false, "the MD5 or CRC alone, before the path")
	return cmd
}
