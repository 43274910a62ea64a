package fscmd

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// A search is what find looks for.
type search struct {
	names, folded []string // patterns of the last part, all of which must match
	kind          string

	name, fold []*matcher // of the patterns, without capitals in fold
}

// compile reads the patterns.
func (f *search) compile() error {
	for _, p := range f.names {
		m, err := compile(p)
		if err != nil {
			return err
		}
		f.name = append(f.name, m)
	}
	for _, p := range f.folded {
		m, err := compile(strings.ToLower(p))
		if err != nil {
			return err
		}
		f.fold = append(f.fold, m)
	}
	return nil
}

func (f *search) matches(at string, info *hdfs.FileInfo) bool {
	base := strings.TrimPrefix(path.Base(at), "/") // the root has no name
	for _, m := range f.name {
		if !m.matches(base) {
			return false
		}
	}
	for _, m := range f.fold {
		if !m.matches(strings.ToLower(base)) {
			return false
		}
	}
	return f.kind == "" || (f.kind == "d") == info.IsDir()
}

func findCommand(run runner) *cobra.Command {
	var f search
	var printed, zero bool
	cmd := &cobra.Command{
		Use:     "find [PATH...]",
		Short:   "List what is below a path, by name and type",
		Example: `  verbena fs find /data --name '*.csv' --type f`,
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if f.kind != "" && f.kind != "f" && f.kind != "d" {
				return usage{fmt.Errorf("--type %s: want f for files or d for directories", f.kind)}
			}
			if err := f.compile(); err != nil {
				return usage{err}
			}
			end := "\n"
			if zero {
				end = "\x00"
			}
			return s.each(args, func(root string) error {
				return s.walk(ctx, s.path(root), true, func(at string, info *hdfs.FileInfo) error {
					if !f.matches(at, info) {
						return nil
					}
					_, err := io.WriteString(s.out, s.shown(at)+end)
					return err
				})
			})
		}),
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.names, "name", nil, "what the last part matches: `PATTERN` with *, ?, [...] and {one,two}; several must all match")
	flags.StringArrayVar(&f.folded, "iname", nil, "the same, in capitals or not")
	flags.StringVar(&f.kind, "type", "", "f: files alone; d: directories alone")
	flags.BoolVar(&zero, "print0", false, "end each path with a zero byte, not a new line")
	flags.BoolVar(&printed, "print", false, "which is so anyway")
	_ = flags.MarkHidden("print") // it is there
	return cmd
}

// edge is how many bytes head and tail show.
const edge = 1 << 10

func headCommand(run runner) *cobra.Command {
	return &cobra.Command{
		Use:   "head PATH...",
		Short: "Show the first 1 KiB of files",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.eachFile(ctx, args, func(f *hdfs.FileReader) error {
				_, err := io.Copy(s.out, io.NewSectionReader(f, 0, min(edge, f.Size())))
				return err
			})
		}),
	}
}

func tailCommand(run runner) *cobra.Command {
	var follow bool
	var every time.Duration
	var millis int
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "tail PATH",
		Short: "Show the last 1 KiB of a file, and with -f what comes after",
		Args:  between(1, 1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if cmd.Flags().Changed("sleep") {
				every = time.Duration(millis) * time.Millisecond
			}
			if every <= 0 {
				return usage{fmt.Errorf("a pause of %v between looks: want more than 0", every)}
			}
			if len(args) == 0 {
				return nil // the pattern has matched nothing
			}
			if !follow {
				every = 0
			}
			return s.tail(ctx, s.path(args[0]), every)
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is appended, also to a file that comes in its place")
	cmd.Flags().DurationVar(&every, "sleep-interval", 5*time.Second, "with -f: how often to look")
	cmd.Flags().IntVarP(&millis, "sleep", "s", 0, "the same, in milliseconds")
	return cmd
}

// tail shows the last bytes of a file, and then what is appended to it, if it is to look again
// every so often. Of a file that has come in its place it shows what is behind as many bytes, as
// Hadoop's command does, which opens the file for each look.
func (s *session) tail(ctx context.Context, name string, every time.Duration) error {
	f, err := s.openFile(ctx, name)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	at := max(0, f.Size()-edge)
	for {
		n, err := io.Copy(s.out, io.NewSectionReader(f, at, f.Size()-at))
		at += n
		if every == 0 || err != nil && !errors.Is(err, hdfs.ErrFileReplaced) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(every):
		}
		if err = f.Refresh(ctx); errors.Is(err, hdfs.ErrFileReplaced) {
			var other *hdfs.FileReader
			if other, err = s.openFile(ctx, name); err == nil {
				f.Close()
				f = other
			}
		}
		if err != nil {
			return err
		}
		at = min(at, f.Size()) // it may have become shorter
	}
}

