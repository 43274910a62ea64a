package namespace

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Names are valid that HDFS's rules say are, of all components at once.
func TestValidName(t *testing.T) {
	valid := func(path string) bool {
		if !strings.HasPrefix(path, "/") || strings.IndexByte(path, 0) >= 0 || strings.IndexByte(path, 0xff) >= 0 {
			return false
		}
		comps := strings.Split(strings.TrimRight(path[1:], "/"), "/")
		if len(comps) == 1 && comps[0] == "" {
			return true
		}
		for _, c := range comps {
			byID := len(comps) >= 4 && comps[0] == reservedName && comps[1] == inodesName
			if c == "" || c == "." || c == ".." && !byID || strings.Contains(c, ":") {
				return false
			}
		}
		return true
	}
	rng := rand.New(rand.NewPCG(1, 1))
	parts := []string{"/", "/", "/", "a", ".", "..", ":", "/.reserved", "/.inodes", "/.reserved/.inodes", "/17", "/..", "é", "\x00", "\xff"}
	count := map[bool]int{}
	for range 50_000 {
		var b strings.Builder
		for range rng.IntN(7) {
			b.WriteString(parts[rng.IntN(len(parts))])
		}
		path, want := b.String(), valid(b.String())
		if got := validName(path); got != want {
			t.Fatalf("%q: %t, want %t", path, got, want)
		}
		count[want]++
	}
	if count[true] < 1000 || count[false] < 1000 {
		t.Errorf("%d valid and %d invalid paths were tried", count[true], count[false])
	}
}
