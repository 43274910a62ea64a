package budget

import "testing"

// A budget that is squeezed gives no more than it is allowed, but for the favored
// account, whose message arrives.
func TestSqueeze(t *testing.T) {
	b := New(64*mib, 16*mib)
	var hogs []*Account
	for range 6 {
		a := b.Open(each(), nil)
		for range 8 {
			a.Take(mib)
		}
		hogs = append(hogs, a)
	}
	if b.Used() < 40*mib {
		t.Fatalf("%d bytes are used", b.Used())
	}
	b.Squeeze(8 * mib)
	if hogs[0].Take(mib) || hogs[0].Ask(mib, false) || b.Plenty() || !b.Squeezed() {
		t.Error("more than is allowed")
	}
	if !hogs[1].Ask(8*mib, true) {
		t.Error("the account whose application waits is not favored")
	}
	small := b.Open(each(), nil)
	if !small.Take(64 << 10) {
		t.Error("its own memory was refused")
	}
	check(t, b)
	hogs[1].Finish()
	hogs[1].Give(hogs[1].held)
	if hogs[0].Ask(mib, false) {
		t.Error("more than is allowed")
	}
	b.Relax()
	if granted(hogs[0]); !hogs[0].Ask(mib, false) || b.Squeezed() {
		t.Error("nobody gets more when it is over")
	}
	check(t, b)
}