func appendCommand(run runner) *cobra.Command {
	var newBlock bool
	cmd := &cobra.Command{
		Use:     "append LOCAL... PATH",
		Aliases: []string{"appendToFile"},
		Short:   "Append local files, or standard input (-), to a file, which is made if there is none",
		Args:    atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			name := s.path(args[len(args)-1])
			w, err := s.client.Append(ctx, name, hdfs.AppendOptions{NewBlock: newBlock})
			if errors.Is(err, fs.ErrNotExist) {
				w, err = s.client.Create(ctx, name, hdfs.CreateOptions{})
			}
			if err != nil {
				return err
			}
			for _, local := range args[:len(args)-1] {
				if err := appendFrom(w, local, s.in); err != nil {
					return errors.Join(err, w.Close()) // what came before stays
				}
			}
			return w.Close()
		}),
	}
	cmd.Flags().BoolVarP(&newBlock, "new-block", "n", false, "leave the last block as it is, and begin another")
	return cmd
}

func appendFrom(w *hdfs.FileWriter, local string, in io.Reader) error {
	if local == "-" {
		_, err := w.ReadFrom(in)
		return err
	}
	f, err := os.Open(local)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = w.ReadFrom(f)
	return err
}

func truncateCommand(run runner) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "truncate LENGTH PATH...",
		Short: "Cut files to a length in bytes",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			length, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || length < 0 {
				return usage{fmt.Errorf("%q is no length in bytes", args[0])}
			}
			return s.each(args[1:], func(name string) error {
				name = s.path(name)
				done, err := s.client.Truncate(ctx, name, length)
				if err != nil {
					return err
				}
				if wait {
					fmt.Fprintf(s.out, "Waiting for %s ...\n", s.shown(name))
				}
				if !done && wait {
					if err := s.client.WaitClosed(ctx, name); err != nil {
						return err
					}
					done = true
				}
				if done {
					_, err = fmt.Fprintf(s.out, "Truncated %s to length: %d\n", s.shown(name), length)
				} else {
					_, err = fmt.Fprintf(s.out, "Truncating %s to length: %d. Wait for block recovery to complete before further updating this file.\n", s.shown(name), length)
				}
				return err
			})
		}),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "until the DataNodes have cut the last block")
	return cmd
}

// errNo ends test with a failure and without a word.
var errNo = &Failure{1, "no"}

func testCommand(run runner) *cobra.Command {
	var exists, dir, file, empty, nonempty, readable, writable bool
	cmd := &cobra.Command{
		Use:   "test -e|-d|-f|-z|-s|-r|-w PATH",
		Short: "Answer a question about a path by the exit status",
		Args:  between(1, 1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if len(args) == 0 {
				return nil // the pattern has matched nothing
			}
			name := s.path(args[0])
			info, err := s.client.Stat(ctx, name)
			if errors.Is(err, fs.ErrNotExist) {
				return errNo
			}
			if err != nil {
				return err
			}
			for _, ask := range []struct {
				asked bool
				holds func() bool
			}{
				{exists, func() bool { return true }},
				{dir, info.IsDir},
				{file, func() bool { return !info.IsDir() }},
				{empty, func() bool { return info.Size() == 0 }},
				{nonempty, func() bool { return info.Size() > 0 }},
				{readable, func() bool { return s.client.Access(ctx, name, 4) == nil }},
				{writable, func() bool { return s.client.Access(ctx, name, 2) == nil }},
			} {
				if ask.asked && !ask.holds() {
					return errNo
				}
			}
			return nil
		}),
	}
	for _, f := range []struct {
		value *bool
		short string
		help  string
	}{{&exists, "e", "it is there"}, {&dir, "d", "it is a directory"}, {&file, "f", "it is a file"}, {&empty, "z", "it has no byte"}, {&nonempty, "s", "it has bytes"}, {&readable, "r", "the user may read it"}, {&writable, "w", "the user may write it"}} {
		cmd.Flags().BoolVarP(f.value, map[string]string{"e": "exists", "d": "directory", "f": "file", "z": "empty", "s": "nonempty", "r": "readable", "w": "writable"}[f.short], f.short, false, f.help)
	}
	oneOf(cmd, "No test flag given", "Only one test flag is allowed", "exists", "directory", "file", "empty", "nonempty", "readable", "writable")
	return cmd
}

