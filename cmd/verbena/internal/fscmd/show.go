package fscmd

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// humanFlag is -h, as in hdfs dfs, where other commands have their help.
func humanFlag(cmd *cobra.Command, human *bool) {
	cmd.Flags().Bool("help", false, "help for "+cmd.Name())
	cmd.Flags().BoolVarP(human, "human", "h", false, "lengths in K, M, ... (of 1024)")
}

// listing is what ls is to show, and how.
type listing struct {
	recursive, json, human, paths, directories bool
	byTime, bySize, reverse, accessed          bool
	printable, coding                          bool

	replication, owner, group, length int // columns
}

func listCommand(run runner) *cobra.Command {
	var l listing
	var long bool
	cmd := &cobra.Command{
		Use:   "ls [PATH...]",
		Short: "List files and directories",
		Example: `  verbena fs ls /
  verbena fs ls -t -h /data
  verbena fs ls -R --json / | jq .path`,
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			l.replication, l.length = 3, 10
			out := bufio.NewWriter(s.out)
			err := s.each(args, func(name string) error { return l.list(ctx, s, s.path(name), out) })
			return errors.Join(out.Flush(), err)
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&l.paths, "paths", "C", false, "paths alone")
	flags.BoolVarP(&l.directories, "directories", "d", false, "directories themselves, not what is in them")
	flags.BoolVarP(&l.recursive, "recursive", "R", false, "directories below, too")
	flags.BoolVarP(&l.byTime, "time", "t", false, "the last modified first")
	flags.BoolVarP(&l.bySize, "size", "S", false, "the longest first")
	flags.BoolVarP(&l.reverse, "reverse", "r", false, "the other way round")
	flags.BoolVarP(&l.accessed, "access", "u", false, "the time of the last access, also to sort by")
	flags.BoolVarP(&l.printable, "printable", "q", false, "? in place of what can't be printed")
	flags.BoolVarP(&l.coding, "erasure-coding", "e", false, "the policy of erasure coding of what is coded so, too")
	humanFlag(cmd, &l.human)
	flags.BoolVar(&l.json, "json", false, "an object a line")
	flags.BoolVarP(&long, "long", "l", false, "which is so anyway")
	_ = flags.MarkHidden("long") // it is there
	return cmd
}

// list shows name, or what is in it.
func (l *listing) list(ctx context.Context, s *session, name string, out *bufio.Writer) error {
	info, err := s.client.Stat(ctx, name)
	if err != nil {
		return err
	}
	if !info.IsDir() || l.directories {
		l.widen(info)
		return l.show(s, name, info, out)
	}
	return l.in(ctx, s, name, out)
}

// in shows what is in a directory.
func (l *listing) in(ctx context.Context, s *session, dir string, out *bufio.Writer) error {
	entries, err := s.client.ReadDir(ctx, dir)
	if err != nil {
		return err
	}
	l.sort(entries)
	if len(entries) > 0 && !l.paths && !l.recursive && !l.json {
		fmt.Fprintf(out, "Found %d items\n", len(entries))
	}
	for _, info := range entries {
		l.widen(info)
	}
	var failed failures
	for _, info := range entries {
		name := join(dir, info.Name())
		if err := l.show(s, name, info, out); err != nil {
			return err
		}
		if !l.recursive || !info.IsDir() {
			continue
		}
		err := l.in(ctx, s, name, out)
		if err != nil && !ofOnePath(err) {
			return err
		}
		failed.add(s, err)
	}
	return errors.Join(out.Flush(), failed.err())
}

// sort puts entries, which come by their names, in order.
func (l *listing) sort(entries []*hdfs.FileInfo) {
	if l.byTime || l.bySize {
		slices.SortStableFunc(entries, func(a, b *hdfs.FileInfo) int {
			order := cmp.Compare(b.Size(), a.Size())
			if l.byTime {
				order = l.time(b).Compare(l.time(a))
			}
			if l.reverse {
				return -order
			}
			return order
		})
		return
	}
	if l.reverse {
		slices.Reverse(entries)
	}
}

func (l *listing) time(info *hdfs.FileInfo) time.Time {
	if l.accessed {
		return info.AccessTime()
	}
	return info.ModTime()
}

// widen has the columns hold an entry.
func (l *listing) widen(info *hdfs.FileInfo) {
	l.replication = max(l.replication, len(fmt.Sprint(info.Replication())))
	l.owner, l.group = max(l.owner, len(info.Owner())), max(l.group, len(info.Group()))
	l.length = max(l.length, len(sizes(l.human)(info.Size())))
}

