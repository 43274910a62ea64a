package shm

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
)

// A process whose own user is not mapped sees every such user as its own. It lets
// none in, and says why.
func TestUnmappedUserIsRefused(t *testing.T) {
	needsNamespaces(t, unix.CLONE_NEWUSER)
	l, err := openDevice(t, Config{}).Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	command := exec.CommandContext(ctx, "/proc/self/exe")
	command.Env = append(os.Environ(), partVariable+"=reader", addressVariable+"="+l.Address())
	command.SysProcAttr = namespaces(unix.CLONE_NEWUSER, 0)
	command.SysProcAttr.UidMappings, command.SysProcAttr.GidMappings = nil, nil
	command.SysProcAttr.Credential = nil
	var text bytes.Buffer
	command.Stderr = &text
	if err := command.Run(); err == nil {
		t.Fatal("connected")
	}
	if !strings.Contains(text.String(), "stands for every user") || !strings.Contains(text.String(), "AllowUIDs") {
		t.Fatalf("the child says: %s", text.String())
	}
}

// Users that are allowed may connect to a socket in a directory, whatever the
// umask, and are known by what the kernel says of them.
func TestOtherUserInDirectory(t *testing.T) {
	change := asNobody(t)
	s, err := openSide(openDevice(t, Config{AllowUIDs: []uint32{nobody}, SocketDirectory: sharedDirectory(t)}))
	if err != nil {
		t.Fatal(err)
	}
	s.t = t
	var child *exec.Cmd
	s.start("reader", func(c *exec.Cmd) {
		change(c)
		child = c
	})
	s.expect(0, rdma.StatusSuccess)
	want := rdma.Credentials{UID: nobody, GID: nobody, PID: child.Process.Pid}
	if got, ok := s.qp.(rdma.CredentialedQueuePair).PeerCredentials(); !ok || got != want {
		t.Errorf("credentials %+v, want %+v", got, want)
	}
}

func TestPeerCredentials(t *testing.T) {
	device := openDevice(t, Config{})
	a, b := newSide(t, device, 4096), newSide(t, device, 4096)
	a.qp, b.qp = a.pair(nil), b.pair(nil)
	if _, ok := a.qp.(rdma.CredentialedQueuePair).PeerCredentials(); ok {
		t.Error("credentials before connecting")
	}
	l, err := device.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := rdma.Credentials{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: os.Getpid()}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(t.Context())
		if err != nil {
			accepted <- err
			return
		}
		if got, ok := r.(rdma.CredentialedRequest).PeerCredentials(); !ok || got != want {
			t.Errorf("the request: credentials %+v, want %+v", got, want)
		}
		accepted <- r.Accept(t.Context(), b.qp, nil)
	}()
	if _, err := a.qp.Connect(t.Context(), l.Address(), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	for _, s := range []*side{a, b} {
		if got, ok := s.qp.(rdma.CredentialedQueuePair).PeerCredentials(); !ok || got != want {
			t.Errorf("credentials %+v, want %+v", got, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for name, each := range map[string]struct {
		config Config
		says   string // empty: it is valid
	}{
		"zero":                 {Config{}, ""},
		"everything":           {Config{SocketDirectory: "/run/verbena", AllowUIDs: []uint32{0, nobody}, AccessTimeout: time.Second, SharedReceiveSlots: 1 << 15}, ""},
		"huge pages":           {Config{HugePages: true}, ""},
		"a long directory":     {Config{SocketDirectory: "/" + strings.Repeat("d", 82)}, "shorter"},
		"a directory that can": {Config{SocketDirectory: "/" + strings.Repeat("d", 81)}, ""},
		"a zero in a name":     {Config{SocketDirectory: "/a\x00b"}, "SocketDirectory"},
		"no user":              {Config{AllowUIDs: []uint32{math.MaxUint32}}, "id -u"},
		"many users":           {Config{AllowUIDs: slices.Repeat([]uint32{1}, 65)}, "65 users"},
		"huge pages of others": {Config{HugePages: true, AllowUIDs: []uint32{1}}, "leave one"},
		"negative time":        {Config{AccessTimeout: -1}, "AccessTimeout"},
		"very long time":       {Config{AccessTimeout: 2 * time.Hour}, "1h0m0s"},
		"negative slots":       {Config{SharedReceiveSlots: -1}, "SharedReceiveSlots"},
		"very many slots":      {Config{SharedReceiveSlots: 1<<15 + 1}, "32768"},
	} {
		err := each.config.Validate()
		_, devices := New(each.config).Devices(t.Context())
		switch {
		case each.says == "":
			if err != nil || errors.Is(devices, rdma.ErrInvalid) {
				t.Errorf("%s: %v, %v", name, err, devices)
			}
		case !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), each.says) || !errors.Is(devices, rdma.ErrInvalid):
			t.Errorf("%s: %v, %v, want one that says %q", name, err, devices, each.says)
		}
	}
	// The longest directory has room for the names of sockets.
	directory := t.TempDir()
	if len(directory) > 80 {
		t.Skip("the temporary directory has too long a name")
	}
	directory = filepath.Join(directory, strings.Repeat("d", 82-len(directory)-1))
	if err := os.Mkdir(directory, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := openDevice(t, Config{SocketDirectory: directory}).Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
