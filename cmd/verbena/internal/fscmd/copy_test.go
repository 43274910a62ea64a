package fscmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs"
)

// Commands make directories and files with the modes that the umask leaves, or with those of
// a directory's default access control list.
func TestUmaskIsHeeded(t *testing.T) {
	s := startShell(t)
	s.must("mkdir", "/from")
	s.must("touchz", "/from/file")
	for umask, want := range map[uint32][2]string{0: {"777", "666"}, 0o002: {"775", "664"}, 0o077: {"700", "600"}} {
		s.properties = []string{fmt.Sprintf("fs.permissions.umask-mode=%03o", umask)}
		at := fmt.Sprintf("/%03o", umask)
		s.must("mkdir", at)
		s.must("mkdir", "-p", at+"/a/b")
		s.must("cp", "/from", at+"/copy")
		if a := s.perform("content", "put", "-", at+"/stored"); a.Code != 0 {
			t.Errorf("put -: %+v", a)
		}
		s.must("touchz", at+"/made")
		for name, mode := range map[string]string{"": want[0], "/a/b": want[0], "/copy": want[0], "/copy/file": want[1], "/stored": want[1], "/made": want[1]} {
			if got := s.must("stat", "%a", at+name); got != mode+"\n" {
				t.Errorf("umask %03o: %s%s has mode %s want %s", umask, at, name, got, mode)
			}
		}
	}
	s.must("mkdir", "/acl")
	s.must("setfacl", "-m", "default:user:ada:rwx", "/acl")
	s.must("mkdir", "/acl/sub")
	s.must("touchz", "/acl/file")
	s.must("cp", "/from/file", "/acl/copy")
	for name, want := range map[string]string{"/acl/sub": "\nuser:ada:rwx\n", "/acl/file": "\nuser:ada:rwx\t#effective:rw-\n", "/acl/copy": "\nuser:ada:rwx\t#effective:rw-\n"} {
		if got := s.must("getfacl", name); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", name, got, want)
		}
	}
}

// localFiles makes files below dir with their names in them, and the directories above.
func localFiles(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(name), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// fails performs a command that must fail and say just so much, in any order.
func (s *shell) fails(args []string, says ...string) {
	s.t.Helper()
	a := s.perform("", args...)
	told := a.Err
	for _, each := range says {
		if !strings.Contains(told, each+"\n") {
			s.t.Errorf("%v does not say %q: %s", args, each, a.Err)
		}
		told = strings.Replace(told, each+"\n", "", 1)
	}
	if a.Code != 1 || told != "" {
		s.t.Errorf("%v: code %d, says %q, too", args, a.Code, told)
	}
}

// A copy of a tree tells of each thing that can't be copied and goes on with all others, also
// with threads. What was there stays as it is.
func TestCopiesOfTreesGoOn(t *testing.T) {
	s := startShell(t)
	local := t.TempDir()
	tree := filepath.Join(local, "tree")
	localFiles(t, tree, "a/1", "a/2", "a/3", "b/4", "c/5", "d/6")
	if err := os.Chmod(filepath.Join(tree, "c"), 0o555); err != nil {
		t.Fatal(err)
	}
	writable := func(dir string) { t.Cleanup(func() { os.Chmod(dir, 0o755) }) } // so that it can be removed
	writable(filepath.Join(tree, "c"))
	s.must("put", tree, "/from")
	localFiles(t, local, "other")
	other := filepath.Join(local, "other")
	for _, threads := range []string{"1", "4"} {
		for verb, from := range map[string]string{"put": tree, "cp": "/from"} {
			to := "/" + verb + threads
			s.must("mkdir", "-p", to+"/tree/a", to+"/from/a")
			for _, dir := range []string{to + "/tree", to + "/from"} {
				s.must("put", other, dir+"/a/2")
				s.must("put", other, dir+"/b")
				s.must("touch", "-t", "20200102:030405", dir+"/a/2")
			}
			to += "/" + filepath.Base(from)
			before := s.must("stat", "%a %b %X %Y", to+"/a/2", to+"/b")
			s.fails([]string{verb, "-t", threads, "-p", from, filepath.Dir(to)}, verb+": `"+to+"/a/2': File exists", verb+": `"+to+"/b': Is not a directory")
			for _, name := range []string{"a/1", "a/3", "c/5", "d/6"} {
				if got := s.must("cat", to+"/"+name); got != name {
					t.Errorf("%s %s: %q in %s", verb, threads, got, name)
				}
			}
			if after := s.must("stat", "%a %b %X %Y", to+"/a/2", to+"/b"); after != before {
				t.Errorf("%s %s: %q has become %q", verb, threads, before, after)
			}
			if got := s.must("stat", "%a", to+"/c"); got != "555\n" {
				t.Errorf("%s %s: c has mode %s", verb, threads, got)
			}
			if a, b := s.must("stat", "%Y", "/from/d"), s.must("stat", "%Y", to+"/d"); verb == "cp" && a != b {
				t.Errorf("cp -p %s does not keep the time of d: %s, %s", threads, a, b)
			}
		}

		to := filepath.Join(local, "get"+threads)
		localFiles(t, to, "from/a/2", "from/b")
		to = filepath.Join(to, "from")
		writable(filepath.Join(to, "c"))
		s.fails([]string{"get", "-t", threads, "/from", filepath.Dir(to)}, "get: `"+to+"/a/2': File exists", "get: `"+to+"/b': Is not a directory")
		for name, want := range map[string]string{"a/1": "a/1", "a/2": "from/a/2", "a/3": "a/3", "b": "from/b", "c/5": "c/5", "d/6": "d/6"} {
			if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
				t.Errorf("get %s: %q in %s, %v", threads, got, name, err)
			}
		}
		if info, err := os.Stat(filepath.Join(to, "c")); err != nil || info.Mode().Perm() != 0o555 {
			t.Errorf("get %s: %v, %v", threads, info.Mode(), err)
		}
	}
}

