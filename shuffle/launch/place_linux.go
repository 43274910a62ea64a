package launch

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// newPlace is where the processes that [Local] starts meet: a socket whose name is in no directory, so that nothing is left when all are
// killed. Everybody may dial such a socket, and [checkPeer] asks who does.
func newPlace() (place string, remove func() error, err error) {
	return unixPrefix + "@verbena-job-" + rand.Text(), func() error { return nil }, nil
}

// checkPeer makes sure that a process of this user is at the other end of a socket that has a name in no directory.
func checkPeer(c net.Conn, kind, place string) error {
	if !isAbstract(kind, place) {
		return nil
	}
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	return checkUser(int(peer.Uid), os.Geteuid(), place)
}

func checkUser(theirs, own int, place string) error {
	if theirs != own {
		return fmt.Errorf("user %d is at the other end of %s, not this user, %d", theirs, place, own)
	}
	return nil
}
