package verbena

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena/internal/testneed"
)

// inNetworkOfItsOwn gives a process that is to be started a network namespace, and where
// that takes it a user namespace in which its user stays what it is.
func inNetworkOfItsOwn() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		a.Cloneflags |= syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
	return a
}

// A server in another network namespace of this host is found out by the first hello:
// each dial makes one connection, tries no device that cannot reach it, and warns nobody.
func TestServerInAnotherNetworkNamespace(t *testing.T) {
	w := worldOf(t, "shm")
	cmd := peerCommand(w, listenVariable+"=unix:"+filepath.Join(t.TempDir(), "s"))
	cmd.SysProcAttr = inNetworkOfItsOwn()
	var serverLog, clientLog lockedBuffer
	cmd.Stderr = &serverLog
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		testneed.Missing(t, "a process in a network namespace of its own: "+err.Error(), "the superuser's rights to make namespaces")
	}
	addr := awaitPeer(t, cmd, out)
	var connections atomic.Int32
	_, providers := w.providers(t)
	client := newRuntime(t, Config{
		Logger: slog.New(slog.NewTextHandler(&clientLog, nil)),
		Connect: func(ctx context.Context, network, address string) (net.Conn, error) {
			connections.Add(1)
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}, providers)
	ctx := testContext(t)
	for dials := range int32(3) {
		e, err := client.Dial(ctx, addr, "test/1", DialConfig{})
		if err != nil {
			t.Fatal(err)
		}
		s := e.Selection()
		if s.Transport != TransportTCP || !s.SameHost || s.Passing() || !strings.Contains(s.candidate("shm").Reason, otherNet) {
			t.Errorf("chose %s", s)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if n := connections.Load(); n != dials+1 {
			t.Errorf("%d connections by %d dials", n, dials+1)
		}
	}
	if n := client.firstDevice("shm").count.failed.Load(); n != 0 {
		t.Errorf("the device was tried %d times", n)
	}
	if log := clientLog.String() + serverLog.String(); strings.Contains(log, "WARN") {
		t.Errorf("somebody is warned: %s", log)
	}
}
