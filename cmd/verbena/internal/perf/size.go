package perf

import (
	"fmt"
	"strconv"
	"strings"
)

// AllSizes are 1 B to 64 MiB.
func AllSizes() []int {
	var sizes []int
	for s := 1; s <= 64<<20; s *= 2 {
		sizes = append(sizes, s)
	}
	return sizes
}

// ParseSize reads a number of bytes, such as 8, 1K or 64MiB.
func ParseSize(s string) (int, error) {
	digits := strings.TrimRight(s, "KMGkmgiB ")
	shift := 0
	switch strings.ToUpper(strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(s[len(digits):]), "B"), "i")) {
	case "":
	case "K":
		shift = 10
	case "M":
		shift = 20
	case "G":
		shift = 30
	default:
		return 0, fmt.Errorf("size %q is not like 8, 4K or 1MiB", s)
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || n == 0 || n<<shift > maxSize {
		return 0, fmt.Errorf("size %q is not between 1 and 1G", s)
	}
	return int(n) << shift, nil
}

// FormatSize shows bytes the same way.
func FormatSize(n int) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift {
			if n%(1<<u.shift) == 0 {
				return fmt.Sprintf("%d%s", n>>u.shift, u.name)
			}
			if n >= 10<<u.shift {
				return fmt.Sprintf("%.1f%s", float64(n)/float64(int(1)<<u.shift), u.name)
			}
		}
	}
	return strconv.Itoa(n)
}
