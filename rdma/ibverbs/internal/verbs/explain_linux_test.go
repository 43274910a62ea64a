//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/foreign"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v does not wrap ErrUnavailable", err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestMissingLibrariesAreNamed(t *testing.T) {
	var somewhere uintptr
	l := &Library{}
	says(t, l.resolve([]needed{{"libnosuch.so.7", "nosuch7"}}, nil), "libnosuch.so.7", "apt-get install nosuch7")
	says(t, l.resolve([]needed{{"libc.so.6", "libc6"}}, map[string]map[string]*uintptr{"libc.so.6": {"ibv_no_such_verb": &somewhere}}),
		"libc.so.6 has no ibv_no_such_verb", "newer rdma-core")
	if err := l.resolve([]needed{{"libc.so.6", "libc6"}}, map[string]map[string]*uintptr{"libc.so.6": {"close": &somewhere}}); err != nil || somewhere == 0 {
		t.Errorf("%v, %#x", err, somewhere)
	}
}

// Without a device the error says which step is missing.
func TestMissingDevicesAreExplained(t *testing.T) {
	class, dev := sysClass, devices
	defer func() { sysClass, devices = class, dev }()
	sysClass, devices = t.TempDir(), t.TempDir()
	says(t, explainNoDevice(), "no RDMA device", "rdma link add")
	if err := os.MkdirAll(filepath.Join(sysClass, "infiniband", "mlx5_9"), 0o700); err != nil {
		t.Fatal(err)
	}
	says(t, explainNoDevice(), "mlx5_9", "modprobe ib_uverbs")
	if err := os.MkdirAll(filepath.Join(sysClass, "infiniband_verbs"), 0o700); err != nil {
		t.Fatal(err)
	}
	says(t, explainNoDevice(), "mlx5_9", "ibverbs-providers")

	says(t, explainDeviceList(unix.ENOSYS), "modprobe ib_uverbs")
	says(t, explainDeviceList(unix.EPERM), "not permitted")
	if err := explainDeviceList(unix.EIO); !errors.Is(err, unix.EIO) || errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}

	says(t, explainOpen("mlx5_9", "", 0), `no RDMA device "mlx5_9"`)
	says(t, explainOpen("mlx5_9", "uverbs9", 0), filepath.Join(devices, "uverbs9"), "is not there")
	if err := os.WriteFile(filepath.Join(devices, "uverbs9"), nil, 0); err != nil {
		t.Fatal(err)
	}
	// Root may open anything: there the error number of the library is all there is.
	says(t, explainOpen("mlx5_9", "uverbs9", unix.EACCES), "no permission to open", "read and write access")
	if err := explainOpen("mlx5_9", "uverbs9", unix.EBUSY); os.Getuid() == 0 && !errors.Is(err, unix.EBUSY) {
		t.Errorf("%v", err)
	}

	says(t, explainChannel(unix.ENODEV), "modprobe rdma_ucm", "rdma_cm")
	says(t, explainChannel(unix.EACCES), "no permission", "rdma_cm")
	if err := explainChannel(unix.EMFILE); !errors.Is(err, unix.EMFILE) {
		t.Errorf("%v", err)
	}
}

func TestRegistrationsAreExplained(t *testing.T) {
	err := explainMemory(failure("ibv_reg_mr", unix.ENOMEM))
	var limit unix.Rlimit
	if e := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); e != nil {
		t.Fatal(e)
	}
	if !errors.Is(err, unix.ENOMEM) || strings.Contains(err.Error(), "ulimit -l") != (limit.Cur != unix.RLIM_INFINITY) {
		t.Errorf("%v, with a limit of %d", err, limit.Cur)
	}
	if err := explainMemory(failure("ibv_reg_mr", unix.EFAULT)); !errors.Is(err, unix.EFAULT) || strings.Contains(err.Error(), "ulimit") {
		t.Errorf("%v", err)
	}
}

// A process without a descriptor to spare is told so, and may try again: nothing
// that failed for that reason is remembered.
func TestScarcity(t *testing.T) {
	library, reason := loaded.library, loaded.err
	loaded.library, loaded.err = nil, nil
	defer func() { loaded.library, loaded.err = library, reason }()
	l := &Library{}
	rdmatest.WithoutDescriptors(t, func() {
		for what, err := range map[string]error{
			"libraries":          l.resolve([]needed{{"libnosuch.so.7", "nosuch7"}}, nil),
			"no device":          explainNoDevice(),
			"device list":        explainDeviceList(unix.ENOSYS),
			"device":             explainOpen("mlx5_9", "uverbs9", 0),
			"connection manager": explainChannel(0),
		} {
			says(t, err, "no descriptor left", "ulimit -n")
			if !rdma.Temporary(err) {
				t.Errorf("%s: %v is said to last", what, err)
			}
		}
		if _, err := remember(func() (*Library, error) { return nil, explainScarcity("load") }); !rdma.Temporary(err) {
			t.Errorf("%v is said to last", err)
		}
	})
	if got, err := remember(func() (*Library, error) { return l, nil }); got != l || err != nil {
		t.Errorf("with descriptors again: %p, %v", got, err)
	}
}