// count is what count is to show, and how.
type count struct {
	quotas, alone, human, header bool
	coding, snapshots            bool
	noSnapshots                  bool

	types []string // of storage, whose quotas are to be shown alone
}

// Columns of count.
const (
	quotaColumns    = "%12s %15s %15s %15s "
	countColumns    = "%12s %12s %18s "
	typeColumns     = "%14s %18s "
	codingColumn    = "%20s "
	snapshotColumns = "%18s %24s %24s %28s "
)

func countCommand(run runner) *cobra.Command {
	var c count
	var types string
	cmd := &cobra.Command{
		Use:   "count PATH...",
		Short: "Count directories, files and bytes below paths, as hdfs dfs does",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			c.quotas = c.quotas || c.alone
			var err error
			if c.types, err = storageTypes(types); err != nil {
				return err
			}
			if !c.quotas {
				c.types = nil
			}
			if c.header {
				fmt.Fprintln(s.out, c.head()+"PATHNAME")
			}
			return s.each(args, func(name string) error {
				name = s.path(name)
				sum, err := s.client.Summary(ctx, name)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(s.out, c.line(sum)+s.shown(name))
				return err
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&c.quotas, "quotas", "q", false, "quotas and what is left of them, too")
	flags.BoolVarP(&c.alone, "quotas-alone", "u", false, "quotas and what is left of them, and nothing else")
	flags.StringVarP(&types, "types", "t", "", "with -q or -u: the quotas of these types of storage alone, ssd,disk,... or all")
	flags.Lookup("types").NoOptDefVal = "all"
	humanFlag(cmd, &c.human)
	flags.BoolVar(&c.header, "header", false, "a line of names first (or -v)")
	flags.BoolVarP(&c.noSnapshots, "without-snapshots", "x", false, "do not count what is in snapshots alone")
	flags.BoolVarP(&c.coding, "erasure-coding", "e", false, "the policy of erasure coding, too")
	flags.BoolVarP(&c.snapshots, "snapshots", "s", false, "what is in snapshots alone, too")
	return cmd
}

// quotaTypes are the types of storage that may have quotas, in Hadoop's order.
var quotaTypes = []string{"SSD", "DISK", "ARCHIVE", "PROVIDED", "NVDIMM"}

func storageTypes(text string) ([]string, error) {
	if text == "" || strings.EqualFold(text, "all") {
		if text == "" {
			return nil, nil
		}
		return quotaTypes, nil
	}
	types := strings.Split(strings.ToUpper(text), ",")
	for _, t := range types {
		if !slices.Contains(quotaTypes, t) {
			return nil, usage{fmt.Errorf("%q is no type of storage that may have a quota: want all, or some of %s", t, strings.ToLower(strings.Join(quotaTypes, ",")))}
		}
	}
	return types, nil
}

// head is what the columns are called.
func (c *count) head() (line string) {
	for _, t := range c.types {
		line += fmt.Sprintf(typeColumns, t+"_QUOTA", "REM_"+t+"_QUOTA")
	}
	if c.types != nil {
		return line
	}
	if c.quotas {
		line += fmt.Sprintf(quotaColumns, "QUOTA", "REM_QUOTA", "SPACE_QUOTA", "REM_SPACE_QUOTA")
	}
	if !c.alone {
		line += fmt.Sprintf(countColumns, "DIR_COUNT", "FILE_COUNT", "CONTENT_SIZE")
	}
	if c.coding {
		line += fmt.Sprintf(codingColumn, "ERASURECODING_POLICY")
	}
	if c.snapshots {
		line += fmt.Sprintf(snapshotColumns, "SNAPSHOT_LENGTH", "SNAPSHOT_FILE_COUNT", "SNAPSHOT_DIR_COUNT", "SNAPSHOT_SPACE_CONSUMED")
	}
	return line
}

// line is what the columns have for one path.
func (c *count) line(sum *hdfs.Summary) (line string) {
	show := sizes(c.human)
	left := func(quota, used int64) (string, string) {
		if quota < 0 {
			return "none", "inf"
		}
		return show(quota), show(quota - used)
	}
	for _, t := range c.types {
		of := hdfs.TypeQuota{Quota: -1}
		if i := slices.IndexFunc(sum.Types, func(q hdfs.TypeQuota) bool { return q.Type == t }); i >= 0 {
			of = sum.Types[i]
		}
		q, rest := left(of.Quota, of.Consumed)
		line += fmt.Sprintf(typeColumns, q, rest)
	}
	if c.types != nil {
		return line
	}
	if c.quotas {
		q, rest := left(sum.Quota, sum.Files+sum.Directories)
		sq, srest := left(sum.SpaceQuota, sum.Space)
		line += fmt.Sprintf(quotaColumns, q, rest, sq, srest)
	}
	if !c.alone {
		counted := sum
		if c.noSnapshots {
			counted = withoutSnapshots(sum)
		}
		line += fmt.Sprintf(countColumns, show(counted.Directories), show(counted.Files), show(counted.Length))
	}
	if c.coding {
		line += fmt.Sprintf(codingColumn, "EC:"+sum.ErasureCodingPolicy)
	}
	if c.snapshots {
		line += fmt.Sprintf(snapshotColumns, show(sum.SnapshotLength), show(sum.SnapshotFiles), show(sum.SnapshotDirectories), show(sum.SnapshotSpace))
	}
	return line
}

func replicationCommand(run runner) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "setrep REPLICAS PATH...",
		Short: "Set how many replicas files are to have, all those below a directory",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return usage{errors.New("replication must be >= 1")}
			}
			var set []string
			err = s.each(args[1:], func(name string) error {
				return s.walk(ctx, s.path(name), true, func(at string, info *hdfs.FileInfo) error {
					if info.IsDir() {
						return nil
					}
					if err := s.client.SetReplication(ctx, at, n); err != nil {
						return err
					}
					fmt.Fprintf(s.out, "Replication %d set: %s\n", n, s.shown(at))
					set = append(set, at)
					return nil
				})
			})
			if wait {
				err = errors.Join(err, s.each(set, func(at string) error { return s.replicated(ctx, at, n) }))
			}
			return err
		}),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "until all blocks have as many")
	cmd.Flags().BoolP("recursive", "R", true, "which is so anyway")
	_ = cmd.Flags().MarkHidden("recursive") // it is there
	return cmd
}

