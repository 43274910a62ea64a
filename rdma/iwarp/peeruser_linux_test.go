package iwarp

import (
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/rdma"
)

const nobody = 65534

// asUser runs f on a thread whose sockets belong to another user.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		testneed.Missing(t, "sockets of another user", "the superuser's rights to make some")
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		before, err := unix.SetfsuidRetUid(uid)
		if err == nil && before != 0 {
			err = errors.New("another user than expected")
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestAnotherUser has a process of another user connect, and be connected to.
func TestAnotherUser(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err)
			continue
		}
		defer l.Close()
		var here, there net.Conn
		connect := func() (net.Conn, net.Conn) {
			t.Helper()
			asUser(t, nobody, func() { there, err = net.Dial("tcp", l.Addr().String()) })
			if err != nil {
				t.Fatal(err)
			}
			if here, err = l.Accept(); err != nil {
				t.Fatal(err)
			}
			return here, there
		}
		here, there = connect()
		if uid, err := peerUser(here); err != nil || uid != nobody {
			t.Errorf("user %d, %v", uid, err)
		}
		if uid, err := peerUser(there); err != nil || uid != 0 {
			t.Errorf("user %d, %v", uid, err)
		}
		refusing := newSide(t, testDevice(t, Config{}), 4096, nil)
		allowing := newSide(t, testDevice(t, Config{AllowUIDs: []uint32{nobody}}), 4096, nil)
		failed := make(chan error, 1)
		go func() {
			_, err := refusing.device.RequestFromStream(bounded(t), here)
			failed <- err
		}()
		other := newSide(t, testDevice(t, Config{}), 4096, nil)
		_, err = other.device.ConnectStream(bounded(t), other.qp, there, nil)
		var rejected *rdma.RejectedError
		if !errors.As(err, &rejected) || !strings.Contains(string(rejected.PrivateData), "AllowUIDs") || strings.Contains(string(rejected.PrivateData), "65534") {
			t.Errorf("the refused one learns %v", err)
		}
		if err := <-failed; !errors.Is(err, rdma.ErrInvalid) || !strings.Contains(err.Error(), "AllowUIDs") {
			t.Errorf("another user connects: %v", err)
		}
		// The one who connects looks, too.
		here, there = connect()
		go func() {
			r, err := allowing.device.RequestFromStream(bounded(t), there)
			if err == nil {
				err = r.Accept(bounded(t), allowing.qp, nil)
			}
			failed <- err
		}()
		if _, err := refusing.device.ConnectStream(bounded(t), refusing.qp, here, nil); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("it connects to another user: %v", err)
		}
		<-failed
		here, there = connect()
		a, b := newSide(t, testDevice(t, Config{AllowUIDs: []uint32{nobody}}), 4096, nil), newSide(t, testDevice(t, Config{}), 4096, nil)
		joinStreams(t, a, b, here, there)
	}
}

// TestSocketTables reads what /proc has, as the fallback does.
func TestSocketTables(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err)
			continue
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		name := socketTable
		if strings.HasPrefix(address, "[") {
			name = socketTable6
		}
		// The kernel skips lines of a table that changes while it is read.
		uid, err := uint32(0), errNoSocket
		for range 100 {
			f, openErr := os.Open(name)
			if openErr != nil {
				t.Fatal(openErr)
			}
			uid, err = findUser(f, c.LocalAddr().(*net.TCPAddr), c.RemoteAddr().(*net.TCPAddr))
			f.Close()
			if err == nil {
				break
			}
		}
		if err != nil || uid != uint32(os.Geteuid()) {
			t.Errorf("%s: user %d, %v", name, uid, err)
		}
	}
	loopback := func(port int) *net.TCPAddr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port} }
	for table, want := range map[string]error{
		"": errNoSocket,
		" 0: nonsense\n 1: 0100007F:0050 0100007F:9C40 01 0:0 00:0 0 1000 0 0 1\n":                                    errNobody,
		" 1: 0100007F:0050 0100007F:9C40 01 0:0 00:0 0 1000 0 77 1\n":                                                 nil,
		" 1: 0100007F:0051 0100007F:9C40 01 0:0 00:0 0 1000 0 77 1\n":                                                 errNoSocket,
		" 1: 00000000:0050 0100007F:9C40 01 0:0 00:0 0 1000 0 77 1\n":                                                 errNoSocket,
		" 1: zz:0050 zz:9C40 01 0:0 00:0 0 1000 0 77 1\n":                                                             errNoSocket,
		" 1: 0100007F:0050 0100007F:9C40 01 0:0 00:0 0 many 0 77 1\n":                                                 errNobody,
		" 1: 0000000000000000FFFF00000100007F:0050 0000000000000000FFFF00000100007F:9C40 01 0:0 00:0 0 1000 0 77 1\n": nil,
	} {
		uid, err := findUser(strings.NewReader(table), loopback(80), loopback(40000))
		if !errors.Is(err, want) || err == nil && uid != 1000 {
			t.Errorf("%q: user %d, %v", table, uid, err)
		}
	}
}
