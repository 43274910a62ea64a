package fscmd

import (
	"errors"
	"io/fs"
	"os"
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
		"/logs/*.gz":                 "/logs/2026-01.gz /logs/2026-02.gz",
		"/logs/2026-0?.txt":          "/logs/2026-02.txt",
		"/*/{a,x,2026-01.gz}":        "/data/a /logs/2026-01.gz",
		"/data/[ab]":                 "/data/a /data/b",
		"/data/[!a]*":                "/data/b /data/c*",
		"/{logs/old,data}/{x,b,y}":   "/data/b /logs/old/x", // in the order of the paths
		"/data/{b,a}":                "/data/a /data/b",
		"/{data,logs/{old/x,none}}":  "/data /logs/old/x",
		"/data/{a,{b,q}}":            "/data/a /data/b",
		"/data/{a,b}{,*}":            "/data/a /data/b",
		`/data/c\*`:                  "/data/c*",
		"/lo*/o*/*":                  "/logs/old/x",
		"/{data/a,data/b,data/nil}":  "/data/a /data/b",
		"/{data/b,data/*,data/[ab]}": "/data/a /data/b /data/c*", // each once
	} {
		got, err := globIn(root, pattern)
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %v %v", pattern, got, err)
		}
	}
	for pattern, want := range map[string]string{
		"/logs/*.zip": "find /logs/*.zip: file does not exist", "/none/*": "find /none/*: file does not exist",
		"/data/a/*":       "find /data/a/*: file does not exist",
		"/{data/nil,a/b}": "find /{data/nil,a/b}: file does not exist",
		"/data/{a":        "Illegal file pattern: error parsing regexp: Unclosed group at pos 2: `{a`",
		"/data/[":         "Illegal file pattern: error parsing regexp: Unclosed character class at pos 1: `[`",
		"/data/[a[b]":     "Illegal file pattern: error parsing regexp: Unclosed character class at pos 2: `[a[b]`",
		`/data/a\`:        "Illegal file pattern: error parsing regexp: Missing escaped character at pos 2: `a\\`",
		"/data/[b-a]":     "Illegal file pattern: error parsing regexp: invalid character class range: `b-a`",
	} {
		if got, err := globIn(root, pattern); err == nil || err.Error() != want {
			t.Errorf("%s: %v %v", pattern, got, err)
		}
	}
	for _, name := range []string{`/data/\d`, `/data/a\*`, `/logs/2026-02.txt/\x`} {
		if got, err := globIn(root, name); got != nil || err != nil {
			t.Errorf("%s, which is a name: %v %v", name, got, err)
		}
	}
	if _, err := braces(strings.Repeat("{a/b,b,c,d}", 10)); err == nil {
		t.Error("a million alternatives")
	}
}

// A directory that can't be read on the way is told of, though others match.
func TestGlobTellsOfWhatItCannotRead(t *testing.T) {
	root := unreadable{fstest.MapFS{"a/x": &fstest.MapFile{}, "b/x": &fstest.MapFile{}}, "b"}
	if got, err := globIn(root, "/a/*"); err != nil || !slices.Equal(got, []string{"/a/x"}) {
		t.Errorf("%v %v", got, err)
	}
	if got, err := globIn(root, "/*/*"); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%v %v", got, err)
	}
}

// unreadable is a file system with a directory that nobody may read.
type unreadable struct {
	fstest.MapFS
	dir string
}

func (u unreadable) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == u.dir {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrPermission}
	}
	return u.MapFS.ReadDir(name)
}

// Patterns of names are Hadoop's, with braces in braces and ! in sets.
func TestNamePatterns(t *testing.T) {
	for pattern, names := range map[string]struct{ match, differ string }{
		"*.{csv,json}": {"a.csv .json x.y.json", "csv acsv a.jsonl"},
		"[!a-c]?":      {"dx !y", "ax dxy"},
		"[^a]":         {"b ^", "a"},
		"a{b,{c,d}e}f": {"abf acef adef", "acf aef"},
		"[]a]":         {"] a", "b"},
		`\*\{x,y\}`:    {"*{x,y}", "ax *x"},
		"a,b}":         {"a,b}", "a"},
		"a.b+c(d)|e$^": {"a.b+c(d)|e$^", "axb+c(d)|e$^"},
		"[a-]":         {"a -", "b"},
		`[\]x]`:        {"] x", `\`},
		"é?":           {"éü", "é"},
		"a.":           {"a.", "ab"},
	} {
		m, err := compile(pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		for _, name := range strings.Fields(names.match) {
			if !m.matches(name) {
				t.Errorf("%s does not match %s", pattern, name)
			}
		}
		for _, name := range strings.Fields(names.differ) {
			if m.matches(name) {
				t.Errorf("%s matches %s", pattern, name)
			}
		}
	}
}

func FuzzBraces(f *testing.F) {
	for _, s := range []string{"/a/{b,c}", "{{a,b},c}{d}", "}{", `\{a,b}`, "{,}", "/x*[a-z]?", "/{a/b,{c,d}/e}"} {
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
		for _, p := range out {
			if slashed(p) != nil {
				t.Errorf("%q becomes %q", pattern, p)
			}
			for part := range strings.SplitSeq(p, "/") {
				if m, err := compile(part); err == nil && !m.wild && !m.matches(m.name) {
					t.Errorf("%q does not match %q", part, m.name)
				}
			}
		}
		if !strings.Contains(pattern, "{") && !slices.Equal(out, []string{pattern}) {
			t.Errorf("%q becomes %q", pattern, out)
		}
	})
}

// A command of which all patterns match nothing does nothing: it takes its last argument for
// nothing else, and leaves what is there.
func TestPatternsThatMatchNothing(t *testing.T) {
	s := startShell(t)
	t.Chdir(t.TempDir())
	localFiles(t, ".", "out", "source")
	s.must("mkdir", "-p", "/user/root", "/d")
	s.must("put", "source", "/user/root/out")
	s.must("put", "source", "/user/root/other")
	here := func(name, want string) {
		t.Helper()
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, verb := range []string{"getmerge", "get"} {
		for _, to := range []string{"out", "new"} {
			s.fails([]string{verb, "/none*", to}, verb+": `/none*': No such file or directory")
		}
	}
	s.fails([]string{"get", "-f", "/none*", "out"}, "get: `/none*': No such file or directory")
	here("out", "out")
	if _, err := os.Stat("new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing becomes something: %v", err)
	}
	s.must("get", "/user/root/ot*") // to the directory here
	here("other", "source")
	s.fails([]string{"get", "/none*"}, "get: `/none*': No such file or directory")
}

// Characters of patterns are quoted by backslashes, also in names that are to be made.
func TestNamesAreMadeOfQuotedPatterns(t *testing.T) {
	s := startShell(t)
	s.must("mkdir", `/x\[1\]`)
	s.must("touchz", `/x\[1\]/a\*`)
	s.must("cp", `/x\[1\]/a\*`, `/x\[1\]/\{b\}`)
	if got := s.must("ls", "-C", `/x\[1\]`); got != "/x[1]/a*\n/x[1]/{b}\n" {
		t.Errorf("%q", got)
	}
	s.fails([]string{"ls", `/y\?`}, "ls: `/y?': No such file or directory")
}
