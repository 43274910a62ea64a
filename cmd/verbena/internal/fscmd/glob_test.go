package fscmd

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestGlob(t *testing.T) {
	root := fstest.MapFS{}
	for _, name := range []string{"logs/2026-01.gz", "logs/2026-02.gz", "logs/2026-02.txt", "logs/old/x", "data/a", "data/b", "data/c*"} {
		root[name] = &fstest.MapFile{}
	}
	for pattern, want := range map[string]string{
		"/logs/*.gz":                "/logs/2026-01.gz /logs/2026-02.gz",
		"/logs/2026-0?.txt":         "/logs/2026-02.txt",
		"/*/{a,x,2026-01.gz}":       "/data/a /logs/2026-01.gz",
		"/data/[ab]":                "/data/a /data/b",
		"/data/[!a]*":               "/data/b /data/c*",
		"/{logs/old,data}/{x,b,y}":  "/logs/old/x /data/b",
		"/data/{a,{b,q}}":           "/data/a /data/b",
		"/data/{a,b}{,*}":           "/data/a /data/b",
		`/data/c\*`:                 "/data/c*",
		"/lo*/o*/*":                 "/logs/old/x",
		"/{data/a,data/b,data/nil}": "/data/a /data/b",
	} {
		got, err := globIn(root, pattern)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v %v", pattern, got, err)
		}
	}
	for pattern, want := range map[string]error{
		"/logs/*.zip": fs.ErrNotExist, "/none/*": fs.ErrNotExist, "/data/{a": path.ErrBadPattern, "/data/[": path.ErrBadPattern,
	} {
		if got, err := globIn(root, pattern); !errors.Is(err, want) {
			t.Errorf("%s: %v %v", pattern, got, err)
		}
	}
	if _, err := braces(strings.Repeat("{a,b,c,d}", 10)); err == nil {
		t.Error("a million alternatives")
	}
}

func FuzzBraces(f *testing.F) {
	for _, s := range []string{"/a/{b,c}", "{{a,b},c}{d}", "}{", `\{a,b}`, "{,}", "/x*[a-z]?"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		if len(pattern) > 100 {
			return
		}
		out, err := braces(pattern)
		if err != nil {
			return
		}
		if len(out) == 0 || len(out) > 2*mostAlternatives {
			t.Errorf("%q stands for %d patterns", pattern, len(out))
		}
		if !strings.Contains(pattern, "{") && !slices.Equal(out, []string{pattern}) {
			t.Errorf("%q becomes %q", pattern, out)
		}
	})
}
