package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
)

// connectOthers connects two sides of different users.
func connectOthers(t *testing.T) (a, b *side) {
	t.Helper()
	to := openDevice(t, Config{AllowUIDs: []uint32{nobody}})
	a, b = newSide(t, openDevice(t, Config{AllowUIDs: []uint32{0}}), 1<<16), newSide(t, to, 1<<16)
	a.qp, b.qp = a.pair(nil), b.pair(nil)
	l, err := to.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	wait := serve(t, b, l)
	asUser(t, nobody, func() {
		if _, err := a.qp.Connect(t.Context(), l.Address(), nil); err != nil {
			t.Error(err)
		}
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wait()
	if a.qp.State() != rdma.StateConnected || !a.qp.(*queuePair).conn.foreign || !b.qp.(*queuePair).conn.foreign {
		t.Fatal("the sides are not connected, or of one user")
	}
	return a, b
}

// mappedRights are those of the mapping that memory is in: "rw-s".
func mappedRights(t *testing.T, memory []byte) string {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if strings.HasPrefix(line, fmt.Sprintf("%08x-", address(memory))) {
			return strings.Fields(line)[1]
		}
	}
	t.Fatal("the memory is not mapped")
	return ""
}

// What another user may only read by key it gets for reading only, even where
// this side receives into such memory. When it may be received into, it is granted
// again with that right.
func TestOthersGetWhatIsGranted(t *testing.T) {
	a, b := connectOthers(t)
	region, err := b.domain.Allocate(4096, rdma.AccessLocalWrite|rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	fill(region.Bytes(), 3)
	read := rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(0, 4096), Remote: rdma.Remote{Address: region.Address(), Key: region.Key()}}
	a.send(read)
	a.expect(1, rdma.StatusSuccess)
	peer := a.qp.(*queuePair).peer.Load()
	if got := mappedRights(t, peer.find(want{value: region.Key()}).memory); got != "r--s" {
		t.Errorf("a region for reading is mapped %s", got)
	}
	b.recv(7, rdma.SGE{Region: region, Length: 4096})
	a.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(8192, 1000)}, read)
	a.expect(2, rdma.StatusSuccess)
	a.expect(1, rdma.StatusSuccess)
	b.expect(7, rdma.StatusSuccess)
	if got := mappedRights(t, peer.find(want{value: region.Key()}).memory); got != "rw-s" {
		t.Errorf("a region that holds a receive is mapped %s", got)
	}
	peer.mu.RLock()
	defer peer.mu.RUnlock()
	if len(peer.byHandle) != 1 || len(peer.byKey) != 1 {
		t.Errorf("%d regions by handle, %d by key", len(peer.byHandle), len(peer.byKey))
	}
}

