package fscmd

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/hdfs"
)

// expanding is run with patterns among the arguments replaced by the paths that match
// them, as hdfs dfs does: *, ?, [a-z], [^a-z] and {one,two}. The first arguments, and the
// last ones, are as they are.
func expanding(run runner, first, last int) runner {
	return func(f func(context.Context, *session, []string) error) func(c *cobra.Command, args []string) error {
		return run(func(ctx context.Context, s *session, args []string) error {
			if len(args) < first+last {
				return f(ctx, s, args)
			}
			out := append([]string(nil), args[:first]...)
			for _, arg := range args[first : len(args)-last] {
				found, err := s.glob(ctx, arg)
				if err != nil {
					return err
				}
				out = append(out, found...)
			}
			return f(ctx, s, append(out, args[len(args)-last:]...))
		})
	}
}

// eachMatch is each of the paths that patterns stand for.
func (s *session) eachMatch(ctx context.Context, args []string, f func(name string) error) error {
	var all []string
	for _, arg := range args {
		found, err := s.glob(ctx, arg)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	return s.each(all, func(name string) error { return f(s.path(name)) })
}

// glob returns the paths that match a pattern; what is no pattern is itself.
func (s *session) glob(ctx context.Context, arg string) ([]string, error) {
	if !strings.ContainsAny(arg, `*?[{\`) {
		return []string{arg}, nil
	}
	pattern := s.path(arg)
	found, err := globIn(s.client.FS(ctx, "/"), pattern)
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

// globIn finds what matches a pattern below the root of a file system.
func globIn(root fs.FS, pattern string) (out []string, err error) {
	alternatives, err := braces(pattern)
	if err != nil {
		return nil, err
	}
	for _, p := range alternatives {
		p = strings.ReplaceAll(p, "[!", "[^") // Java knows both
		found, err := fs.Glob(root, strings.TrimPrefix(p, "/"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pattern, err)
		}
		for _, name := range found {
			if name = "/" + name; !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	if len(out) > 0 {
		return out, nil
	}
	// A search passes over what it can't read; here it matters why nothing was found.
	fixed := strings.TrimPrefix(path.Dir(pattern[:strings.IndexAny(pattern, `*?[{\`)]+"x"), "/")
	if fixed == "" {
		fixed = "."
	}
	if _, err := fs.ReadDir(root, fixed); err != nil {
		return nil, err
	}
	return nil, &fs.PathError{Op: "find", Path: pattern, Err: fs.ErrNotExist}
}

// mostAlternatives bounds what the braces of one pattern stand for, and what is between.
const mostAlternatives = 10_000

// braces returns what a pattern with {one,two} in it stands for. A brace that is not
// closed is an error, as in Java.
func braces(pattern string) ([]string, error) {
	var out []string
	todo := []string{pattern}
	for steps := 0; len(todo) > 0; steps++ {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		open, end := innermost(p)
		switch {
		case open >= 0 && end < 0:
			return nil, fmt.Errorf("%s: a brace is not closed: %w", pattern, path.ErrBadPattern)
		case open < 0:
			out = append(out, p)
			continue
		case steps+len(todo) > mostAlternatives:
			return nil, fmt.Errorf("%s stands for more than %d patterns", pattern, mostAlternatives)
		}
		choices := strings.Split(p[open+1:end], ",")
		for _, choice := range slices.Backward(choices) {
			todo = append(todo, p[:open]+choice+p[end+1:])
		}
	}
	return out, nil
}

// innermost returns where the first pair of braces is that has no other in it. open is -1
// if there is none, end if it is not closed.
func innermost(pattern string) (open, end int) {
	open = -1
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '{':
			open = i
		case '}':
			if open >= 0 {
				return open, i
			}
		}
	}
	return open, -1
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
