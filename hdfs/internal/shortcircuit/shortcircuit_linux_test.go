package shortcircuit

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// share is a segment and a client's memory of it.
func share(t *testing.T, r *Registry) (*Segment, *Memory) {
	t.Helper()
	s, err := r.NewSegment()
	must(t, err)
	fd, err := unix.Dup(s.FD())
	must(t, err)
	m, err := Adopt(fd)
	must(t, err)
	t.Cleanup(func() { must(t, m.Close()) })
	return s, m
}

func TestRegistry(t *testing.T) {
	r := NewRegistry(2)
	first, m1 := share(t, r)
	second, m2 := share(t, r)
	if _, err := r.NewSegment(); err == nil {
		t.Fatal("a third segment, two are allowed")
	}
	released := map[string]int{}
	register := func(s *Segment, i int, block uint64, name string) error {
		return r.Register(SlotID{s.ID(), i}, block, func() { released[name]++ })
	}
	must(t, m1.Claim(0))
	must(t, m1.Claim(1))
	must(t, m2.Claim(127))
	must(t, register(first, 0, 7, "a"))
	must(t, register(first, 1, 8, "b"))
	must(t, register(second, 127, 7, "c"))
	for what, err := range map[string]error{
		"in use":           register(first, 0, 9, "x"),
		"not valid":        register(first, 2, 9, "x"),
		"beyond":           register(first, SegmentSlots, 9, "x"),
		"below":            register(first, -1, 9, "x"),
		"no segment":       r.Register(SlotID{ID{1, 2}, 0}, 9, func() {}),
		"not registered":   r.Unregister(SlotID{first.ID(), 2}),
		"of nobody":        r.Unregister(SlotID{ID{1, 2}, 0}),
		"beyond, released": r.Unregister(SlotID{first.ID(), SegmentSlots}),
	} {
		if !errors.Is(err, ErrSlot) {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.Revoke(7)
	r.Revoke(7)
	if m1.Valid(0) || !m1.Valid(1) || m2.Valid(127) {
		t.Fatal("block 7 has slots 0 and 127, block 8 slot 1: one is not as it should be")
	}
	if c := r.Counts(); c != (Counts{Segments: 2, Slots: 3, Revoked: 2}) {
		t.Fatalf("%+v", c)
	}
	must(t, r.Unregister(SlotID{first.ID(), 0}))
	must(t, r.Remove(first))
	if m1.Valid(1) {
		t.Fatal("a slot outlives its segment")
	}
	must(t, r.Remove(second))
	if c := r.Counts(); c != (Counts{Revoked: 2}) || released["a"] != 1 || released["b"] != 1 || released["c"] != 1 || released["x"] != 0 {
		t.Fatalf("%+v %v", c, released)
	}
	if len(r.blocks) != 0 {
		t.Fatalf("%v", r.blocks)
	}
}

// Memory that can be made shorter is not mapped; slots in it are the same.
func TestUnsealedMemory(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "segment"))
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(SegmentSize))
	fd, err := unix.Dup(int(f.Fd()))
	must(t, err)
	m, err := Adopt(fd)
	must(t, err)
	defer m.Close()
	if m.mapped != nil || m.Slots() != SegmentSlots {
		t.Fatalf("%d slots, mapped: %v", m.Slots(), m.mapped != nil)
	}
	must(t, m.Claim(5))
	if !m.Valid(5) || m.Valid(4) {
		t.Fatal("slot 5 alone was claimed")
	}
	must(t, f.Truncate(64))
	if m.Valid(5) {
		t.Fatal("a slot that is gone is valid")
	}
	short, err := os.Create(filepath.Join(t.TempDir(), "short"))
	must(t, err)
	defer short.Close()
	fd, err = unix.Dup(int(short.Fd()))
	must(t, err)
	if _, err := Adopt(fd); err == nil {
		t.Fatal("a segment without a slot was taken")
	}
}

