package dataset

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// special are the characters that make a name a pattern.
const special = `*?[{\`

// Expand returns the files that names of inputs stand for. A directory stands for the files in it, and a pattern for all that
// match, both in the order of the names and without those that begin with _ or a dot, as in Hadoop. A directory within a
// directory is an error, and so is a pattern that matches nothing. A name that is neither stands for itself, whether it is there or
// not.
func (f *Files) Expand(ctx context.Context, names []string) (files []string, err error) {
	for _, name := range names {
		found := []string{name}
		if f.Instead[name] == "" {
			if found, err = f.expand(ctx, name); err != nil {
				return nil, err
			}
		}
		files = append(files, found...)
	}
	return files, nil
}

// A place is a file system, and how files in it are named.
type place struct {
	root    fs.FS
	path    string // from the root on, without a slash before it
	pattern string // the path, if it is one of a pattern
	dir     string // what the path is called as a directory
	name    func(path string) string
}

// local is this host's file system. Unlike [os.DirFS] it takes names that are not UTF-8.
type local struct{}

func (local) Open(name string) (fs.File, error)          { return os.Open("/" + name) }
func (local) Stat(name string) (fs.FileInfo, error)      { return os.Stat("/" + name) }
func (local) ReadDir(name string) ([]fs.DirEntry, error) { return os.ReadDir("/" + name) }

// literal writes a path as a pattern of it alone.
var literal = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `{`, `\{`, `}`, `\}`, `\`, `\\`)

func (f *Files) place(ctx context.Context, name string) (*place, error) {
	if address, file, ok := remote(name); ok {
		c, err := f.client(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		below := below(file)
		return &place{c.FS(ctx, "/"), below, below, scheme + address + strings.TrimRight(file, "/"), func(path string) string { return scheme + address + "/" + path }}, nil
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	file, pattern := name, name
	if !filepath.IsAbs(name) {
		file, pattern = filepath.Join(here, name), literal.Replace(here)+"/"+name
	}
	return &place{local{}, below(file), below(pattern), strings.TrimRight(name, "/"), func(path string) string {
		if !filepath.IsAbs(name) {
			if rest, ok := strings.CutPrefix("/"+path, here+"/"); ok {
				return rest
			}
		}
		return "/" + path
	}}, nil
}

// below is a path as package io/fs has it.
func below(file string) string {
	if file = path.Clean("/" + file)[1:]; file == "" {
		return "."
	}
	return file
}

func (f *Files) expand(ctx context.Context, name string) ([]string, error) {
	p, err := f.place(ctx, name)
	if err != nil {
		return nil, err
	}
	info, err := fs.Stat(p.root, p.path)
	switch {
	case err == nil && info.IsDir():
		return p.directory(p.path, p.dir)
	case err == nil || f.Glob == nil || !strings.ContainsAny(name, special):
		return []string{name}, nil // and Open tells why not
	}
	matches, err := f.Glob(p.root, "/"+p.pattern)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var files []string
	some := false
	for _, match := range matches {
		if match = below(match); hidden(match) && !hidden(p.path) {
			continue
		}
		some = true
		info, err := fs.Stat(p.root, match)
		if err == nil && info.IsDir() {
			inside, err := p.directory(match, p.name(match))
			if err != nil {
				return nil, err
			}
			files = append(files, inside...)
			continue
		}
		files = append(files, p.name(match))
	}
	if !some {
		return nil, fmt.Errorf("%s: no file matches this pattern: %w", name, fs.ErrNotExist)
	}
	return files, nil
}

// hidden tells whether a file is not for readers of its directory: Hadoop's jobs leave some.
func hidden(file string) bool {
	return strings.HasPrefix(path.Base(file), "_") || strings.HasPrefix(path.Base(file), ".")
}

// directory returns the files in a directory, which is called name.
func (p *place) directory(dir, name string) (files []string, err error) {
	entries, err := fs.ReadDir(p.root, dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, e := range entries {
		if hidden(e.Name()) {
			continue
		}
		info, err := fs.Stat(p.root, path.Join(dir, e.Name())) // of what a link is to
		if err != nil {
			return nil, fmt.Errorf("%s/%s: %w", name, e.Name(), err)
		}
		if info.IsDir() {
			return nil, fmt.Errorf("%s has a directory %s in it, which is no file: name what is to be read, such as %[1]s/*", name, e.Name())
		}
		files = append(files, name+"/"+e.Name())
	}
	return files, nil
}