// Another user who asks for very many regions that are not there, as one who
// guesses keys does, is disconnected.
func TestOthersGuessKeys(t *testing.T) {
	a, b := connectOthers(t)
	guesser := a.qp.(*queuePair).conn
	// More questions than conn.want lets wait for answers.
	guesser.wantsMu.Lock()
	for key := range uint32(maxMisses + 1) {
		guesser.wants = append(guesser.wants, want{value: key})
	}
	guesser.wantsMu.Unlock()
	for key := range uint32(maxMisses + 1) {
		if err := guesser.write(want{value: key}.append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	<-b.qp.Done()
	if err := b.qp.Err(); !errors.Is(err, rdma.ErrDisconnected) || !errors.Is(err, errPacket) {
		t.Errorf("error %v", err)
	}
}

// A peer with very many regions has few of them mapped at a time, and a request
// finds each all the same.
func TestManyRegionsOfOthers(t *testing.T) {
	a, b := connectOthers(t)
	const regions = maxRegionsForeign + 50
	peer := a.qp.(*queuePair).peer.Load()
	var all []rdma.Region
	for i := range regions {
		r, err := b.domain.Allocate(4096, rdma.AccessRemoteRead)
		if err != nil {
			t.Fatal(err)
		}
		r.Bytes()[0] = byte(i)
		all = append(all, r)
	}
	before := countMappings(t)
	for range 2 {
		for i, r := range all {
			a.send(rdma.SendRequest{ID: uint64(i), Op: rdma.OpRead, Flags: rdma.Signaled, SGEs: a.sge(0, 8), Remote: rdma.Remote{Address: r.Address(), Key: r.Key()}})
			a.expect(uint64(i), rdma.StatusSuccess)
			if a.memory.Bytes()[0] != byte(i) {
				t.Fatalf("region %d has other bytes", i)
			}
		}
	}
	peer.mu.RLock()
	mapped := len(peer.byHandle)
	peer.mu.RUnlock()
	if mapped > maxRegionsForeign {
		t.Errorf("%d regions are mapped", mapped)
	}
	if more := countMappings(t) - before; more > maxRegionsForeign+16 {
		t.Errorf("%d more mappings", more)
	}
}

// A region never shows what was in memory before.
func TestRegionsComeZeroed(t *testing.T) {
	s := newSide(t, openDevice(t, Config{}), 4096)
	var last memfd.Identity
	for range 20 {
		r, err := s.domain.Allocate(1<<20, everything)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range r.Bytes() {
			if b != 0 {
				t.Fatalf("byte %d is %#x", i, b)
			}
		}
		fill(r.Bytes(), 5)
		identity, err := memfd.Identify(r.(*region).file.FD())
		if err != nil {
			t.Fatal(err)
		}
		if identity == last {
			t.Error("a region has the pages of the one before")
		}
		last = identity
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A peer that maps memory of another user is not told by a descriptor how to get
// more: opening it again for writing takes rights that it does not have.
func TestOthersCannotReopen(t *testing.T) {
	s := newSide(t, openDevice(t, Config{}), 4096)
	r, err := s.domain.Allocate(4096, rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := r.(*region).descriptor(false)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	path := fmt.Sprintf("/proc/thread-self/fd/%d", fd)
	asUser(t, nobody, func() {
		again, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(again)
			t.Error("another user opened a region for reading again for writing")
		}
	})
}

// Memory that another user hands over is not allocated by mapping it, and huge
// pages, which the user could take away again, end its connection.
func TestMemoryOfOthers(t *testing.T) {
	const size = 512 << 20
	hand := func(t *testing.T, fd func(a *attacker) int) (s *side, given int) {
		device := openDevice(t, Config{AllowUIDs: []uint32{nobody}})
		l, err := device.Listen(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s = newSide(t, device, 4096)
		s.qp = s.pair(nil)
		var a *attacker
		asUser(t, nobody, func() { a = dialAttacker(t, l.Address()) })
		a.sendWith(-1, 0)
		a.send([]byte{byte(packetReady)})
		r, err := l.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Accept(t.Context(), s.qp, nil); err != nil {
			t.Fatal(err)
		}
		s.send(rdma.SendRequest{ID: 1, Op: rdma.OpWrite, Flags: rdma.Signaled, SGEs: s.sge(0, 8), Remote: rdma.Remote{Key: 5}})
		for _, want := range []string{"accept", "want"} {
			if got := a.answer(); got != want {
				t.Fatalf("the other side sends %q, want %q", got, want)
			}
		}
		given = fd(a)
		a.send(grant{want: want{value: 5}, found: true, key: 5, handle: 9, access: uint8(rdma.AccessRemoteWrite), length: size}.append(nil), given)
		return s, given
	}
	t.Run("sparse", func(t *testing.T) {
		s, fd := hand(t, func(a *attacker) int { return a.memory(size, false) })
		s.expect(1, rdma.StatusSuccess)
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			t.Fatal(err)
		}
		if allocated := stat.Blocks * 512; allocated > size/64 {
			t.Errorf("a Write of 8 bytes allocates %d", allocated)
		}
	})
	t.Run("huge pages", func(t *testing.T) {
		s, _ := hand(t, func(a *attacker) int {
			fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
			if err != nil {
				t.Skip("no memfds of huge pages here:", err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			if err := unix.Ftruncate(fd, size); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memfd.Seals); err != nil {
				t.Fatal(err)
			}
			return fd
		})
		<-s.qp.Done()
		if err := s.qp.Err(); err == nil || !strings.Contains(err.Error(), "huge pages") {
			t.Errorf("error %v", err)
		}
	})
}

// A region that was refused because it held no receive is granted when it does.
func TestRefusedThenGranted(t *testing.T) {
	a, b := connectOthers(t)
	qp := a.qp.(*queuePair)
	w := want{byHandle: true, value: b.memory.(*region).handle}
	qp.sendMu.Lock()
	qp.asked, qp.askedValid = w, qp.conn.want(w)
	qp.sendMu.Unlock()
	for i := 0; ; i++ {
		qp.sendMu.Lock()
		answered := !qp.askedValid
		qp.sendMu.Unlock()
		if answered {
			break
		}
		pause(i)
	}
	b.recv(1, b.sge(0, 4096)...)
	a.send(rdma.SendRequest{ID: 2, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, 1000)})
	a.expect(2, rdma.StatusSuccess)
	b.expect(1, rdma.StatusSuccess)
}