func (l *listing) show(s *session, name string, info *hdfs.FileInfo, out *bufio.Writer) (err error) {
	switch {
	case l.json:
		return (&session{out: out}).json(newEntry(name, info))
	case l.paths:
		_, err = fmt.Fprintln(out, l.name(s, name))
		return err
	}
	replication, more := "-", " "
	if !info.IsDir() {
		replication = fmt.Sprint(info.Replication())
	}
	if info.HasACL() {
		more = "+"
	}
	policy := ""
	if l.coding && info.ErasureCodingPolicy() != "" {
		policy = info.ErasureCodingPolicy() + " "
	}
	_, err = fmt.Fprintf(out, "%s%s%*s %-*s %-*s %*s %s%s %s\n", modeString(info), more, l.replication, replication, l.owner, info.Owner(), l.group, info.Group(),
		l.length, sizes(l.human)(info.Size()), policy, l.time(info).Local().Format("2006-01-02 15:04"), l.name(s, name))
	return err
}

// name is a path as it is shown.
func (l *listing) name(s *session, name string) string {
	name = s.shown(name)
	if l.printable {
		name = strings.Map(func(r rune) rune {
			if unicode.IsPrint(r) {
				return r
			}
			return '?'
		}, name)
	}
	return name
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
	var unverified bool
	cmd := &cobra.Command{
		Use:   "cat PATH...",
		Short: "Write files to standard output",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			s.unverified = unverified
			return s.eachFile(ctx, args, func(f *hdfs.FileReader) error { return copyFile(s.out, f) })
		}),
	}
	unverifiedFlag(cmd, &unverified)
	return cmd
}

// unverifiedFlag is for commands that read files.
func unverifiedFlag(cmd *cobra.Command, unverified *bool) {
	cmd.Flags().BoolVar(unverified, "ignoreCrc", false, "do not compare what is read with its checksums, to save what is left of a damaged file")
}

// openFile opens a file for reading and refuses a directory by name.
func (s *session) openFile(ctx context.Context, name string) (*hdfs.FileReader, error) {
	open := s.client.Open
	if s.unverified {
		open = s.client.OpenUnverified
	}
	f, err := open(ctx, name)
	if err != nil {
		if dir, derr := s.isDir(ctx, name); derr == nil && dir {
			return nil, isNo("open", name, syscall.EISDIR)
		}
	}
	return f, err
}

func statCommand(run runner) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stat [FORMAT] PATH...",
		Short: "Tell what is known of files and directories",
		Long: `Tell what is known of files and directories. FORMAT has a % in it; without one it is %y.

  %a %A   permissions: 644, rw-r--r--    %o   bytes of a block
  %b      length in bytes                %r   replicas
  %F      what it is                     %u   owner
  %g      group                          %x %X   last access: UTC, milliseconds since 1970
  %n      name                           %y %Y   last change, alike`,
		Args: atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			format := "%y"
			if strings.Contains(args[0], "%") {
				format, args = args[0], args[1:]
			}
			return s.eachMatch(ctx, args, func(name string) error {
				info, err := s.client.Stat(ctx, name)
				if err != nil {
					return err
				}
				if asJSON {
					return s.json(newEntry(name, info))
				}
				_, err = fmt.Fprintln(s.out, formatted(format, info))
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "all of it, an object a line")
	return cmd
}

// formatted writes what is known of a file as Hadoop's stat does.
func formatted(format string, info *hdfs.FileInfo) string {
	moment := func(t time.Time) string { return t.UTC().Format(time.DateTime) }
	known := map[byte]func() string{
		'a': func() string { return strconv.FormatUint(uint64(octal(info.Mode())), 8) },
		'A': func() string { return modeString(info)[1:] },
		'b': func() string { return fmt.Sprint(info.Size()) },
		'F': func() string {
			if info.IsDir() {
				return "directory"
			}
			return "regular file"
		},
		'g': info.Group,
		'n': info.Name,
		'o': func() string { return fmt.Sprint(info.BlockSize()) },
		'r': func() string { return fmt.Sprint(info.Replication()) },
		'u': info.Owner,
		'x': func() string { return moment(info.AccessTime()) },
		'X': func() string { return fmt.Sprint(info.AccessTime().UnixMilli()) },
		'y': func() string { return moment(info.ModTime()) },
		'Y': func() string { return fmt.Sprint(info.ModTime().UnixMilli()) },
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		if i++; i == len(format) {
			break
		}
		if f := known[format[i]]; f != nil {
			b.WriteString(f())
		} else {
			b.WriteByte(format[i])
		}
	}
	return b.String()
}