// replicated waits until each block of a file has n replicas, and shows that it does as
// Hadoop's command: by a dot every ten seconds.
func (s *session) replicated(ctx context.Context, name string, n int) error {
	const look, dot = 500 * time.Millisecond, 10 * time.Second
	fmt.Fprintf(s.out, "Waiting for %s ...", s.shown(name))
	warned := false
	for looks := time.Duration(1); ; looks++ {
		blocks, err := s.client.BlockLocations(ctx, name, 0, -1)
		if err != nil {
			return err
		}
		all := true
		for _, b := range blocks {
			all = all && len(b.DataNodes) == n
			if len(b.DataNodes) > n && !warned {
				warned = true
				fmt.Fprint(s.out, "\nWARNING: the waiting time may be long for DECREASING the number of replications.\n")
			}
		}
		if all {
			fmt.Fprintln(s.out, " done")
			return nil
		}
		if looks*look%dot == look {
			fmt.Fprint(s.out, ".")
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(look):
		}
	}
}

func concatCommand(run runner) *cobra.Command {
	return &cobra.Command{
		Use:   "concat TARGET SOURCE...",
		Short: "Move the blocks of files to the end of another one; the files are gone then",
		Args:  atLeast(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			var sources []string
			for _, a := range args[1:] {
				sources = append(sources, s.path(a))
			}
			return s.client.Concat(ctx, s.path(args[0]), sources...)
		}),
	}
}

func getACLCommand(run runner) *cobra.Command {
	var recursive bool
	cmd := &cobra.Command{
		Use:   "getfacl PATH...",
		Short: "Show access control lists",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				return s.walk(ctx, s.path(name), recursive, func(at string, _ *hdfs.FileInfo) error {
					acl, err := s.client.ACL(ctx, at)
					if err != nil {
						return err
					}
					_, err = io.WriteString(s.out, showACL(s.shown(at), acl))
					return err
				})
			})
		}),
	}
	cmd.Flags().BoolVarP(&recursive, "recursive", "R", false, "all that is below, too")
	return cmd
}

