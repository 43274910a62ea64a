package bytesize

import "testing"

func TestSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "7": 7, "7B": 7, "1K": 1 << 10, "1KiB": 1 << 10, "512MiB": 512 << 20, "2G": 2 << 30, "2GiB": 2 << 30, "3M": 3 << 20, "1T": 1 << 40, "1m": 1 << 20, "4TiB": 4 << 40,
		"4194304TiB": 1 << 62, "0x8000000": 128 << 20, "0x1B": 27, "0XB": 11, "0x10KiB": 16 << 10, "1_000_000": 1_000_000, "010": 8, "0B": 0,
	} {
		var s Size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: %d, %v; want %d", text, s, err, want)
		}
		// What it says is understood.
		var again Size
		if err := again.Set(s.String()); err != nil || again != s {
			t.Errorf("%d says %s, which is %d: %v", s, s.String(), again, err)
		}
	}
	for _, text := range []string{"", "B", "GiB", "-1", "-1K", "1.5G", "1 G", "1gb", "1GB", "much", "4194305TiB", "9223372036854775807K", "99999999999999999999", "+5", "+5K", "09"} {
		s := Size(5)
		if err := s.Set(text); err == nil || s != 5 {
			t.Errorf("%q is taken: %d", text, s)
		}
	}
	for s, want := range map[Size]string{512 << 20: "512MiB", 3 << 30: "3GiB", 1536 << 20: "1610612736", 1000: "1000", 1<<20 + 1: "1048577", 1 << 10: "1KiB", 2 << 40: "2TiB"} {
		if got := s.String(); got != want {
			t.Errorf("%d says %s, want %s", s, got, want)
		}
	}
}

func TestLimit(t *testing.T) {
	for text, want := range map[string]Limit{"0": 0, "-1": -1, "64MiB": 64 << 20, "-1G": -1 << 30, "5": 5} {
		l := Limit(3)
		if err := l.Set(text); err != nil || l != want {
			t.Errorf("%s: %d, %v; want %d", text, l, err, want)
		}
		var again Limit
		if err := again.Set(l.String()); err != nil || again != l {
			t.Errorf("%d says %s, which is %d: %v", l, l.String(), again, err)
		}
	}
	for _, text := range []string{"", "-", "--1", "x", "1.5G"} {
		l := Limit(3)
		if err := l.Set(text); err == nil || l != 3 {
			t.Errorf("%q is taken: %d", text, l)
		}
	}
}
