package fscmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// expanding is run with patterns among the arguments replaced by the paths that match
// them, as hdfs dfs does: *, ?, [a-z], [^a-z] and {one,two}. The first arguments, and the
// last ones, are as they are. Without any argument, none stands for one. A pattern that
// matches nothing is told of, and the command goes on with the others.
func expanding(run runner, first, last int, none string) runner {
	return func(f func(context.Context, *session, []string) error) func(c *cobra.Command, args []string) error {
		return run(func(ctx context.Context, s *session, args []string) error {
			if len(args) == 0 && none != "" {
				args = []string{none}
			}
			if len(args) < first+last {
				return f(ctx, s, args)
			}
			var failed failures
			out := append([]string(nil), args[:first]...)
			out = append(out, s.expand(ctx, args[first:len(args)-last], false, &failed)...)
			failed.add(s, f(ctx, s, append(out, args[len(args)-last:]...)))
			return failed.err()
		})
	}
}

// expand returns the paths that patterns stand for, and tells of those that stand for none.
// absent says that they need not.
func (s *session) expand(ctx context.Context, args []string, absent bool, failed *failures) (out []string) {
	for _, arg := range args {
		found, err := s.glob(ctx, arg)
		if err != nil && !(absent && errors.Is(err, fs.ErrNotExist)) {
			failed.add(s, err)
		}
		out = append(out, found...)
	}
	return out
}

// eachMatch is each of the paths that patterns stand for.
func (s *session) eachMatch(ctx context.Context, args []string, f func(name string) error) error {
	var failed failures
	found := s.expand(ctx, args, false, &failed)
	failed.add(s, s.each(found, func(name string) error { return f(s.path(name)) }))
	return failed.err()
}

