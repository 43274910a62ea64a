package hdfs

import (
	"context"
	"io"
	"io/fs"
	"iter"
	"path"
)

// FS is a view of a directory as a file system of package io/fs. Its methods work for as
// long as ctx does.
func (c *Client) FS(ctx context.Context, root string) fs.FS {
	return &view{c, ctx, c.Abs(root)}
}

type view struct {
	c    *Client
	ctx  context.Context
	root string
}

var (
	_ fs.StatFS     = (*view)(nil)
	_ fs.ReadDirFS  = (*view)(nil)
	_ fs.ReadFileFS = (*view)(nil)
	_ fs.SubFS      = (*view)(nil)
)

// at is where a name of io/fs is in HDFS.
func (v *view) at(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return path.Join(v.root, name), nil
}

// named gives an error the name that the caller knows.
func named(err error, name string) error {
	if p, ok := err.(*fs.PathError); ok { //nolint:errorlint // the outermost alone
		return &fs.PathError{Op: p.Op, Path: name, Err: p.Err}
	}
	return err
}

func (v *view) Open(name string) (fs.File, error) {
	at, err := v.at("open", name)
	if err != nil {
		return nil, err
	}
	info, err := v.c.Stat(v.ctx, at)
	if err != nil {
		return nil, named(err, name)
	}
	if info.IsDir() {
		return &openDir{v: v, name: at, info: info.as(name)}, nil
	}
	f, err := v.c.Open(v.ctx, at)
	if err != nil {
		return nil, named(err, name)
	}
	return f, nil
}

// as is the information under the name by which io/fs knows it: the root is ".".
func (i *FileInfo) as(name string) *FileInfo { return &FileInfo{path.Base(name), i.s} }

func (v *view) Stat(name string) (fs.FileInfo, error) {
	at, err := v.at("stat", name)
	if err != nil {
		return nil, err
	}
	info, err := v.c.Stat(v.ctx, at)
	if err != nil {
		return nil, named(err, name)
	}
	return info.as(name), nil
}

func (v *view) ReadFile(name string) ([]byte, error) {
	at, err := v.at("open", name)
	if err != nil {
		return nil, err
	}
	b, err := v.c.ReadFile(v.ctx, at)
	return b, named(err, name)
}

func (v *view) ReadDir(name string) ([]fs.DirEntry, error) {
	at, err := v.at("readdir", name)
	if err != nil {
		return nil, err
	}
	infos, err := v.c.ReadDir(v.ctx, at)
	out := make([]fs.DirEntry, len(infos))
	for i, info := range infos {
		out[i] = fs.FileInfoToDirEntry(info)
	}
	return out, named(err, name)
}

func (v *view) Sub(dir string) (fs.FS, error) {
	at, err := v.at("sub", dir)
	if err != nil {
		return nil, err
	}
	return &view{v.c, v.ctx, at}, nil
}

// openDir is a directory as a file.
type openDir struct {
	v    *view
	name string
	info *FileInfo
	next func() (*FileInfo, error, bool)
	stop func()
}

func (d *openDir) Stat() (fs.FileInfo, error) { return d.info, nil }

func (d *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.name, Err: fs.ErrInvalid}
}

func (d *openDir) Close() error {
	if d.stop != nil {
		d.stop()
	}
	return nil
}

// ReadDir is that of [fs.ReadDirFile].
func (d *openDir) ReadDir(n int) (out []fs.DirEntry, err error) {
	if d.next == nil {
		d.next, d.stop = iter.Pull2(d.v.c.List(d.v.ctx, d.name))
	}
	for n <= 0 || len(out) < n {
		info, err, ok := d.next()
		if !ok {
			if n > 0 && len(out) == 0 {
				return nil, io.EOF
			}
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, fs.FileInfoToDirEntry(info))
	}
	return out, nil
}
