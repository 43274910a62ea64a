package shm

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
)

// hideVariable makes a child cover the directory of the address by an empty one,
// as a container has it that does not share the directory.
const hideVariable = "VERBENA_SHM_HIDE"

func hideDirectory(address string) error {
	if os.Getenv(hideVariable) == "" {
		return nil
	}
	// What is mounted must not show outside of the mount namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("none", filepath.Dir(address), "tmpfs", 0, "size=64k")
}

// needsNamespaces skips where the kernel or the user may not make them.
func needsNamespaces(t *testing.T, flags uintptr) {
	t.Helper()
	if !startsItself() {
		t.Skip(emulated)
	}
	command := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$")
	command.SysProcAttr = namespaces(flags, 0)
	if err := command.Run(); err != nil {
		testneed.Missing(t, "a process in namespaces of its own: "+err.Error(), "the superuser's rights to make namespaces")
	}
}

// namespaces makes a child run in namespaces of its own. The user that it is
// inside a user namespace is this user outside, or other if that is not 0.
func namespaces(flags uintptr, other int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		user := os.Geteuid()
		if other != 0 {
			user = other
		}
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: user, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		a.Credential = &syscall.Credential{NoSetGroups: true}
	}
	return a
}

// Processes of different containers that share the directory of the socket are
// connected, whatever else they do not share.
func TestAcrossNamespaces(t *testing.T) {
	for name, flags := range map[string]uintptr{
		"network":            unix.CLONE_NEWNET,
		"process identities": unix.CLONE_NEWPID,
		"mounts":             unix.CLONE_NEWNS,
		"user":               unix.CLONE_NEWUSER,
		"IPC and host name":  unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		"all of them":        unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUSER | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	} {
		t.Run(name, func(t *testing.T) {
			needsNamespaces(t, flags)
			s, err := openSide(openDevice(t, Config{SocketDirectory: t.TempDir()}))
			if err != nil {
				t.Fatal(err)
			}
			s.t = t
			fill(s.memory.Bytes()[:4096], 5)
			var child *exec.Cmd
			s.start("reader", func(c *exec.Cmd) {
				c.SysProcAttr = namespaces(flags, 0)
				child = c
			})
			// The peer reads this side's memory and writes it back behind.
			s.expect(0, rdma.StatusSuccess)
			m := s.memory.Bytes()
			if !bytes.Equal(m[4096:8192], m[:4096]) {
				t.Fatal("what was read and written back differs")
			}
			// Its death is noticed, without a process identity that this side knows.
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-s.qp.Done():
			case <-time.After(20 * time.Second):
				t.Fatal("the death of a peer in other namespaces goes unnoticed")
			}
			if err := s.qp.Err(); !errors.Is(err, rdma.ErrDisconnected) {
				t.Fatalf("error %v", err)
			}
		})
	}
}

// Where containers cannot be connected, the error says why and what to do.
func TestApartByNamespaces(t *testing.T) {
	for name, each := range map[string]struct {
		flags    uintptr
		other    int
		hide     bool
		abstract bool
		want     []string
	}{
		"an abstract address in another network namespace": {flags: unix.CLONE_NEWNET, abstract: true, want: []string{"network namespace", "path of a socket"}},
		"a directory that is not shared":                   {flags: unix.CLONE_NEWNS, hide: true, want: []string{"not shared", "container"}},
		"another user behind a user namespace":             {flags: unix.CLONE_NEWUSER, other: nobody, want: []string{"user namespace", "AllowUIDs"}},
	} {
		t.Run(name, func(t *testing.T) {
			needsNamespaces(t, each.flags)
			directory := sharedDirectory(t)
			config := Config{}
			if !each.abstract {
				config.SocketDirectory = directory
			}
			l, err := openDevice(t, config).Listen(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if !each.abstract {
				// Whoever finds the socket may speak to it.
				if err := os.Chmod(l.Address(), 0o777); err != nil { //nolint:gosec // of a temporary directory
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			command := exec.CommandContext(ctx, "/proc/self/exe")
			command.Env = append(os.Environ(), partVariable+"=reader", addressVariable+"="+l.Address())
			if each.hide {
				command.Env = append(command.Env, hideVariable+"=1")
			}
			command.SysProcAttr = namespaces(each.flags, each.other)
			var text bytes.Buffer
			command.Stderr = &text
			if err := command.Run(); err == nil {
				t.Fatal("connected")
			}
			for _, want := range each.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("the child says nothing of %q: %s", want, text.String())
				}
			}
		})
	}
}

// sharedDirectory is one that other users can look into.
func sharedDirectory(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for d := directory; d != os.TempDir() && len(d) > 1; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil { //nolint:gosec // another user looks for a socket in there
			t.Fatal(err)
		}
	}
	return directory
}