// showACL is a list as getfacl has it. In one with more than the mode, the mode's group
// bits are the mask, and the group's own entry is among the others.
func showACL(name string, acl *hdfs.ACL) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# file: %s\n# owner: %s\n# group: %s\n", name, acl.Owner, acl.Group)
	if acl.Mode&os.ModeSticky != 0 {
		letter := "T"
		if acl.Mode&1 != 0 {
			letter = "t"
		}
		fmt.Fprintln(&b, "# flags: --"+letter)
	}
	class := func(shift int) os.FileMode { return acl.Mode >> shift & 7 }
	more := false
	for _, e := range acl.Entries {
		more = more || !e.Default
	}
	entry := func(t hdfs.ACLType, perm os.FileMode) { fmt.Fprintln(&b, hdfs.ACLEntry{Type: t, Perm: perm}) }
	entry(hdfs.ACLUser, class(6))
	if !more {
		entry(hdfs.ACLGroup, class(3))
	}
	effective := func(e hdfs.ACLEntry, mask os.FileMode) {
		fmt.Fprint(&b, e)
		if masked := e.Perm & mask; masked != e.Perm && (e.Name != "" || e.Type == hdfs.ACLGroup) {
			e.Perm = masked
			text := e.String()
			fmt.Fprintf(&b, "\t#effective:%s", text[len(text)-3:])
		}
		b.WriteByte('\n')
	}
	for _, e := range acl.Entries {
		if !e.Default {
			effective(e, class(3))
		}
	}
	if more {
		entry(hdfs.ACLMask, class(3))
	}
	entry(hdfs.ACLOther, class(0))
	mask := os.FileMode(7)
	for _, e := range acl.Entries {
		if e.Default && e.Type == hdfs.ACLMask {
			mask = e.Perm
		}
	}
	for _, e := range acl.Entries {
		if e.Default {
			effective(e, mask)
		}
	}
	b.WriteByte('\n')
	return b.String()
}