// withoutSnapshots are sums without what is in snapshots alone.
func withoutSnapshots(sum *hdfs.Summary) *hdfs.Summary {
	out := *sum
	out.Length -= sum.SnapshotLength
	out.Space -= sum.SnapshotSpace
	out.Files -= sum.SnapshotFiles
	out.Directories -= sum.SnapshotDirectories
	return &out
}

func usageCommand(run runner) *cobra.Command {
	var asJSON, human, summary, header, noSnapshots bool
	cmd := &cobra.Command{
		Use:   "du [PATH...]",
		Short: "Tell the bytes of what is in directories, without and with replicas",
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			var t table
			if header {
				t.head = []string{"SIZE", "DISK_SPACE_CONSUMED_WITH_ALL_REPLICAS", "FULL_PATH_NAME"}
			}
			one := func(name string) error {
				sum, err := s.client.Summary(ctx, name)
				if err != nil {
					return err
				}
				if noSnapshots {
					sum = withoutSnapshots(sum)
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
				t.add(sizes(human)(sum.Length), sizes(human)(sum.Space), s.shown(name))
				return nil
			}
			err := s.each(args, func(name string) error {
				name = s.path(name)
				info, err := s.client.Stat(ctx, name)
				if err != nil {
					return err
				}
				if summary || asJSON || !info.IsDir() {
					return one(name)
				}
				var failed failures
				for info, err := range s.client.List(ctx, name) {
					if err == nil {
						err = one(join(name, info.Name()))
					}
					if err != nil && !ofOnePath(err) {
						return err
					}
					failed.add(s, err)
				}
				return failed.err()
			})
			return errors.Join(t.print(s.out), err)
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&summary, "summary", "s", false, "the sum of a directory alone")
	humanFlag(cmd, &human)
	flags.BoolVar(&header, "header", false, "a line of names first (or -v)")
	flags.BoolVarP(&noSnapshots, "without-snapshots", "x", false, "do not count what is in snapshots alone")
	flags.BoolVar(&asJSON, "json", false, "sums, an object a line")
	return cmd
}

func freeCommand(run runner) *cobra.Command {
	var asJSON, human bool
	cmd := &cobra.Command{
		Use:   "df [PATH...]",
		Short: "Tell the capacity of the file system, and with --json the health of its blocks",
		RunE: run(func(ctx context.Context, s *session, args []string) error {
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
			t := table{right: map[int]bool{1: true, 2: true, 3: true, 4: true}}
			t.head = []string{"Filesystem", "Size", "Used", "Available", "Use%"}
			show, share := sizes(human), 0.0
			if info.Capacity > 0 {
				share = 100 * float64(info.Used) / float64(info.Capacity)
			}
			err = s.each(args, func(name string) error {
				if _, err := s.client.Stat(ctx, s.path(name)); err != nil {
					return err
				}
				t.add("hdfs://"+s.client.NameNode(), show(info.Capacity), show(info.Used), show(info.Remaining), fmt.Sprintf("%.0f%%", share))
				return nil
			})
			return errors.Join(t.print(s.out), err)
		}),
	}
	humanFlag(cmd, &human)
	cmd.Flags().BoolVar(&asJSON, "json", false, "one object")
	return cmd
}

func checksumCommand(run runner) *cobra.Command {
	var composite, asSum, blockSize bool
	cmd := &cobra.Command{
		Use:   "checksum PATH...",
		Short: "Tell a file's HDFS checksum as hdfs dfs does: its kind, and its bytes",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				name = s.path(name)
				mode := hdfs.MD5MD5CRC
				if composite {
					mode = hdfs.CompositeCRC
				}
				sum, err := s.client.ChecksumOf(ctx, name, mode)
				if err != nil {
					if dir, derr := s.isDir(ctx, name); derr == nil && dir {
						err = isNo("checksum", name, syscall.EISDIR)
					}
					return err
				}
				if !asSum {
					more := ""
					if blockSize {
						info, err := s.client.Stat(ctx, name)
						if err != nil {
							return err
						}
						more = fmt.Sprintf("\tBlockSize=%d", info.BlockSize())
					}
					_, err = fmt.Fprintf(s.out, "%s\t%s\t%s%s\n", s.shown(name), sum.Algorithm, hex.EncodeToString(sum.Encoded), more)
					return err
				}
				_, err = fmt.Fprintf(s.out, "%s  %s\n", hex.EncodeToString(sum.Sum), s.shown(name))
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&blockSize, "block-size", false, "the length of the file's blocks, too (or -v)")
	cmd.Flags().BoolVar(&composite, "composite", false, "the CRC of the whole file, which does not depend on its blocks")
	cmd.Flags().BoolVar(&asSum, "sum", false, "the MD5 or CRC alone, before the path")
	return cmd
}