func pair(t testing.TB) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var out [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		must(t, err)
		must(t, f.Close())
		out[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return out[0], out[1]
}

func TestSendAndReceive(t *testing.T) {
	near, far := pair(t)
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer f.Close()
	must(t, Send(near, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum()}, Receipt, int(f.Fd()), int(f.Fd())))
	must(t, transfer.WriteMessage(near, transfer.ErrorResponse(hdfspb.Status_ERROR, nil, "no")))
	for i, want := range []int{2, 0} {
		resp := &hdfspb.BlockOpResponseProto{}
		a, err := Receive(far, resp, func() bool { return resp.GetStatus() == hdfspb.Status_SUCCESS }, 2)
		must(t, err)
		if len(a.FDs) != want || i == 0 && a.With != Receipt {
			t.Fatalf("%v %+v", resp, a)
		}
		must(t, a.Close())
	}
	// Fewer than are due.
	must(t, Send(near, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum()}, NoReceipt, int(f.Fd())))
	resp := &hdfspb.BlockOpResponseProto{}
	if a, err := Receive(far, resp, func() bool { return true }, 2); !errors.Is(err, transfer.ErrMalformed) || len(a.FDs) != 0 {
		t.Fatalf("%v %v", a, err)
	}
}

// FuzzReceive has anything stand for a DataNode's answer.
func FuzzReceive(f *testing.F) {
	good, err := transfer.AppendMessage(nil, &hdfspb.BlockOpResponseProto{Status: hdfspb.Status_SUCCESS.Enum()})
	must(f, err)
	f.Add(append(good, 1), uint8(2), uint8(3))
	f.Add(append(good, 1), uint8(20), uint8(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff}, uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, fds, at uint8) {
		if len(in) == 0 || len(in) > 60_000 {
			return
		}
		near, far := pair(t)
		file, err := os.Open("/dev/null")
		must(t, err)
		defer file.Close()
		var rights []int
		for range fds % 24 {
			rights = append(rights, int(file.Fd()))
		}
		cut := int(at) % len(in)
		if cut > 0 {
			_, err = near.Write(in[:cut])
			must(t, err)
		}
		var oob []byte
		if len(rights) > 0 {
			oob = unix.UnixRights(rights...)
		}
		_, _, err = near.WriteMsgUnix(in[cut:], oob, nil)
		must(t, err)
		near.Close()
		resp := &hdfspb.BlockOpResponseProto{}
		a, err := Receive(far, resp, func() bool { return resp.GetStatus() == hdfspb.Status_SUCCESS }, 2)
		if err == nil && resp.GetStatus() == hdfspb.Status_SUCCESS && len(a.FDs) != 2 || err != nil && len(a.FDs) != 0 {
			t.Fatalf("%v: %d descriptors", err, len(a.FDs))
		}
		must(t, a.Close())
	})
}

func FuzzParseMeta(f *testing.F) {
	f.Add(AppendMeta(nil, transfer.CRC32C()))
	f.Add([]byte{0, 1, 9, 0, 0, 2, 0})
	f.Fuzz(func(t *testing.T, in []byte) {
		sum, err := ParseMeta(in)
		if err != nil {
			if !errors.Is(err, transfer.ErrMalformed) {
				t.Fatal(err)
			}
			return
		}
		if string(AppendMeta(nil, sum)) != string(in[:MetaHeader]) {
			t.Fatalf("%x is read as %+v", in, sum)
		}
	})
}

func TestCheckPath(t *testing.T) {
	base := t.TempDir()
	uid := os.Geteuid()
	made := func(name string, mode os.FileMode) string {
		dir := filepath.Join(base, name)
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.Chmod(dir, mode))
		return dir
	}
	must(t, CheckPath(filepath.Join(made("own", 0o755), "dn"), uid))
	sticky := made("sticky", 0o777|os.ModeSticky)
	must(t, os.Mkdir(filepath.Join(sticky, "below"), 0o700))
	must(t, CheckPath(filepath.Join(sticky, "below/dn"), uid))
	for path, why := range map[string]string{
		filepath.Join(made("open", 0o777), "dn"):                "everybody",
		filepath.Join(made("stuck", 0o777|os.ModeSticky), "dn"): "everybody",
		filepath.Join(made("open2", 0o777), "deeper/dn"):        "no such file",
		filepath.Join(base, "nowhere", "dn"):                    "no such file",
		"relative/dn":                                           "absolute",
		base + "/":                                              "slash",
	} {
		if err := CheckPath(path, uid); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", path, err, why)
		}
	}
	if err := checkDirectory("/x", &unix.Stat_t{Mode: 0o755, Uid: 1234}, 99, true); err == nil {
		t.Error("another user's directory was accepted")
	}
	if err := checkDirectory("/x", &unix.Stat_t{Mode: 0o775, Gid: 50}, 0, true); err == nil {
		t.Error("a group's directory was accepted")
	}
}
