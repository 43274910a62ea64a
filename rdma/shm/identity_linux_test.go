package shm

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Two peers that present one domain, and its table, share what is mapped of it only if
// the kernel tells that they are one process, or if they are of this process's user.
func TestWhoSharesADomain(t *testing.T) {
	own := unix.Ucred{Uid: 1000}
	for name, each := range map[string]struct {
		first, second               unix.Ucred
		firstForeign, secondForeign bool
		shared                      bool
	}{
		"one process":                    {unix.Ucred{Pid: 7, Uid: 1000}, unix.Ucred{Pid: 7, Uid: 1000}, false, false, true},
		"two processes":                  {unix.Ucred{Pid: 7, Uid: 1000}, unix.Ucred{Pid: 8, Uid: 1000}, false, false, false},
		"one process of another user":    {unix.Ucred{Pid: 7, Uid: 1}, unix.Ucred{Pid: 7, Uid: 1}, true, true, true},
		"two processes of another user":  {unix.Ucred{Pid: 7, Uid: 1}, unix.Ucred{Pid: 8, Uid: 1}, true, true, false},
		"hidden ones of the own user":    {own, own, false, false, true},
		"hidden ones of two users":       {own, unix.Ucred{Uid: 1}, false, true, false},
		"hidden ones of two other users": {unix.Ucred{Uid: 1}, unix.Ucred{Uid: 2}, true, true, false},
		// The overflow user, for one, stands for many.
		"hidden ones of one other user":   {unix.Ucred{Uid: 1}, unix.Ucred{Uid: 1}, true, true, false},
		"a process number used again":     {unix.Ucred{Pid: 7, Uid: 1000}, unix.Ucred{Pid: 7, Uid: 1}, false, true, false},
		"a process number used by others": {unix.Ucred{Pid: 7, Uid: 1}, unix.Ucred{Pid: 7, Uid: 2}, true, true, false},
		// The own user's number may be that of users which the namespace does not map.
		"hidden ones of one number": {own, own, false, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			device := openDevice(t, Config{})
			l, err := device.Listen(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s := newSide(t, device, 4096)
			var table int
			var first *peerDomain
			for i, peer := range []unix.Ucred{each.first, each.second} {
				a := dialAttacker(t, l.Address())
				h, files := a.hello()
				if i == 0 {
					table = files[1]
				}
				files[1], h.domain = table, [16]byte{1, 2, 3}
				a.send(h.append(packetHello, nil), files...)
				a.send([]byte{byte(packetReady)})
				r, err := l.Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				c := r.(*request).conn
				c.peer, c.foreign = peer, []bool{each.firstForeign, each.secondForeign}[i]
				qp := s.pair(nil)
				if err := r.Accept(t.Context(), qp, nil); err != nil {
					t.Fatal(err)
				}
				got := qp.(*queuePair).peer.Load()
				if got.identity.foreign != c.foreign {
					t.Errorf("peer %d: foreign is %v", i, got.identity.foreign)
				}
				if i == 0 {
					first = got
				} else if (got == first) != each.shared {
					t.Errorf("shared is %v", got == first)
				}
			}
		})
	}
}
