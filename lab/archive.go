package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"github.com/cavaliergopher/cpio"
)

// An archive is an initial RAM file system in the making. The kernel unpacks
// several in a row, later files replacing earlier ones.
type archive struct {
	w    *cpio.Writer
	seen map[string]bool
}

func newArchive(w io.Writer) *archive {
	return &archive{w: cpio.NewWriter(w), seen: map[string]bool{}}
}

// merged is the place of a file where /bin, /sbin and /lib are links into /usr.
func merged(name string) string {
	name = path.Clean(strings.TrimPrefix(name, "/"))
	for _, d := range []string{"bin/", "sbin/", "lib/", "lib64/"} {
		if strings.HasPrefix(name, d) {
			return "usr/" + name
		}
	}
	return name
}

func (a *archive) directory(name string) error {
	name = path.Clean(strings.TrimPrefix(name, "/"))
	if name == "." || a.seen[name] {
		return nil
	}
	if err := a.directory(path.Dir(name)); err != nil {
		return err
	}
	a.seen[name] = true
	return a.w.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeDir | 0o755, Links: 2})
}

func (a *archive) link(name, target string) error {
	name = path.Clean(strings.TrimPrefix(name, "/"))
	if a.seen[name] {
		return nil
	}
	if err := a.directory(path.Dir(name)); err != nil {
		return err
	}
	a.seen[name] = true
	if err := a.w.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeSymlink | 0o777, Links: 1, Size: int64(len(target))}); err != nil {
		return err
	}
	_, err := io.WriteString(a.w, target)
	return err
}

func (a *archive) bytes(name string, mode fs.FileMode, content []byte) error {
	return a.reader(name, mode, int64(len(content)), strings.NewReader(string(content)))
}

func (a *archive) reader(name string, mode fs.FileMode, size int64, r io.Reader) error {
	name = merged(name)
	if a.seen[name] {
		return nil
	}
	if err := a.directory(path.Dir(name)); err != nil {
		return err
	}
	a.seen[name] = true
	if err := a.w.WriteHeader(&cpio.Header{Name: name, Mode: cpio.TypeReg | cpio.FileMode(mode.Perm()), Links: 1, Size: size}); err != nil {
		return err
	}
	if _, err := io.CopyN(a.w, r, size); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}

// file packs a host file, links followed, at a name.
func (a *archive) file(name, host string) error {
	f, err := os.Open(host)
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("pack %s: not a file", host)
	}
	return a.reader(name, info.Mode(), info.Size(), f)
}

// program packs a host program, or library, at a name, and the libraries that it
// is linked with at theirs.
func (a *archive) program(name, host string) error {
	if err := a.file(name, host); err != nil {
		return err
	}
	out, err := exec.Command("ldd", host).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) { // statically linked, or a script
		return nil
	}
	if err != nil {
		return fmt.Errorf("ldd %s: %w", host, err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if strings.Contains(line, "not found") {
			return fmt.Errorf("pack %s: its library is not there: %s", host, strings.TrimSpace(line))
		}
		for _, f := range strings.Fields(line) {
			if filepath.IsAbs(f) {
				if err := a.file(f, f); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

func (a *archive) close() error { return a.w.Close() }
