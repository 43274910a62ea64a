//go:build unix && !linux

package stream

import "golang.org/x/sys/unix"

func writeNow(fd int, b []byte) (int, error) { return unix.Write(fd, b) }

func readNow(fd int, b []byte) (int, error) { return unix.Read(fd, b) }

type told struct{}

func (told) init(int) {}

func (told) read(fd int, b []byte) (n int, left bool, err error) {
	n, err = readNow(fd, b)
	return n, true, err
}
