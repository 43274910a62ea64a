// Package unnamed makes temporary files that have no name: their room is the file system's
// again when the last descriptor is closed, also when the process is killed.
package unnamed

import (
	"errors"
	"os"
)

// File returns a file for reading and writing in a directory. Where the kernel makes no files
// without a name, it has one, which begins with prefix, until File returns.
func File(dir, prefix string) (*os.File, error) {
	if f, err := open(dir); err == nil {
		return f, nil
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return nil, err
	}
	f, err := os.CreateTemp(dir, prefix+"-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
