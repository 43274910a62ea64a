package dataset

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/verbena-data/verbena/hdfs"
)

// An Output is a file that the processes of a job write. One of them, the owner, calls
// Create when the job begins, Prepare before the others call Part, and Commit when all have
// closed theirs, or Abort.
type Output interface {
	// Create makes the file under its temporary name, with room for about size bytes, or 0 if
	// nobody knows yet how many. So who may not write there learns it before the work, and a
	// full disk shows then. HDFS keeps no room for it, but tells how much is left.
	Create(ctx context.Context, size int64) error
	// Prepare gives the file, which Create has made, its size in bytes, and the room for it.
	Prepare(ctx context.Context, size int64) error
	// Part returns a writer of the bytes from offset on, of which there are length. Parts
	// are numbered in order. Close has them on the disk. When ctx ends, Close fails with its
	// cause, soon: what was written is left to the system then.
	Part(ctx context.Context, part int, offset, length int64) (io.WriteCloser, error)
	// Commit gives the file its name, in place of what has it.
	Commit(ctx context.Context, parts int) error
	// Abort removes what there is. It may be called by all, any number of times, and
	// after Commit does nothing.
	Abort(ctx context.Context) error
}

// NewID returns what tells the temporary files of one job from another's.
func NewID() string { return rand.Text()[:10] }

// Output returns the output of that name. All processes of a job give the same id.
func (f *Files) Output(ctx context.Context, name, id string) (Output, error) {
	if address, file, ok := remote(name); ok {
		c, err := f.client(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		switch info, err := c.Stat(ctx, file); {
		case err == nil && info.IsDir():
			return nil, fmt.Errorf("%s is a directory: name a file in it", name)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
		dir, base := path.Split(file)
		return &remoteOutput{c, file, path.Join(dir, "_"+base+"."+id)}, nil
	}
	if _, ok := Descriptor(name); ok {
		return nil, fmt.Errorf("%s is an open file, in whose place no other can be put: name a file", name)
	}
	switch info, err := os.Stat(name); {
	case err == nil && info.IsDir():
		return nil, fmt.Errorf("%s is a directory: name a file in it", name)
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file: parts of it can't be written in parallel", name)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real // the link stays
	}
	dir, base := filepath.Split(name)
	return &localOutput{name, filepath.Join(dir, "."+base+"."+id+".partial")}, nil
}

type localOutput struct{ name, partial string }

func (o *localOutput) Create(_ context.Context, size int64) (err error) {
	f, err := os.OpenFile(o.partial, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if info, err := os.Stat(o.name); err == nil {
		if err := f.Chmod(info.Mode().Perm()); err != nil {
			return err
		}
	}
	return o.reserve(f, size)
}

func (o *localOutput) Prepare(_ context.Context, size int64) (err error) {
	f, err := os.OpenFile(o.partial, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(size); err != nil {
		return err
	}
	return o.reserve(f, size)
}

// reserve gives a file that is not longer its length and the room for it.
func (o *localOutput) reserve(f *os.File, size int64) error {
	if size == 0 {
		return nil
	}
	if err := allocate(f, size); err != nil {
		return fmt.Errorf("making room for %d bytes at %s: %w", size, o.name, err)
	}
	return nil
}

// writeBehind is after how many bytes the kernel is told to begin writing them to the disk.
const writeBehind = 8 << 20

type localPart struct {
	ctx              context.Context
	file             *os.File
	begin            int64
	at, end, pending int64
}

func (o *localOutput) Part(ctx context.Context, _ int, offset, length int64) (io.WriteCloser, error) {
	f, err := os.OpenFile(o.partial, os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	return &localPart{ctx: ctx, file: f, begin: offset, at: offset, end: offset + length}, nil
}

func (p *localPart) Write(b []byte) (int, error) {
	if int64(len(b)) > p.end-p.at {
		return 0, fmt.Errorf("%s: more is written than the part holds", p.file.Name())
	}
	n, err := p.file.WriteAt(b, p.at)
	p.at += int64(n)
	if p.pending += int64(n); p.pending >= writeBehind {
		startWriting(p.file, p.at-p.pending, p.pending)
		p.pending = 0
	}
	return n, err
}

// Close has what was written on the disk, unless ctx ends before.
func (p *localPart) Close() error {
	return errors.Join(p.sync(), p.file.Close())
}

// syncAtOnce is how many bytes come to the disk between two looks at the context: a slow disk takes a second for them.
const syncAtOnce = 64 << 20

func (p *localPart) sync() error {
	for from := p.begin; from < p.at && p.ctx.Err() == nil; from += syncAtOnce {
		if err := finishWriting(p.file, from, min(syncAtOnce, p.at-from)); err != nil {
			return err
		}
	}
	if p.ctx.Err() != nil {
		return context.Cause(p.ctx)
	}
	return p.file.Sync()
}

func (o *localOutput) Commit(context.Context, int) error {
	if err := os.Rename(o.partial, o.name); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(o.name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (o *localOutput) Abort(context.Context) error {
	if err := os.Remove(o.partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// remoteOutput writes a file for each part, since one client at a time writes a file of
// HDFS; in the end the NameNode makes one file of them, which moves no bytes.
type remoteOutput struct {
	client    *hdfs.Client
	name, dir string
}

func (o *remoteOutput) Create(ctx context.Context, size int64) error {
	if err := o.client.MkdirAll(ctx, o.dir, 0o777); err != nil {
		return err
	}
	// A NameNode without DataNodes, or which does not tell, is no reason to refuse.
	if s, err := o.client.Status(ctx); err == nil && s.Capacity > 0 && s.Remaining < size {
		return fmt.Errorf("%s: HDFS has %d bytes left, the output needs %d: %w", o.name, s.Remaining, size, syscall.ENOSPC)
	}
	return nil
}

func (o *remoteOutput) Prepare(context.Context, int64) error { return nil }

func (o *remoteOutput) part(n int) string { return fmt.Sprintf("%s/part-%05d", o.dir, n) }

func (o *remoteOutput) Part(ctx context.Context, part int, _, length int64) (io.WriteCloser, error) {
	if length == 0 && part > 0 {
		return nothing{}, nil
	}
	w, err := o.client.Create(ctx, o.part(part), hdfs.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// nothing is a part without bytes. It leaves no file: the NameNode joins none that is empty.
type nothing struct{}

func (nothing) Write(b []byte) (int, error) {
	if len(b) > 0 {
		return 0, errors.New("more is written than the part holds")
	}
	return 0, nil
}
func (nothing) Close() error { return nil }

func (o *remoteOutput) Commit(ctx context.Context, parts int) error {
	var files []string
	for n := range parts {
		info, err := o.client.Stat(ctx, o.part(n))
		switch {
		case errors.Is(err, fs.ErrNotExist) && n > 0:
		case err != nil:
			return err
		case info.Size() > 0:
			files = append(files, o.part(n))
		}
	}
	whole := o.part(0)
	if len(files) > 0 {
		whole = files[0]
	}
	if len(files) > 1 {
		if err := o.client.Concat(ctx, whole, files[1:]...); err != nil {
			return err
		}
	}
	if err := o.client.Rename(ctx, whole, o.name, true); err != nil {
		return err
	}
	return o.Abort(ctx)
}

func (o *remoteOutput) Abort(ctx context.Context) error {
	// Who may not remove the directory could not make it.
	if err := o.client.RemoveAll(ctx, o.dir); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}