// ending ends a command when it says something.
type ending struct {
	strings.Builder
	end func()
}

func (e *ending) Write(b []byte) (int, error) {
	e.end()
	return e.Builder.Write(b)
}

// A command that is ended while it copies a tree tries nothing further.
func TestCopiesOfTreesEnd(t *testing.T) {
	s := startShell(t)
	tree := filepath.Join(t.TempDir(), "tree")
	localFiles(t, tree, "a/1", "a/2", "a/3", "b/4")
	s.must("put", tree, "/from")
	s.must("put", tree, "/to")
	client, err := s.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var p put
	var g get
	for name, perform := range map[string]func(context.Context, *session) error{
		"put": func(ctx context.Context, s *session) error { return p.source(p.threads.begin(ctx, s), s, tree, "/to") },
		"cp": func(ctx context.Context, s *session) error {
			return s.copyTree(p.threads.begin(ctx, s), "/from", "/to", &p, kept{})
		},
		"get": func(ctx context.Context, s *session) error {
			return g.source(g.threads.begin(ctx, s), s, "/from", tree)
		},
	} {
		ctx, end := context.WithCancel(t.Context())
		said := ending{end: end}
		err := perform(ctx, &session{client: client, errOut: &said, verb: name})
		if lines := strings.Split(said.String(), "\n"); err == nil || len(lines) != 3 || !strings.Contains(lines[0], "/a/1") || !strings.Contains(lines[1], "canceled") {
			t.Errorf("%s: %v, says %q", name, err, said.String())
		}
	}
}

// A copy of trees ends when no NameNode answers, which is told once.
func TestCopiesEndWithTheConnection(t *testing.T) {
	s := startShell(t)
	local := t.TempDir()
	tree, target := filepath.Join(local, "tree"), filepath.Join(local, "target")
	for i := range 20 {
		localFiles(t, tree, fmt.Sprintf("a/%02d", i))
	}
	localFiles(t, tree, "b/c")
	localFiles(t, target, "tree/a/00")
	s.must("mkdir", "/copies")
	s.must("put", tree, "/")
	s.must("put", tree, "/copies")
	var p put
	var g get
	for verb, perform := range map[string]func(context.Context, *session) error{
		"put": func(ctx context.Context, s *session) error {
			return p.all(ctx, s, []string{tree, tree, "/"}, func(string) error { return nil })
		},
		"cp": func(ctx context.Context, s *session) error {
			ctx = p.threads.begin(ctx, s)
			return p.threads.each(ctx, []string{"/tree", "/tree"}, func(name string) error { return s.copyTree(ctx, name, "/copies/tree", &p, kept{}) })
		},
		"get": func(ctx context.Context, s *session) error { return g.all(ctx, s, []string{"/tree", "/tree"}, target) },
	} {
		for _, threads := range []int{1, 4} {
			client, err := s.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p, g = put{}, get{}
			p.threads.most, g.threads.most = threads, threads
			said := ending{end: func() { client.Close() }} // which the next call finds
			err = perform(t.Context(), &session{client: client, errOut: &said, verb: verb})
			lost := 0
			for line := range strings.Lines(said.String()) {
				if !strings.Contains(line, "File exists") {
					lost++
				}
			}
			if err == nil || lost != 1 {
				t.Errorf("%s -t %d: %v, says %s", verb, threads, err, said.String())
			}
		}
	}
}

