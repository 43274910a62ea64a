// Package bytesize has numbers of bytes as flags.
package bytesize

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Size is a number of bytes as a flag: 512MiB, 2G, 64k, 65536. Numbers are as those of
// other flags: 0x10000 and 1_000_000 are some, too.
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40},
	{"k", 1 << 10}, {"m", 1 << 20}, {"g", 1 << 30}, {"t", 1 << 40}, {"B", 1}, {"", 1},
}

var errSize = errors.New("want bytes, such as 512MiB or 2G")

// Set parses it.
func (s *Size) Set(text string) error {
	hex := strings.HasPrefix(text, "0x") || strings.HasPrefix(text, "0X")
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok || hex && u.suffix == "B" { // that is a digit
			continue
		}
		if strings.HasPrefix(digits, "+") {
			break
		}
		n, err := strconv.ParseInt(digits, 0, 64)
		if err != nil || n < 0 || n > (1<<62)/u.bytes {
			break
		}
		*s = Size(n * u.bytes)
		return nil
	}
	return errSize
}

func (s *Size) String() string {
	for _, u := range units[:4] {
		if n := int64(*s) / u.bytes; n > 0 && n < 1<<10 && int64(*s)%u.bytes == 0 {
			return fmt.Sprint(n, u.suffix)
		}
	}
	return fmt.Sprint(int64(*s))
}

// Type is what usages call it.
func (s *Size) Type() string { return "size" }

// Limit is a Size that may be negative, which means none.
type Limit int64

// Set parses it.
func (l *Limit) Set(text string) error {
	digits, negative := strings.CutPrefix(text, "-")
	var s Size
	if err := s.Set(digits); err != nil {
		return fmt.Errorf("%w, or -1", errSize)
	}
	if *l = Limit(s); negative {
		*l = -*l
	}
	return nil
}

func (l *Limit) String() string {
	if *l < 0 {
		return fmt.Sprint(int64(*l))
	}
	s := Size(*l)
	return s.String()
}

// Type is what usages call it.
func (l *Limit) Type() string { return "size" }
