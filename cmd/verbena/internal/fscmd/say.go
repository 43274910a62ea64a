package fscmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// Failure is a command that has failed and has told why.
type Failure struct {
	// Code is the status to exit with: 1, or 255 of a command that makes no sense whatever is
	// there.
	Code int
	text string
}

// Error is what was told, without the command's name.
func (f *Failure) Error() string { return f.text }

// usage is the error of a command that makes no sense, whatever is there.
type usage struct{ error }

func (u usage) Unwrap() error { return u.error }

// A root is a path as it was typed, which is shown so.
type root struct{ typed, path string }

// path makes a name absolute, as HDFS does: relative to the user's home. Of a URI it takes the
// path.
func (s *session) path(name string) string {
	abs := name
	if rest, ok := strings.CutPrefix(name, "hdfs://"); ok {
		_, abs, _ = strings.Cut(rest, "/")
		abs = "/" + abs
	}
	if !strings.HasPrefix(abs, "/") {
		abs = "/user/" + s.client.User() + "/" + abs
	}
	if abs = clean(abs); abs != name {
		s.mu.Lock()
		s.roots = append(s.roots, root{strings.TrimSuffix(name, "/"), abs})
		s.mu.Unlock()
	}
	return abs
}

// shown is a path as the user has typed it or what it lies below.
func (s *session) shown(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.roots) - 1; i >= 0; i-- {
		r := s.roots[i]
		rest, below := strings.CutPrefix(name, strings.TrimSuffix(r.path, "/")+"/")
		switch {
		case name == r.path:
			return r.typed
		case below && r.typed == ".":
			return rest
		case below:
			return r.typed + "/" + rest
		}
	}
	return name
}

// reasons are what Hadoop says of errors, behind the path.
var reasons = []struct {
	is   error
	text string
}{
	{fs.ErrNotExist, "No such file or directory"},
	{fs.ErrExist, "File exists"},
	{syscall.EISDIR, "Is a directory"},
	{syscall.ENOTDIR, "Is not a directory"},
	{syscall.ENOTEMPTY, "Directory is not empty"},
}

// within is an error in the midst of other words.
type within struct {
	before string
	error
	after string
}

func (w *within) Unwrap() error { return w.error }

// changing is an error of changing a path's permissions or ownership.
func (s *session) changing(what, name string, err error) error {
	if err == nil {
		return nil
	}
	return &within{"changing " + what + " of '" + s.shown(name) + "': ", err, ""}
}

// explained is an error in Hadoop's words, where it has some.
func (s *session) explained(err error) string {
	var w *within
	if errors.As(err, &w) {
		return w.before + s.explained(w.error) + w.after
	}
	var at *fs.PathError
	if errors.As(err, &at) {
		for _, r := range reasons {
			if errors.Is(at.Err, r.is) {
				return fmt.Sprintf("`%s': %s", s.shown(at.Path), r.text)
			}
		}
	}
	var refused *hdfs.ServerError
	if errors.As(err, &refused) && refused.Message != "" {
		said, _, _ := strings.Cut(refused.Message, "\n")
		return said
	}
	return err.Error()
}

// say tells of an error on standard error, and returns it as one that is told.
func (s *session) say(err error) error {
	var told *Failure
	if errors.As(err, &told) {
		return err
	}
	f := &Failure{1, s.explained(err)}
	verb := s.verb
	var refused *hdfs.ServerError
	answered := errors.As(err, &refused)
	if errors.Is(err, hdfs.ErrNoNameNode) && !answered && s.ended != nil && s.ended() == nil {
		f.text += ": is a NameNode running there? --namenode names another one"
	}
	if errors.As(err, &usage{}) || answered && errors.Is(err, fs.ErrInvalid) {
		f.Code, verb = 255, "-"+verb
	}
	fmt.Fprintf(s.errOut, "%s: %s\n", verb, f.text)
	return f
}

// between wants as many arguments as a command needs, and says otherwise what Hadoop says.
func between(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		var err error
		switch {
		case len(args) < least:
			err = fmt.Errorf("Not enough arguments: expected %d but got %d", least, len(args)) //nolint:staticcheck // Hadoop's words
		case len(args) > most:
			err = fmt.Errorf("Too many arguments: expected %d but got %d", most, len(args)) //nolint:staticcheck // Hadoop's words
		default:
			return nil
		}
		return (&session{errOut: c.ErrOrStderr(), verb: c.CalledAs()}).say(usage{err})
	}
}

// oneOf wants one of some flags of a command, and says otherwise what Hadoop says of none and of several.
func oneOf(cmd *cobra.Command, none, several string, flags ...string) {
	arguments := cmd.Args
	cmd.Args = func(c *cobra.Command, args []string) error {
		if err := arguments(c, args); err != nil {
			return err
		}
		given, text := 0, none
		for _, name := range flags {
			if c.Flags().Changed(name) {
				given, text = given+1, several
			}
		}
		if given == 1 {
			return nil
		}
		return (&session{errOut: c.ErrOrStderr(), verb: c.CalledAs()}).say(usage{errors.New(text)})
	}
}

func atLeast(n int) cobra.PositionalArgs { return between(n, math.MaxInt) }

// failures are the errors of a command that tells of each and goes on.
type failures struct {
	texts []string
	code  int
}

// add tells of an error, if it is one that is not told yet.
func (f *failures) add(s *session, err error) {
	if err == nil {
		return
	}
	err = s.say(err)
	var told *Failure
	errors.As(err, &told)
	f.texts, f.code = append(f.texts, err.Error()), max(f.code, told.Code)
}

