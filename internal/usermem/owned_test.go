package usermem

import (
	"runtime"
	"slices"
	"testing"
)

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

// Memory of the Go heap that is owned and never given back goes to nobody else, who would
// be told that the new memory at its address is the runtime's.
func TestOwnedIsKept(t *testing.T) {
	collected := make(chan struct{})
	var kept span
	func() {
		memory := make([]byte, 1<<20)
		runtime.AddCleanup(&memory[0], func(collected chan struct{}) { close(collected) }, collected)
		Own(memory)
		kept = spanOf(memory)
	}()
	for range 3 {
		runtime.GC()
	}
	select {
	case <-collected:
		t.Error("collected while owned")
	default:
	}
	owned.Lock()
	i := place(kept.from)
	owned.all = slices.Delete(owned.all, i, i+1)
	owned.Unlock()
	runtime.GC()
	<-collected
}
