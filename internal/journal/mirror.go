package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// mirror is a file system that carries out every change below one directory
// below a second one, too, and returns when both are done. So both have the same
// files. What is read comes from the lead, or from the other one if the lead fails.
//
// A directory that fails a change which the other one has carried out is out of
// service until the next opening. Before the change returns, the survivor's
// marker says so durably: nothing that only one of them has was ever acknowledged
// while a later opening could take the other one for equal.
type mirror struct {
	vfs.FS
	dirs   [2]string
	logger *slog.Logger

	mu     sync.Mutex
	mark   marker // of the live directories
	live   [2]bool
	lead   int
	failed error // why a directory is out of service
}

func (m *mirror) below(dir int, name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, m.dirs[0])
	if !ok || rest != "" && rest[0] != '/' && rest[0] != os.PathSeparator {
		return name, false
	}
	return m.dirs[dir] + rest, true
}

func (m *mirror) state() (live [2]bool, lead int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live, m.lead
}

// fail takes a directory out of service; its error says that this could not be
// made known to a later opening.
func (m *mirror) fail(dir int, why error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.live[dir]:
		return nil
	case !m.live[1-dir]:
		return why
	}
	mark := m.mark
	mark.Generation++
	if err := mark.write(m.FS, m.dirs[1-dir]); err != nil {
		return errors.Join(why, err)
	}
	m.mark = mark
	m.live[dir], m.lead, m.failed = false, 1-dir, why
	mark.Generation = 0
	_ = mark.write(m.FS, m.dirs[dir]) // if it can still be written, it says by itself that it lacks something
	m.logger.Error("journal: one of the two directories fails and is out of service until the next start; the state is kept in the other one alone", "failed", m.dirs[dir], "dir", m.dirs[1-dir], "err", why)
	return nil
}

// both runs a change in each live directory. If one fails that the other has
// carried out, the one is out of service.
func (m *mirror) both(change func(dir int) error) error {
	live, lead := m.state()
	var errs [2]error
	for i := range errs {
		if live[i] {
			errs[i] = change(i)
		}
	}
	return m.outcome(live, lead, errs)
}

func (m *mirror) outcome(live [2]bool, lead int, errs [2]error) error {
	for i, err := range errs {
		if err != nil && live[1-i] && errs[1-i] == nil {
			return m.fail(i, err)
		}
	}
	return errs[lead]
}

func (m *mirror) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return m.open(name, true, func(path string) (vfs.File, error) { return m.FS.Create(path, c) })
}

func (m *mirror) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return m.open(name, true, func(path string) (vfs.File, error) { return m.FS.OpenReadWrite(path, c, opts...) })
}

func (m *mirror) OpenDir(name string) (vfs.File, error) { return m.open(name, true, m.FS.OpenDir) }

func (m *mirror) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return m.open(name, false, func(path string) (vfs.File, error) { return m.FS.Open(path, opts...) })
}

// ReuseForWrite writes over an old file, which is as long in both directories.
func (m *mirror) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if _, ok := m.below(0, oldname); !ok {
		return m.FS.ReuseForWrite(oldname, newname, c)
	}
	return m.open(newname, true, func(path string) (vfs.File, error) {
		for i := range m.dirs {
			if to, _ := m.below(i, newname); to == path {
				from, _ := m.below(i, oldname)
				return m.FS.ReuseForWrite(from, path, c)
			}
		}
		return nil, os.ErrNotExist
	})
}