// After some errors other files fail as well, after others they may do better.
func TestErrorsOfAllFiles(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&fs.PathError{Op: "create", Path: "/f", Err: fmt.Errorf("once more: %w", hdfs.ErrNoNameNode)}, true},
		{&fs.PathError{Op: "create", Path: "/f", Err: &hdfs.ServerError{Class: exception.Standby}}, true},
		{errors.Join(&fs.PathError{Op: "write", Path: "f", Err: syscall.ENOSPC}, fs.ErrClosed), true},
		{&fs.PathError{Op: "open", Path: "f", Err: syscall.EROFS}, true},
		{&fs.PathError{Op: "read", Path: "f", Err: syscall.EIO}, false},
		{&fs.PathError{Op: "create", Path: "/f", Err: &hdfs.ServerError{Class: exception.DSQuotaExceeded}}, false},
		{&fs.PathError{Op: "create", Path: "/f", Err: &hdfs.ServerError{Class: exception.AccessControl}}, false},
		{&fs.PathError{Op: "read", Path: "/f", Err: fmt.Errorf("%w: %w", hdfs.ErrBlockMissing, syscall.ECONNREFUSED)}, false},
		{isNo("put", "/f", fs.ErrExist), false},
		{fmt.Errorf("f: its owner is nobody here: %w", user.UnknownUserError("ada")), false},
	} {
		if got := ofAllFiles(c.err); got != c.want {
			t.Errorf("%v: %v", c.err, got)
		}
	}
}

// What is stored has the name that it has here, however it is named.
func TestPutNamesWhatItStores(t *testing.T) {
	s := startShell(t)
	local := filepath.Join(t.TempDir(), "above")
	localFiles(t, local, "here/f")
	t.Chdir(filepath.Join(local, "here"))
	for i, from := range []string{"..", "../.", ".", "../here/", "f"} {
		to := fmt.Sprint("/", i)
		s.must("mkdir", to)
		s.must("put", from, to)
		want := []string{"/above/here/f", "/above/here/f", "/here/f", "/here/f", "/f"}[i]
		if got := s.must("cat", to+want); got != "here/f" {
			t.Errorf("put %s: %q", from, got)
		}
	}
}

// put follows links, as Hadoop does. What it can't store it tells.
func TestPutFollowsLinks(t *testing.T) {
	s := startShell(t)
	local := t.TempDir()
	localFiles(t, local, "tree/a", "away/b", "away/below/c")
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(local, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("../away", "tree/dir")
	link("../away/b", "tree/file")
	link("tree", "link")
	stored := map[string]string{"a": "tree/a", "dir/b": "away/b", "dir/below/c": "away/below/c", "file": "away/b"}
	all := func(to string) {
		t.Helper()
		for name, want := range stored {
			if got := s.must("cat", to+"/"+name); got != want {
				t.Errorf("%s/%s: %q, want %q", to, name, got, want)
			}
		}
	}
	s.must("put", filepath.Join(local, "link"), "/through-a-link")
	all("/through-a-link")

	// What is left out keeps the tree here.
	link("nowhere", "tree/broken")
	link("..", "away/below/up") // to away, through tree/dir as well
	link("../tree", "tree/loop")
	dir, err := os.MkdirTemp("", "s") // for names that sockets can have
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	listener, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	link(filepath.Join(dir, "socket"), "tree/socket")
	at := filepath.Join(local, "tree")
	for _, verb := range []string{"put", "moveFromLocal"} {
		s.fails([]string{verb, at, "/" + verb}, verb+": `"+at+"/broken': No such file or directory", verb+": `"+at+"/dir/below/up': Is a link to a directory that it lies in",
			verb+": `"+at+"/loop': Is a link to a directory that it lies in", verb+": `"+at+"/socket': Is neither a file nor a directory")
		all("/" + verb)
	}
	for _, name := range []string{"tree/broken", "tree/loop", "away/below/up", "tree/socket"} {
		if err := os.Remove(filepath.Join(local, name)); err != nil {
			t.Error(err)
		}
	}

	// What is moved is gone, but not what links in it lead to.
	s.must("moveFromLocal", at, "/moved")
	all("/moved")
	if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the tree that was moved: %v", err)
	}
	for _, name := range []string{"away/b", "away/below/c"} {
		if _, err := os.Stat(filepath.Join(local, name)); err != nil {
			t.Error(err)
		}
	}
}

// moveFromLocal of standard input removes no file that is named so.
func TestMoveFromStandardInputRemovesNothing(t *testing.T) {
	s := startShell(t)
	t.Chdir(t.TempDir())
	localFiles(t, ".", "-")
	if a := s.perform("content", "moveFromLocal", "-", "/x"); a.Code != 0 || s.must("cat", "/x") != "content" {
		t.Errorf("%+v", a)
	}
	if _, err := os.Stat("-"); err != nil {
		t.Error(err)
	}
}
