package fscmd

import "testing"

func TestParseMode(t *testing.T) {
	for _, c := range []struct {
		mode string
		bits uint32
		dir  bool
		want uint32
	}{
		{"0644", 0o777, false, 0o644},
		{"1777", 0, true, 0o1777},
		{"755", 0, true, 0o755},
		{"u+x", 0o644, false, 0o744},
		{"go-w", 0o666, false, 0o644},
		{"a=r", 0o777, false, 0o444},
		{"=r", 0o777, false, 0o444},
		{"u=rwx,go=rX", 0o600, true, 0o755},
		{"u=rw,go=rX", 0o600, false, 0o644},
		{"a+X", 0o744, false, 0o755},
		{"+t", 0o755, true, 0o1755},
		{"-t", 0o1755, true, 0o755},
	} {
		change, err := parseMode(c.mode)
		if err != nil {
			t.Errorf("%s: %v", c.mode, err)
			continue
		}
		if got := change(c.bits, c.dir); got != c.want {
			t.Errorf("%s of %o: %o, want %o", c.mode, c.bits, got, c.want)
		}
	}
	for _, bad := range []string{"", "8", "07777", "2777", "u", "u+q", "k+x", "64a", "99999999999999"} {
		if _, err := parseMode(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 20: "1.5 GiB", 1 << 62: "4.0 EiB"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestPathsAreRelativeToTheHome(t *testing.T) {
	for in, want := range map[string]string{"/a/../b": "/b", "/": "/", "/x//y/": "/x/y"} {
		if got := (&session{}).path(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
