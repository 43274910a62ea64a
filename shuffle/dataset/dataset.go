// Package dataset has a job's files: inputs that many processes read in parallel, and one
// output that they write in parallel, each a range of it. They lie on a file system that all
// processes see, or in HDFS, where hdfs://HOST:PORT/PATH names them and hdfs:///PATH is at
// the usual NameNode.
//
// An output appears under its name when it is whole and on the disk, and not before: a job
// that fails leaves nothing there, and what was there stays.
package dataset

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/verbena-data/verbena/hdfs"
)

// scheme begins the names of files in HDFS.
const scheme = "hdfs://"

// Files opens and makes files. It may be used concurrently.
type Files struct {
	// Connect returns a client of the NameNode at HOST:PORT, or of the usual one for an
	// empty address. It may be nil: then there is no HDFS.
	Connect func(ctx context.Context, address string) (*hdfs.Client, error)
	// Instead has the paths of inputs that are elsewhere than their names say, such as a copy of what came through a pipe. It may
	// be nil.
	Instead map[string]string
	// Glob returns the paths below the root of a file system, each with a slash before it, that match a pattern. It may be nil:
	// then there are no patterns.
	Glob func(root fs.FS, pattern string) ([]string, error)

	mu      sync.Mutex
	clients map[string]*hdfs.Client
}

// Close ends the connections to HDFS.
func (f *Files) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, c := range f.clients {
		errs = append(errs, c.Close())
	}
	f.clients = nil
	return errors.Join(errs...)
}

// remote splits the name of a file in HDFS.
func remote(name string) (address, path string, ok bool) {
	rest, ok := strings.CutPrefix(name, scheme)
	if !ok {
		return "", "", false
	}
	i := strings.IndexByte(rest, '/')
	if i < 0 {
		return rest, "/", true
	}
	return rest[:i], rest[i:], true
}

// Remote tells whether a name is one of HDFS.
func Remote(name string) bool { return strings.HasPrefix(name, scheme) }

func (f *Files) client(ctx context.Context, address string) (*hdfs.Client, error) {
	if f.Connect == nil {
		return nil, errors.New("there is no HDFS here")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.clients[address]; c != nil {
		return c, nil
	}
	c, err := f.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	if f.clients == nil {
		f.clients = map[string]*hdfs.Client{}
	}
	f.clients[address] = c
	return c, nil
}

// An Input is an open file. ReadAt may be called concurrently.
type Input struct {
	io.ReaderAt
	io.Closer
	name    string
	size    int64
	version func(context.Context) (version, error)
	opened  version // at first
}

// Name is how the file was named.
func (i *Input) Name() string { return i.name }

// Size is the file's length in bytes when it was opened.
func (i *Input) Size() int64 { return i.size }

// Open opens a file. ctx bounds all reads of a file in HDFS.
func (f *Files) Open(ctx context.Context, name string) (*Input, error) {
	if address, path, ok := remote(name); ok {
		c, err := f.client(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		now := remoteVersion(c, path)
		opened, err := now(ctx)
		if err != nil {
			return nil, err
		}
		r, err := c.Open(ctx, path)
		if err != nil {
			return nil, err
		}
		return &Input{r, r, name, r.Size(), now, opened}, nil
	}
	path := name
	if other := f.Instead[name]; other != "" {
		path = other
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // to open a named pipe would wait for who writes to it
		return nil, fmt.Errorf("%s is not a regular file: its parts can't be read in parallel", name)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Input{file, file, name, info.Size(), fileVersion(file), version{0, info.Size(), info.ModTime().UnixNano()}}, nil
}

// A Span is a part of an input.
type Span struct {
	Input    *Input
	From, To int64
}

// Split divides inputs into parts of about the same length, and returns the spans of one of
// them. Each byte is in one span. unit is what spans are a multiple of; inputs that are none
// are an error.
func Split(inputs []*Input, part, parts int, unit int64) (spans []Span, err error) {
	var total int64
	for _, i := range inputs {
		if i.size%unit != 0 {
			return nil, fmt.Errorf("%s has %d bytes, which is no multiple of %d: it ends within a record", i.name, i.size, unit)
		}
		total += i.size / unit
	}
	from, to := share(total, part, parts)*unit, share(total, part+1, parts)*unit
	var at int64
	for _, i := range inputs {
		low, high := max(from, at)-at, min(to, at+i.size)-at
		if low < high {
			spans = append(spans, Span{i, low, high})
		}
		at += i.size
	}
	return spans, nil
}

// share is total*part/parts without overflow.
func share(total int64, part, parts int) int64 {
	n, p := int64(parts), int64(part)
	return total/n*p + total%n*p/n
}
