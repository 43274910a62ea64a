package demo

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// flush waits until the file system of a directory has written everything to its disk.
func flush(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write what the file system of %s holds to its disk: %w", dir, err)
	}
	return nil
}
