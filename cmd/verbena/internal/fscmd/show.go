package fscmd

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/colinmarc/hdfs/v2"
	"github.com/spf13/cobra"
)

// pageSize is how many entries of a directory are asked for and shown at once,
// so that a directory of any size needs the memory of one page.
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
	flags.BoolVar(&human, "human", false, "lengths in KiB, MiB, ...")
	flags.BoolVar(&asJSON, "json", false, "an object a line")
	return cmd
}

// list shows name, or what is in it, page by page.
func (s *session) list(ctx context.Context, name string, recursive bool, show func(string, os.FileInfo) error, out *bufio.Writer) error {
	f, err := s.client.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if info := f.Stat(); !info.IsDir() {
		return show(name, info)
	}
	for {
		page, err := f.Readdir(pageSize)
		for _, info := range page {
			if err := show(join(name, info.Name()), info); err != nil {
				return err
			}
			if recursive && info.IsDir() {
				if err := s.list(ctx, join(name, info.Name()), true, show, out); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) || (err == nil && len(page) == 0) {
			return out.Flush()
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
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
			return s.each(args, func(name string) error {
				f, err := s.openFile(s.path(name))
				if err != nil {
					return err
				}
				defer f.Close()
				return copyFile(ctx, s.out, f)
			})
		}),
	}
}

// openFile opens a file for reading and refuses a directory by name.
func (s *session) openFile(name string) (*hdfs.FileReader, error) {
	f, err := s.client.Open(name)
	if err != nil {
		return nil, err
	}
	if f.Stat().IsDir() {
		f.Close()
		return nil, fmt.Errorf("%s is a directory", name)
	}
	return f, nil
}

func statCommand(run runner) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stat PATH...",
		Short: "Tell all that is known of a file or directory",
		Args:  cobra.MinimumNArgs(1),
		RunE: run(func(_ context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				info, err := s.client.Stat(name)
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
					fmt.Fprintf(w, "block size\t%d (%s)\n", e.BlockSize, size(int64(e.BlockSize)))
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
		RunE: run(func(_ context.Context, s *session, args []string) error {
			if len(args) == 0 {
				args = []string{"/"}
			}
			w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', tabwriter.AlignRight)
			if !asJSON {
				fmt.Fprintln(w, "length\twith replicas\tfiles\tdirectories\t  path")
			}
			err := s.each(args, func(name string) error {
				name = s.path(name)
				sum, err := s.client.GetContentSummary(name)
				if err != nil {
					return err
				}
				if asJSON {
					return s.json(struct {
						Path        string `json:"path"`
						Length      int64  `json:"length"`
						Consumed    int64  `json:"space_consumed"`
						Files       int    `json:"files"`
						Directories int    `json:"directories"`
					}{name, sum.Size(), sum.SizeAfterReplication(), sum.FileCount(), sum.DirectoryCount()})
				}
				show := size
				if exact {
					show = func(n int64) string { return fmt.Sprint(n) }
				}
				_, err = fmt.Fprintf(w, "%s\t%s\t%d\t%d\t  %s\n", show(sum.Size()), show(sum.SizeAfterReplication()),
					sum.FileCount(), sum.DirectoryCount(), name)
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
		RunE: run(func(_ context.Context, s *session, _ []string) error {
			info, err := s.client.StatFs()
			if err != nil {
				return err
			}
			if asJSON {
				return s.json(struct {
					Capacity        uint64 `json:"capacity"`
					Used            uint64 `json:"used"`
					Remaining       uint64 `json:"remaining"`
					UnderReplicated uint64 `json:"under_replicated_blocks"`
					Corrupt         uint64 `json:"corrupt_blocks"`
					Missing         uint64 `json:"missing_blocks"`
				}{info.Capacity, info.Used, info.Remaining, info.UnderReplicated, info.CorruptBlocks, info.MissingBlocks})
			}
			w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
			for _, row := range []struct {
				name  string
				bytes uint64
			}{{"capacity", info.Capacity}, {"used", info.Used}, {"remaining", info.Remaining}} {
				fmt.Fprintf(w, "%s\t%s\n", row.name, size(int64(row.bytes)))
			}
			fmt.Fprintf(w, "under-replicated blocks\t%d\n", info.UnderReplicated)
			fmt.Fprintf(w, "blocks with corrupt replicas\t%d\n", info.CorruptBlocks)
			fmt.Fprintf(w, "missing blocks\t%d\n", info.MissingBlocks)
			return w.Flush()
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "one object")
	return cmd
}

func checksumCommand(run runner) *cobra.Command {
	return &cobra.Command{
		Use:   "checksum PATH...",
		Short: "Tell a file's HDFS checksum (an MD5 of the blocks' MD5s of CRC32Cs)",
		Args:  cobra.MinimumNArgs(1),
		RunE: run(func(_ context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				f, err := s.openFile(name)
				if err != nil {
					return err
				}
				defer f.Close()
				sum, err := f.Checksum()
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(s.out, "%s  %s\n", hex.EncodeToString(sum), name)
				return err
			})
		}),
	}
}
