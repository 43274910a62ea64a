package shm

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Who listens in a directory removes the sockets that killed listeners left there, and
// nothing else.
func TestDeadSocketsAreRemoved(t *testing.T) {
	directory := t.TempDir()
	device := openDevice(t, Config{SocketDirectory: directory})
	old := time.Now().Add(-2 * deadAfter)
	age := func(path string) {
		t.Helper()
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	bind := func(name string, kind int) string {
		t.Helper()
		path := filepath.Join(directory, name)
		fd, err := unix.Socket(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dead := bind("verbena-00112233445566ff", unix.SOCK_SEQPACKET)
	age(dead)
	alive, err := device.Listen(t.Context(), "") // removes the dead one
	if err != nil {
		t.Fatal(err)
	}
	defer alive.Close()
	age(alive.Address())
	if _, err := os.Lstat(dead); !os.IsNotExist(err) {
		t.Errorf("a dead socket is left: %v", err)
	}
	kept := []string{
		alive.Address(),
		bind("verbena-0011223344556600", unix.SOCK_SEQPACKET), // young: it may be about to listen
		bind("verbena-service", unix.SOCK_SEQPACKET),
		bind("verbena-001122334455667z", unix.SOCK_SEQPACKET),
		filepath.Join(directory, "verbena-0011223344556601"),
	}
	if err := os.WriteFile(kept[4], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range kept[2:] {
		age(path)
	}
	other, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, path := range kept {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}
