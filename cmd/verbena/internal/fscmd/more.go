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

func findCommand(run runner) *cobra.Command {
	var name, iname, kind string
	var printed bool
	cmd := &cobra.Command{
		Use:     "find [PATH...]",
		Short:   "List what is below a path, by name and type",
		Example: `  verbena fs find /data --name '*.csv' --type f`,
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			if kind != "" && kind != "f" && kind != "d" {
				return fmt.Errorf("--type %s: want f for files or d for directories", kind)
			}
			if len(args) == 0 {
				args = []string{"."}
			}
			match := func(base string) (bool, error) {
				for pattern, of := range map[string]string{name: base, strings.ToLower(iname): strings.ToLower(base)} {
					if pattern == "" {
						continue
					}
					if ok, err := path.Match(pattern, of); err != nil || !ok {
						return false, err
					}
				}
				return true, nil
			}
			return s.each(args, func(root string) error {
				return s.client.Walk(ctx, s.path(root), func(at string, info *hdfs.FileInfo, err error) error {
					if err != nil {
						return err
					}
					ok, err := match(path.Base(at))
					if err != nil || !ok || kind == "f" && info.IsDir() || kind == "d" && !info.IsDir() {
						return err
					}
					_, err = fmt.Fprintln(s.out, s.shown(at))
					return err
				})
			})
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "what the last part matches: `PATTERN` with *, ? and [...]")
	cmd.Flags().StringVar(&iname, "iname", "", "the same, in capitals or not")
	cmd.Flags().StringVar(&kind, "type", "", "f: files alone; d: directories alone")
	cmd.Flags().BoolVar(&printed, "print", false, "which is so anyway")
	_ = cmd.Flags().MarkHidden("print") // it is there
	return cmd
}

// edge is how many bytes head and tail show.
const edge = 1 << 10

func headCommand(run runner) *cobra.Command {
	return &cobra.Command{
		Use:   "head PATH...",
		Short: "Show the first 1 KiB of files",
		Args:  cobra.MinimumNArgs(1),
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
	cmd := &cobra.Command{
		Use:   "tail PATH",
		Short: "Show the last 1 KiB of a file, and with -f what comes after",
		Args:  cobra.ExactArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			f, err := s.openFile(ctx, s.path(args[0]))
			if err != nil {
				return err
			}
			defer f.Close()
			at := max(0, f.Size()-edge)
			for {
				n, err := io.Copy(s.out, io.NewSectionReader(f, at, f.Size()-at))
				at += n
				if err != nil || !follow {
					return err
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(every):
				}
				if err := f.Refresh(ctx); err != nil {
					return err
				}
			}
		}),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what is appended")
	cmd.Flags().DurationVar(&every, "sleep-interval", 5*time.Second, "with -f: how often to look")
	return cmd
}

func appendCommand(run runner) *cobra.Command {
	var newBlock bool
	cmd := &cobra.Command{
		Use:     "append LOCAL... PATH",
		Aliases: []string{"appendToFile"},
		Short:   "Append local files, or standard input (-), to a file, which is made if there is none",
		Args:    cobra.MinimumNArgs(2),
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
		Args:  cobra.MinimumNArgs(2),
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
		Args:  cobra.ExactArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
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
	cmd.MarkFlagsOneRequired("exists", "directory", "file", "empty", "nonempty", "readable", "writable")
	return cmd
}

func countCommand(run runner) *cobra.Command {
	var quotas, alone, human, header, withoutSnapshots bool
	cmd := &cobra.Command{
		Use:   "count PATH...",
		Short: "Count directories, files and bytes below paths, as hdfs dfs does",
		Args:  cobra.MinimumNArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			quotas = quotas || alone
			const ofQuotas, ofCounts = "%12s %15s %15s %15s ", "%12s %12s %18s "
			if header {
				if quotas {
					fmt.Fprintf(s.out, ofQuotas, "QUOTA", "REM_QUOTA", "SPACE_QUOTA", "REM_SPACE_QUOTA")
				}
				if !alone {
					fmt.Fprintf(s.out, ofCounts, "DIR_COUNT", "FILE_COUNT", "CONTENT_SIZE")
				}
				fmt.Fprintln(s.out, "PATHNAME")
			}
			show := sizes(human)
			left := func(quota, used int64) (string, string) {
				if quota < 0 {
					return "none", "inf"
				}
				return show(quota), show(quota - used)
			}
			return s.each(args, func(name string) error {
				name = s.path(name)
				sum, err := s.client.Summary(ctx, name)
				if err != nil {
					return err
				}
				if quotas {
					q, rest := left(sum.Quota, sum.Files+sum.Directories)
					sq, srest := left(sum.SpaceQuota, sum.Space)
					fmt.Fprintf(s.out, ofQuotas, q, rest, sq, srest)
				}
				if !alone {
					fmt.Fprintf(s.out, ofCounts, show(sum.Directories), show(sum.Files), show(sum.Length))
				}
				_, err = fmt.Fprintln(s.out, s.shown(name))
				return err
			})
		}),
	}
	flags := cmd.Flags()
	flags.BoolVarP(&quotas, "quotas", "q", false, "quotas and what is left of them, too")
	flags.BoolVarP(&alone, "quotas-alone", "u", false, "quotas and what is left of them, and nothing else")
	humanFlag(cmd, &human)
	flags.BoolVar(&header, "header", false, "a line of names first (or -v)")
	flags.BoolVarP(&withoutSnapshots, "without-snapshots", "x", false, "leave out snapshots, of which there are none")
	return cmd
}