func (m *mirror) open(name string, write bool, open func(path string) (vfs.File, error)) (vfs.File, error) {
	if _, ok := m.below(0, name); !ok {
		return open(name)
	}
	f := &mirrorFile{m: m, name: name}
	if !write {
		live, lead := m.state()
		path, _ := m.below(lead, name)
		file, err := open(path)
		if err != nil && live[1-lead] && !oserror.IsNotExist(err) {
			lead = 1 - lead
			path, _ = m.below(lead, name)
			file, err = open(path)
		}
		f.files[lead] = file
		return f, err
	}
	err := m.both(func(dir int) (err error) {
		path, _ := m.below(dir, name)
		f.files[dir], err = open(path)
		return err
	})
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (m *mirror) names(change func(dir int, name func(string) string) error) error {
	return m.both(func(dir int) error {
		return change(dir, func(name string) string { path, _ := m.below(dir, name); return path })
	})
}

func (m *mirror) Link(oldname, newname string) error {
	return m.names(func(_ int, at func(string) string) error { return m.FS.Link(at(oldname), at(newname)) })
}

func (m *mirror) Remove(name string) error {
	return m.names(func(_ int, at func(string) string) error { return m.FS.Remove(at(name)) })
}

func (m *mirror) RemoveAll(name string) error {
	return m.names(func(_ int, at func(string) string) error { return m.FS.RemoveAll(at(name)) })
}

func (m *mirror) Rename(oldname, newname string) error {
	return m.names(func(_ int, at func(string) string) error { return m.FS.Rename(at(oldname), at(newname)) })
}

func (m *mirror) MkdirAll(dir string, perm os.FileMode) error {
	return m.names(func(_ int, at func(string) string) error { return m.FS.MkdirAll(at(dir), perm) })
}

// Lock locks in the lead; the owner of the journal has locked both already.
func (m *mirror) Lock(name string) (io.Closer, error) {
	_, lead := m.state()
	path, _ := m.below(lead, name)
	return m.FS.Lock(path)
}

func (m *mirror) List(dir string) ([]string, error) {
	_, lead := m.state()
	path, _ := m.below(lead, dir)
	return m.FS.List(path)
}

func (m *mirror) Stat(name string) (vfs.FileInfo, error) {
	_, lead := m.state()
	path, _ := m.below(lead, name)
	return m.FS.Stat(path)
}

func (m *mirror) Unwrap() vfs.FS { return m.FS }

// mirrorFile is one file in both directories, or, opened for reading, in one.
type mirrorFile struct {
	m     *mirror
	name  string
	files [2]vfs.File // nil where the directory was not live, or is not read from
	buf   []byte      // of Write, which one goroutine at a time calls
}

var _ vfs.File = (*mirrorFile)(nil)

func (f *mirrorFile) both(change func(vfs.File) error) error {
	live, lead := f.m.state()
	var errs [2]error
	for i, file := range f.files {
		if live[i] = live[i] && file != nil; live[i] {
			errs[i] = change(file)
		}
	}
	return f.outcome(live, lead, errs)
}

func (f *mirrorFile) outcome(live [2]bool, lead int, errs [2]error) error {
	if !live[lead] {
		lead = 1 - lead
	}
	if !live[lead] {
		return fmt.Errorf("%s: its directory is out of service: %w", f.name, os.ErrClosed)
	}
	return f.m.outcome(live, lead, errs)
}

// sync runs a change that waits for the disk in both directories at once.
func (f *mirrorFile) sync(change func(vfs.File) error) error {
	live, lead := f.m.state()
	var errs [2]error
	var wg sync.WaitGroup
	for i, file := range f.files {
		if live[i] = live[i] && file != nil; live[i] && i != lead {
			wg.Go(func() { errs[i] = change(file) })
		}
	}
	if live[lead] {
		errs[lead] = change(f.files[lead])
	}
	wg.Wait()
	return f.outcome(live, lead, errs)
}

// one is the file that is read from.
func (f *mirrorFile) one() vfs.File {
	_, lead := f.m.state()
	if f.files[lead] == nil {
		lead = 1 - lead
	}
	return f.files[lead]
}

func (f *mirrorFile) Close() error {
	var errs []error
	for _, file := range f.files {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	live, lead := f.m.state()
	if len(errs) == 2 && errs[lead] == nil && live[lead] {
		return nil // what the other one has failed to write, a sync has noticed
	}
	return errors.Join(errs...)
}

func (f *mirrorFile) Read(p []byte) (int, error) { return f.one().Read(p) }

// ReadAt reads from the other directory what can't be read from the one.
func (f *mirrorFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.one().ReadAt(p, off)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	live, _ := f.m.state()
	for i := range f.m.dirs {
		if !live[i] || f.files[i] != nil {
			continue
		}
		path, _ := f.m.below(i, f.name)
		other, err := f.m.FS.Open(path)
		if err != nil {
			continue
		}
		n, err := other.ReadAt(p, off)
		other.Close()
		if err == nil || errors.Is(err, io.EOF) {
			return n, err
		}
	}
	return n, err
}

func (f *mirrorFile) Write(p []byte) (n int, err error) {
	return len(p), f.write(p, func(file vfs.File, p []byte) error { _, err := file.Write(p); return err })
}

func (f *mirrorFile) WriteAt(p []byte, off int64) (n int, err error) {
	return len(p), f.write(p, func(file vfs.File, p []byte) error { _, err := file.WriteAt(p, off); return err })
}

// write writes the same bytes twice. A vfs.File may change them while it writes,
// so the first one gets a copy.
func (f *mirrorFile) write(p []byte, write func(vfs.File, []byte) error) error {
	first := f.files[0] != nil && f.files[1] != nil
	return f.both(func(file vfs.File) error {
		if !first {
			return write(file, p)
		}
		first = false
		f.buf = append(f.buf[:0], p...)
		return write(file, f.buf)
	})
}

func (f *mirrorFile) Preallocate(offset, length int64) error {
	return f.both(func(file vfs.File) error { return file.Preallocate(offset, length) })
}

func (f *mirrorFile) Stat() (vfs.FileInfo, error) { return f.one().Stat() }

func (f *mirrorFile) Sync() error { return f.sync(vfs.File.Sync) }

func (f *mirrorFile) SyncData() error { return f.sync(vfs.File.SyncData) }

// SyncTo says that all is synced only if both files are.
func (f *mirrorFile) SyncTo(length int64) (bool, error) {
	full := true
	err := f.both(func(file vfs.File) error {
		whole, err := file.SyncTo(length)
		full = full && whole
		return err
	})
	return full && err == nil, err
}

func (f *mirrorFile) Prefetch(offset, length int64) error { return f.one().Prefetch(offset, length) }

// Fd is none: a write to it would miss one of the directories.
func (f *mirrorFile) Fd() uintptr { return vfs.InvalidFd }