// err is all of them in one, nil if there are none. Its code is the largest.
func (f *failures) err() error {
	if f.texts == nil {
		return nil
	}
	return &Failure{f.code, strings.Join(f.texts, "; ")}
}

// each runs f for every argument, tells what failed and goes on.
func (s *session) each(args []string, f func(name string) error) error {
	var failed failures
	for _, name := range args {
		failed.add(s, f(name))
	}
	return failed.err()
}

// ofOnePath tells whether an error is the NameNode's about one path, so that others may do
// better. After another one, of the connection say, all others would fail as well.
func ofOnePath(err error) bool {
	var refused *hdfs.ServerError
	var told *Failure
	return errors.As(err, &refused) || errors.As(err, &told)
}

// walk calls f for name and, if recursive, for what is below it, a directory before its
// children. It tells of what fails below and goes on with the rest, as Hadoop does: of a
// directory for which f fails, or that can't be listed, it leaves out what is in it.
func (s *session) walk(ctx context.Context, name string, recursive bool, f func(string, *hdfs.FileInfo) error) error {
	if !recursive {
		info, err := s.client.Stat(ctx, name)
		if err != nil {
			return err
		}
		return f(name, info)
	}
	var failed failures
	failed.add(s, s.client.Walk(ctx, name, func(at string, info *hdfs.FileInfo, err error) error {
		if err == nil {
			err = f(at, info)
		}
		if err == nil || info == nil || !ofOnePath(err) {
			return err
		}
		failed.add(s, err)
		if info.IsDir() {
			return fs.SkipDir
		}
		return nil
	}))
	return failed.err()
}

// isNo are the errors of a path that is of the wrong kind.
func isNo(op, name string, err error) error { return &fs.PathError{Op: op, Path: name, Err: err} }

// size writes a length for people, as Hadoop does: 1.5 G.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprint(n)
	}
	f, unit := float64(n)/1024, 0
	for f >= 1024 && unit < len(units)-1 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.1f %c", f, units[unit])
}

// sizes is how lengths are written: for people, or in bytes.
func sizes(human bool) func(int64) string {
	if human {
		return size
	}
	return func(n int64) string { return fmt.Sprint(n) }
}

// A table has columns as wide as what is in them, two blanks between. Those in right are
// written to the right; the last column is not filled. The head is written above the rows, if
// there are any.
type table struct {
	head  []string
	rows  [][]string
	right map[int]bool
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	rows := t.rows
	if t.head != nil {
		rows = append([][]string{t.head}, rows...)
	}
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			switch {
			case t.right[i]:
				fmt.Fprintf(&b, "%*s", width[i], cell)
			case i == len(row)-1:
				b.WriteString(cell)
			default:
				fmt.Fprintf(&b, "%-*s", width[i], cell)
			}
			if i < len(row)-1 {
				b.WriteString("  ")
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Arguments returns the words of a command line with the options that Hadoop writes with one
// dash, and the command, if it has one, as this program has them.
func Arguments(args []string) []string {
	out := append([]string(nil), args...)
	at := 0
	for at < len(out) && out[at] != "fs" {
		at++
	}
	verb, moded := "", false
	for i := at + 1; i < len(out); i++ {
		word, dashed := strings.CutPrefix(out[i], "-")
		switch {
		case out[i] == "--":
			return out
		case verb == "" && commands[word]: // and not the value of a flag before it
			out[i], verb = word, word
		case out[i] == "-v" && lettersOf[verb] != "":
			out[i] = lettersOf[verb]
		case verb == "" && generic[out[i]] != "":
			out[i] = generic[out[i]]
		case verb == "count" && out[i] == "-t" && i+2 < len(out) && strings.Trim(strings.ToLower(out[i+1]), "abcdefghijklmnopqrstuvwxyz_,") == "":
			out[i] = "--types=" + out[i+1]
			out = slices.Delete(out, i+1, i+2)
		case verb == "chmod" && !moded && (!dashed || isMode(word)):
			if moded = true; dashed {
				out[i] = "a" + out[i] // which means the same and is no option
			}
		case verb == "cp" && keeps(word) && dashed:
			out[i] = "--preserve=" + word[1:]
		case dashed && hadoopOptions[word]:
			out[i] = "-" + out[i]
		}
	}
	if verb == "find" {
		out = slices.DeleteFunc(out, func(word string) bool { return word == "-a" || word == "-and" }) // which is so anyway
	}
	return out
}

// isMode tells whether a word behind a dash is what chmod takes away.
func isMode(word string) bool {
	_, err := parseMode("-" + word)
	return err == nil
}

// keeps tells whether a word is -p of cp with letters.
func keeps(word string) bool {
	return len(word) > 1 && word[0] == 'p' && strings.Trim(word[1:], "abcdefghijklmnopqrstuvwxyz") == ""
}

// generic are the options that all of Hadoop's commands take.
var generic = map[string]string{"-fs": "--namenode", "-conf": "--hadoop-conf"}

// lettersOf are what -v stands for behind a command. Elsewhere it is --verbose.
var lettersOf = map[string]string{"du": "--header", "count": "--header", "setfattr": "--value", "checksum": "--block-size"}

// hadoopOptions are Hadoop's options of more than one letter.
var hadoopOptions = map[string]bool{
	"skipTrash": true, "nl": true, "skip-empty-file": true, "immediate": true, "name": true, "iname": true, "print": true,
	"print0": true, "ignoreCrc": true, "crc": true, "safely": true, "fs": true,
}

// commands are those of fs.
var commands = map[string]bool{}

func init() {
	for _, c := range Command(nil).Commands() {
		commands[c.Name()] = true
		for _, a := range c.Aliases {
			commands[a] = true
		}
	}
	commands["help"] = true
}