// On a host with the libraries and without adapters, the device list says so.
func TestLoad(t *testing.T) {
	l, err := Load()
	if err != nil {
		says(t, err, "install")
		return
	}
	again, err := Load()
	if err != nil || again != l {
		t.Errorf("loaded twice: %v", err)
	}
	found, err := l.Devices()
	if err != nil {
		if len(found) != 0 {
			t.Errorf("%v beside %v", found, err)
		}
		says(t, err)
		t.Log(err)
	}
	if c, err := l.Open("nosuch0", quirks.CallAuto); err == nil {
		t.Errorf("opened %s", c.Name())
	} else {
		says(t, err)
	}
}

func TestDriverAt(t *testing.T) {
	const maps = `55d0c0a00000-55d0c0a21000 r-xp 00000000 08:01 1311  /usr/bin/cat
7f0000000000-7f0000010000 r-xp 00000000 08:01 131 /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so
7f0000010000-7f0000020000 r-xp 00000000 08:01 132 /usr/lib/x86_64-linux-gnu/libmlx5.so.1.24.44.0
7f0000020000-7f0000030000 r-xp 00000000 00:00 0
7f0000030000-7f0000040000 r-xp 00000000 08:01 133 /usr/lib/x86_64-linux-gnu/libibverbs/libmlx4-rdmav34.so (deleted)
`
	for address, want := range map[uintptr]string{
		0x7f0000000000: "rxe", 0x7f000000ffff: "rxe", 0x7f0000010000: "mlx5", 0x7f0000020000: "",
		0x7f0000030010: "mlx4", 0x7f0000040000: "", 0: "", 0x55d0c0a00001: "",
	} {
		if got := driverAt([]byte(maps), address); got != want {
			t.Errorf("%#x: %q, want %q", address, got, want)
		}
	}
}

func FuzzDriverAt(f *testing.F) {
	f.Add([]byte("7f00-7f10 r-xp 0 0:0 1 /lib/libmlx5.so.1"), uint64(0x7f01))
	f.Add([]byte("-\n\x00"), uint64(0))
	f.Fuzz(func(t *testing.T, maps []byte, address uint64) {
		if got := driverAt(maps, uintptr(address)); strings.ContainsAny(got, "/ \n") {
			t.Errorf("%q is no driver's name", got)
		}
	})
}

func TestModes(t *testing.T) {
	for _, c := range []struct {
		driver  string
		asked   quirks.CallMode
		want    quirks.CallMode
		refused bool
	}{
		{"mlx5", quirks.CallAuto, quirks.CallNonBlocking, false},
		{"mlx5", quirks.CallBlocking, quirks.CallBlocking, false},
		{"rxe", quirks.CallAuto, quirks.CallNonBlockingPoll, false},
		{"siw", quirks.CallAuto, quirks.CallNonBlockingPoll, false},
		{"rxe", quirks.CallNonBlocking, 0, true},
		{"siw", quirks.CallNonBlocking, 0, true},
		{"siw", quirks.CallNonBlockingPoll, quirks.CallNonBlockingPoll, false},
		{"hns", quirks.CallAuto, quirks.CallBlocking, false},
		{"bnxt_re", quirks.CallAuto, quirks.CallBlocking, false},
		{"bnxt_re", quirks.CallNonBlocking, 0, true},
		{"hns", quirks.CallNonBlockingPoll, 0, true},
		{"cxgb4", quirks.CallAuto, quirks.CallNonBlockingPoll, false},
		{"cxgb4", quirks.CallNonBlocking, 0, true},
		{"", quirks.CallNonBlocking, quirks.CallNonBlocking, false},
		{"", quirks.CallAuto, quirks.CallNonBlockingPoll, false},
		{"", quirks.CallBlocking, quirks.CallBlocking, false},
		{"irdma", quirks.CallAuto, quirks.CallNonBlocking, false},
		{"irdma", quirks.CallBlocking, quirks.CallBlocking, false},
	} {
		ctx := &Context{driver: c.driver}
		err := ctx.chooseFor(c.asked)
		if (err != nil) != c.refused || err == nil && ctx.Mode() != c.want {
			t.Errorf("%q asked for %v: %v, %v", c.driver, c.asked, ctx.Mode(), err)
		}
		if err != nil {
			continue
		}
		brief := foreign.Blocking
		if c.want == quirks.CallNonBlocking || c.want == quirks.CallNonBlockingPoll && c.driver == "rxe" {
			brief = foreign.NonBlocking
		}
		if ctx.briefPosts != brief {
			t.Errorf("%q asked for %v: brief posts are %v, want %v", c.driver, c.asked, ctx.briefPosts, brief)
		}
		recvs := foreign.Blocking
		if c.want == quirks.CallNonBlocking || c.want == quirks.CallNonBlockingPoll && (c.driver == "rxe" || c.driver == "siw") {
			recvs = foreign.NonBlocking
		}
		if ctx.recvs != recvs {
			t.Errorf("%q asked for %v: posted receives are %v, want %v", c.driver, c.asked, ctx.recvs, recvs)
		}
	}
}