func replicationCommand(run runner) *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "setrep REPLICAS PATH...",
		Short: "Set how many replicas files are to have, all those below a directory",
		Args:  cobra.MinimumNArgs(2),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return usage{errors.New("replication must be >= 1")}
			}
			return s.each(args[1:], func(name string) error {
				return s.walk(ctx, s.path(name), true, func(at string, info os.FileInfo) error {
					if info.IsDir() {
						return nil
					}
					if err := s.client.SetReplication(ctx, at, n); err != nil {
						return err
					}
					fmt.Fprintf(s.out, "Replication %d set: %s\n", n, s.shown(at))
					if !wait {
						return nil
					}
					return s.replicated(ctx, at, n)
				})
			})
		}),
	}
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "until all blocks have as many")
	return cmd
}

// replicated waits until each block of a file has n replicas.
func (s *session) replicated(ctx context.Context, name string, n int) error {
	for {
		blocks, err := s.client.BlockLocations(ctx, name, 0, -1)
		if err != nil {
			return err
		}
		all := true
		for _, b := range blocks {
			all = all && len(b.DataNodes) == n
		}
		if all {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func concatCommand(run runner) *cobra.Command {
	return &cobra.Command{
		Use:   "concat TARGET SOURCE...",
		Short: "Move the blocks of files to the end of another one; the files are gone then",
		Args:  cobra.MinimumNArgs(2),
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
		Args:  cobra.MinimumNArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			return s.each(args, func(name string) error {
				return s.walk(ctx, s.path(name), recursive, func(at string, _ os.FileInfo) error {
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
		fmt.Fprintln(&b, "# flags: --t")
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
		Args: cobra.MinimumNArgs(1),
		RunE: run(func(ctx context.Context, s *session, args []string) error {
			change := func(string) error { return nil }
			switch {
			case removeAll:
				change = func(name string) error { return s.client.RemoveACL(ctx, name) }
			case removeDefault:
				change = func(name string) error { return s.client.RemoveDefaultACL(ctx, name) }
			case remove != "":
				entries, err := hdfs.ParseACL(remove, false)
				if err != nil {
					return usage{err}
				}
				change = func(name string) error { return s.client.RemoveACLEntries(ctx, name, entries) }
			default:
				entries, err := hdfs.ParseACL(modify+set, true)
				if err != nil {
					return usage{err}
				}
				change = func(name string) error {
					if set != "" {
						return s.client.SetACL(ctx, name, entries)
					}
					return s.client.ModifyACL(ctx, name, entries)
				}
			}
			return s.each(args, func(name string) error {
				return s.walk(ctx, s.path(name), recursive, func(at string, _ os.FileInfo) error { return change(at) })
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
	cmd.MarkFlagsOneRequired("remove-all", "remove-default", "modify", "remove", "set")
	cmd.MarkFlagsMutuallyExclusive("remove-all", "remove-default", "modify", "remove", "set")
	return cmd
}

func getAttributeCommand(run runner) *cobra.Command {
	var recursive, dump bool
	var name, encoding string
	cmd := &cobra.Command{
		Use:   "getfattr {-n NAME|-d} PATH...",
		Short: "Show extended attributes",
		Args:  cobra.MinimumNArgs(1),
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
				return s.walk(ctx, s.path(arg), recursive, func(at string, _ os.FileInfo) error {
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
	cmd.MarkFlagsOneRequired("dump", "name")
	cmd.MarkFlagsMutuallyExclusive("dump", "name")
	return cmd
}

func encoder(name string) (func([]byte) string, error) {
	switch name {
	case "text":
		return func(b []byte) string { return `"` + strings.ToValidUTF8(string(b), "\uFFFD") + `"` }, nil
	case "hex":
		return func(b []byte) string { return "0x" + hex.EncodeToString(b) }, nil
	case "base64":
		return func(b []byte) string { return "0s" + base64.StdEncoding.EncodeToString(b) }, nil
	}
	return nil, fmt.Errorf("--encoding %s: want text, hex or base64", name)
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
		Args:  cobra.MinimumNArgs(1),
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
	cmd.MarkFlagsOneRequired("name", "remove")
	cmd.MarkFlagsMutuallyExclusive("name", "remove")
	return cmd
}