// special are the characters of a pattern.
const special = `*?[{\`

// glob returns the paths that match a pattern; what is no pattern is itself, without the
// backslashes of characters that are quoted.
func (s *session) glob(ctx context.Context, arg string) ([]string, error) {
	if !strings.ContainsAny(arg, special) {
		return []string{arg}, nil
	}
	found, err := globIn(s.client.FS(ctx, "/"), s.path(arg))
	if err == nil && found == nil {
		return []string{unescaped([]rune(arg))}, nil
	}
	switch at := strings.Index(strings.TrimPrefix(arg, "hdfs://"), "/"); {
	case strings.HasPrefix(arg, "hdfs://"):
		for i := range found {
			found[i] = arg[:len("hdfs://")+max(at, 0)] + found[i]
		}
	case !strings.HasPrefix(arg, "/"):
		for i := range found {
			found[i] = strings.TrimPrefix(found[i], s.path(".")+"/")
		}
	}
	return found, err
}

// globIn finds what matches a pattern below the root of a file system, in the order of the
// paths. It finds nothing, and that is no error, if the pattern is but a name that is
// not there. As in Hadoop, a directory that can't be read on the way is an error.
func globIn(root fs.FS, pattern string) (out []string, err error) {
	alternatives, err := braces(pattern)
	if err != nil {
		return nil, err
	}
	wild := len(alternatives) > 1
	for _, p := range alternatives {
		found, w, err := matching(root, p)
		if err != nil {
			return nil, err
		}
		wild = wild || w
		out = append(out, found...)
	}
	slices.Sort(out)
	out = slices.Compact(out) // several alternatives may match one
	if len(out) == 0 && wild {
		return nil, &fs.PathError{Op: "find", Path: pattern, Err: fs.ErrNotExist}
	}
	return out, nil
}

// matching finds what matches a pattern that has no slash in braces. wild tells whether it
// may match anything but a name.
func matching(root fs.FS, pattern string) (out []string, wild bool, err error) {
	type candidate struct {
		name string // for package io/fs
		dir  bool
	}
	now := []candidate{{".", true}}
	for part := range strings.SplitSeq(pattern, "/") {
		if part == "" {
			continue
		}
		m, err := compile(part)
		if err != nil {
			return nil, false, fmt.Errorf("Illegal file pattern: %w", err) //nolint:staticcheck // Hadoop's words
		}
		wild = wild || m.wild
		var next []candidate
		for _, c := range now {
			if !c.dir {
				continue
			}
			if !m.wild {
				name := path.Join(c.name, m.name)
				info, err := fs.Stat(root, name)
				if err == nil {
					next = append(next, candidate{name, info.IsDir()})
				} else if !errors.Is(err, fs.ErrNotExist) {
					return nil, wild, err
				}
				continue
			}
			entries, err := fs.ReadDir(root, c.name)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, wild, err
			}
			for _, e := range entries {
				if m.matches(e.Name()) {
					name := path.Join(c.name, e.Name())
					next = append(next, candidate{name, isDir(root, name, e)})
				}
			}
		}
		now = next
	}
	for _, c := range now {
		out = append(out, path.Clean("/"+c.name))
	}
	return out, wild, nil
}

// isDir tells whether an entry of a directory is one, or a link to one.
func isDir(root fs.FS, name string, e fs.DirEntry) bool {
	if e.Type()&fs.ModeSymlink == 0 {
		return e.IsDir()
	}
	info, err := fs.Stat(root, name)
	return err == nil && info.IsDir()
}

// A matcher is a pattern of names: a regular expression, as in Hadoop's GlobPattern.
type matcher struct {
	re   *regexp.Regexp
	name string // that a pattern stands for which is not wild
	wild bool
}

func (m *matcher) matches(name string) bool { return m.re.MatchString(name) }

// compile reads a pattern of names. The errors are in Hadoop's words.
func compile(pattern string) (*matcher, error) {
	bad := func(what string, at int) error {
		return fmt.Errorf("error parsing regexp: %s at pos %d: `%s`", what, at, pattern)
	}
	runes := []rune(pattern)
	var re strings.Builder
	m := &matcher{}
	groups, set := 0, false
	for i := 0; i < len(runes); i++ {
		c := runes[i]
		switch {
		case c == '\\' && i+1 == len(runes):
			return nil, bad("Missing escaped character", len(runes))
		case c == '\\':
			i++
			re.WriteString(escaped(runes[i]))
		case set && c == '[':
			return nil, bad("Unclosed character class", i)
		case set && c == '!' && runes[i-1] == '[':
			re.WriteByte('^')
		case set:
			set = c != ']'
			re.WriteRune(c)
		case c == '[':
			set, m.wild = true, true
			re.WriteRune(c)
		case c == '*':
			m.wild = true
			re.WriteString(".*")
		case c == '?':
			m.wild = true
			re.WriteByte('.')
		case c == '{':
			m.wild = true
			groups++
			re.WriteString("(?:")
		case c == ',' && groups > 0:
			re.WriteByte('|')
		case c == '}' && groups > 0:
			groups--
			re.WriteByte(')')
		case c == ']':
			re.WriteRune(c) // that may end a set which begins with another one
		default:
			re.WriteString(escaped(c))
		}
	}
	switch {
	case set:
		return nil, bad("Unclosed character class", len(runes))
	case groups > 0:
		return nil, bad("Unclosed group", len(runes))
	}
	var err error
	m.name = unescaped(runes)
	m.re, err = regexp.Compile("^(?s:" + re.String() + ")$")
	return m, err
}

// escaped is a character that stands for itself, in a set as well.
func escaped(c rune) string {
	if strings.ContainsRune(`\.+*?()|[]{}^$-&~`, c) {
		return `\` + string(c)
	}
	return string(c)
}

// unescaped is a pattern without the backslashes before characters.
func unescaped(runes []rune) string {
	var b strings.Builder
	for i := 0; i < len(runes); i++ {
		if runes[i] == '\\' && i+1 < len(runes) {
			i++
		}
		b.WriteRune(runes[i])
	}
	return b.String()
}

// mostAlternatives bounds what the braces of one pattern stand for.
const mostAlternatives = 10_000

// braces returns the patterns that one stands for with slashes in braces: {a/b,c}. Braces
// without slashes stay, as each is within one name.
func braces(pattern string) ([]string, error) {
	var out []string
	todo := []string{pattern}
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		at := slashed(p)
		if at == nil {
			out = append(out, p)
			continue
		}
		if len(out)+len(todo)+len(at) > mostAlternatives {
			return nil, fmt.Errorf("%s stands for more than %d patterns", pattern, mostAlternatives)
		}
		before, after := p[:at[0]], p[at[len(at)-1]+1:]
		for i := len(at) - 2; i >= 0; i-- {
			todo = append(todo, before+p[at[i]+1:at[i+1]]+after)
		}
	}
	return out, nil
}

// slashed returns where the first outermost braces are that have a slash in them: the opening
// one, the commas and the closing one. It is nil if there are none.
func slashed(pattern string) (at []int) {
	depth, slash := 0, false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case c == '{':
			if depth++; depth == 1 {
				at, slash = []int{i}, false
			}
		case c == '}' && depth > 0:
			if depth--; depth > 0 {
				continue
			}
			if at = append(at, i); slash {
				return at
			}
		case c == ',' && depth == 1:
			at = append(at, i)
		case c == '/':
			slash = true
		}
	}
	return nil
}

// eachFile opens every file in turn.
func (s *session) eachFile(ctx context.Context, args []string, f func(*hdfs.FileReader) error) error {
	return s.each(args, func(name string) error {
		r, err := s.openFile(ctx, s.path(name))
		if err != nil {
			return err
		}
		defer r.Close()
		return f(r)
	})
}