func TestErrorNumbers(t *testing.T) {
	for _, c := range []struct {
		result int32
		errno  syscall.Errno
		want   syscall.Errno
	}{{0, 5, 0}, {-1, syscall.EAGAIN, syscall.EAGAIN}, {-22, 5, syscall.EINVAL}, {12, 5, syscall.ENOMEM}} {
		if got := errorNumber(c.result, c.errno); got != c.want {
			t.Errorf("%d with errno %d: %d, want %d", c.result, c.errno, got, c.want)
		}
	}
}

func roundTrip(a netip.AddrPort) (netip.AddrPort, error) {
	var pool scratchPool
	s := pool.get()
	defer pool.put(s)
	p, err := putAddress(s, a)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return getAddress(p), nil
}

func TestAddresses(t *testing.T) {
	var pool scratchPool
	s := pool.get()
	for text, want := range map[string]string{
		"10.9.0.1:7174":          "0200 1c06 0a090001",
		"[::ffff:10.9.0.1]:7174": "0200 1c06 0a090001",
		"[2001:db8::1]:1":        "0a00 0001 00000000 20010db8000000000000000000000001 00000000",
		"[fe80::1%3]:258":        "0a00 0102 00000000 fe800000000000000000000000000001 03000000",
	} {
		p, err := putAddress(s, netip.MustParseAddrPort(text))
		if err != nil {
			t.Fatal(err)
		}
		wanted := strings.ReplaceAll(want, " ", "")
		if got := fmt.Sprintf("%x", bytesAt(p, len(wanted)/2)); got != wanted {
			t.Errorf("%s is %s, not %s", text, got, want)
		}
	}
	if _, err := putAddress(s, netip.AddrPort{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("no address: %v", err)
	}
	if _, err := putAddress(s, netip.MustParseAddrPort("[fe80::1%nosuchinterface]:1")); err == nil {
		t.Error("a zone that there is none of")
	}
	if loopback, err := net.InterfaceByName("lo"); err == nil {
		if got, err := roundTrip(netip.MustParseAddrPort("[fe80::1%lo]:1")); err != nil || got.Addr().Zone() != fmt.Sprint(loopback.Index) {
			t.Errorf("%v, %v", got, err)
		}
	}
	if a := getAddress(s.take(sizeSockaddrIn6)); a.IsValid() {
		t.Errorf("no address is %v", a)
	}
	pool.put(s)
	if *s != (scratch{}) {
		t.Error("scratch memory is not zero when it goes back")
	}
}

func FuzzAddresses(f *testing.F) {
	f.Add([]byte{10, 9, 0, 1}, uint16(7174), uint8(0))
	f.Add(netip.MustParseAddr("fe80::1").AsSlice(), uint16(1), uint8(7))
	f.Fuzz(func(t *testing.T, ip []byte, port uint16, zone uint8) {
		address, ok := netip.AddrFromSlice(ip)
		if !ok {
			return
		}
		address = address.Unmap()
		if address.Is6() && zone != 0 {
			address = address.WithZone(fmt.Sprint(zone))
		}
		want := netip.AddrPortFrom(address, port)
		if got, err := roundTrip(want); err != nil || got != want {
			t.Errorf("%v became %v, %v", want, got, err)
		}
	})
}

func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		StatusRemoteAccess.String(): "remote access error", Status(99).String(): "status 99",
		CMRejected.String(): "rejected", CMEventType(99).String(): "connection manager event 99",
		AsyncPortError.String(): "port error", QPReadyToSend.String(): "ready to send", PortActive.String(): "active",
		LinkEthernet.String(): "ethernet", TransportIWARP.String(): "iwarp", Transport(9).String(): "transport 9",
		quirks.CallNonBlocking.String(): "non-blocking",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if MTU(5).Bytes() != 4096 || MTU(1).Bytes() != 256 || MTU(0).Bytes() != 0 || MTU(6).Bytes() != 0 {
		t.Error("MTU codes")
	}
}
