package namespace

import (
	"slices"
	"testing"
)

// Names are listed in Apache's order, in which bytes are signed, and a listing goes on
// behind any of them.
func TestChildrenInApachesOrder(t *testing.T) {
	want := []string{"\u00e9t\u00e9", "\u4e2d", "A", "a", "a\u00e9", "aa", "b"}
	var c children
	for _, i := range []int{3, 0, 6, 2, 5, 1, 4} {
		c.insert(&Inode{name: want[i]})
	}
	for i := -1; i < len(want); i++ {
		start := ""
		if i >= 0 {
			start = want[i]
		}
		var got []string
		c.after(start, func(n *Inode) bool {
			got = append(got, n.name)
			return true
		})
		if !slices.Equal(got, want[i+1:]) {
			t.Errorf("behind %q: %q, want %q", start, got, want[i+1:])
		}
		if start != "" && (c.rest(start) != len(got) || c.get(start) == nil) {
			t.Errorf("%q: %d come behind it, want %d; found %t", start, c.rest(start), len(got), c.get(start) != nil)
		}
	}
}
