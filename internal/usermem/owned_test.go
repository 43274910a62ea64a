package usermem

import "testing"

var ownedMemory [100]byte // on no stack, which may move

func TestOwned(t *testing.T) {
	memory := ownedMemory[:]
	pieces := [][]byte{memory[40:60], memory[10:20], memory[60:70]}
	for _, p := range pieces {
		Own(p)
	}
	for _, c := range []struct {
		from, to int
		want     bool
	}{
		{0, 10, false}, {0, 11, true}, {9, 10, false}, {10, 20, true}, {12, 13, true}, {19, 21, true}, {20, 40, false},
		{20, 41, true}, {0, 100, true}, {59, 61, true}, {69, 100, true}, {70, 100, false},
	} {
		if got := Owned(memory[c.from:c.to]); got != c.want {
			t.Errorf("%d to %d: %t", c.from, c.to, got)
		}
	}
	Disown(memory[41:60]) // no piece
	if !Owned(memory[45:46]) {
		t.Error("another piece has been disowned")
	}
	for _, p := range pieces {
		Disown(p)
		if Owned(p) {
			t.Error("owned for ever")
		}
	}
	if len(owned.all) != 0 {
		t.Error(owned.all)
	}
}