func setACLCommand(run runner) *cobra.Command {
	var recursive, removeAll, removeDefault bool
	var modify, remove, set string
	cmd := &cobra.Command{
		Use:   "setfacl {-b|-k|-m SPEC|-x SPEC|--set SPEC} PATH...",
		Short: "Change access control lists",
		Example: `  verbena fs setfacl -m user:ada:r-x,default:group:staff:r-- /data
  verbena fs setfacl -x user:ada /data`,
		Args: atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			var entries []hdfs.ACLEntry
			var err error
			change := s.client.ModifyACL
			switch {
			case removeAll:
				change = func(ctx context.Context, name string, _ []hdfs.ACLEntry) error { return s.client.RemoveACL(ctx, name) }
			case removeDefault:
				change = func(ctx context.Context, name string, _ []hdfs.ACLEntry) error {
					return s.client.RemoveDefaultACL(ctx, name)
				}
			case remove != "":
				entries, err = hdfs.ParseACL(remove, false)
				change = s.client.RemoveACLEntries
			default:
				entries, err = hdfs.ParseACL(modify+set, true)
				if set != "" {
					change = s.client.SetACL
				}
			}
			if err != nil {
				return usage{err}
			}
			ofFiles := slices.DeleteFunc(slices.Clone(entries), func(e hdfs.ACLEntry) bool { return e.Default })
			return s.each(args, func(name string) error {
				return s.walk(ctx, s.path(name), recursive, func(at string, info *hdfs.FileInfo) error {
					if !recursive || info.IsDir() || len(entries) == 0 {
						return change(ctx, at, entries)
					}
					if len(ofFiles) == 0 {
						return nil
					}
					return change(ctx, at, ofFiles) // files have no default entries
				})
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&recursive, "recursive", "R", false, "all that is below, too")
	flags.BoolVarP(&removeAll, "remove-all", "b", false, "remove all but what the mode has")
	flags.BoolVarP(&removeDefault, "remove-default", "k", false, "remove the default entries")
	flags.StringVarP(&modify, "modify", "m", "", "add or change entries: `SPEC`")
	flags.StringVarP(&remove, "remove", "x", "", "remove entries: `SPEC` without permissions")
	flags.StringVar(&set, "set", "", "replace all entries: `SPEC`")
	oneOf(cmd, "Expected one of -b, -k, -m, -x or --set options", "Specified flags contains both remove and modify flags", "remove-all", "remove-default", "modify", "remove", "set")
	return cmd
}

func getAttributeCommand(run runner) *cobra.Command {
	var recursive, dump bool
	var name, encoding string
	cmd := &cobra.Command{
		Use:   "getfattr {-n NAME|-d} PATH...",
		Short: "Show extended attributes",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			encode, err := encoder(encoding)
			if err != nil {
				return err
			}
			var names []string
			if !dump {
				names = []string{name}
			}
			return s.each(args, func(arg string) error {
				return s.walk(ctx, s.path(arg), recursive, func(at string, _ *hdfs.FileInfo) error {
					fmt.Fprintf(s.out, "# file: %s\n", s.shown(at))
					attributes, err := s.client.XAttrs(ctx, at, names...)
					if err != nil {
						return err
					}
					slices.SortFunc(attributes, func(a, b hdfs.XAttr) int { return strings.Compare(a.Name, b.Name) })
					for _, a := range attributes {
						if len(a.Value) == 0 {
							fmt.Fprintln(s.out, a.Name)
							continue
						}
						fmt.Fprintf(s.out, "%s=%s\n", a.Name, encode(a.Value))
					}
					return nil
				})
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&recursive, "recursive", "R", false, "all that is below, too")
	flags.BoolVarP(&dump, "dump", "d", false, "all attributes")
	flags.StringVarP(&name, "name", "n", "", "this attribute")
	flags.StringVarP(&encoding, "encoding", "e", "text", "of values: text, hex or base64")
	oneOf(cmd, "Must specify '-n name' or '-d' option.", "-n names one attribute, -d means all: leave one out", "dump", "name")
	return cmd
}

func encoder(name string) (func([]byte) string, error) {
	switch strings.ToLower(name) {
	case "text":
		return func(b []byte) string { return `"` + strings.ToValidUTF8(string(b), "\uFFFD") + `"` }, nil
	case "hex":
		return func(b []byte) string { return "0x" + hex.EncodeToString(b) }, nil
	case "base64":
		return func(b []byte) string { return "0s" + base64.StdEncoding.EncodeToString(b) }, nil
	}
	return nil, usage{fmt.Errorf("Invalid/unsupported encoding option specified: %s", name)} //nolint:staticcheck // Hadoop's words
}

// attributeValue reads a value as setfattr has it: "text", 0xHEX, 0sBASE64 or text.
func attributeValue(text string) ([]byte, error) {
	switch {
	case len(text) >= 2 && text[0] == '"' && text[len(text)-1] == '"':
		return []byte(text[1 : len(text)-1]), nil
	case strings.HasPrefix(text, "0x"), strings.HasPrefix(text, "0X"):
		return hex.DecodeString(text[2:])
	case strings.HasPrefix(text, "0s"), strings.HasPrefix(text, "0S"):
		return base64.StdEncoding.DecodeString(text[2:])
	}
	return []byte(text), nil
}

func setAttributeCommand(run runner) *cobra.Command {
	var name, value, remove string
	cmd := &cobra.Command{
		Use:   "setfattr {-n NAME [--value VALUE]|-x NAME} PATH...",
		Short: "Set or remove extended attributes",
		Args:  atLeast(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			content, err := attributeValue(value)
			if err != nil {
				return fmt.Errorf("--value %s: %w", value, err)
			}
			return s.each(args, func(arg string) error {
				if remove != "" {
					return s.client.RemoveXAttr(ctx, s.path(arg), remove)
				}
				err := s.client.SetXAttr(ctx, s.path(arg), name, content)
				if errors.Is(err, fs.ErrInvalid) {
					return usage{err}
				}
				return err
			})
		}),
	}
	cmd.Flags().StringVarP(&name, "name", "n", "", "the attribute to set: user.`NAME`")
	cmd.Flags().StringVar(&value, "value", "", "or -v: text, 0xHEX or 0sBASE64")
	cmd.Flags().StringVarP(&remove, "remove", "x", "", "the attribute to remove")
	oneOf(cmd, "Must specify '-n name' or '-x name' option.", "Can not specify both '-n name' and '-x name' option.", "name", "remove")
	return cmd
}
