package fscmd

import (
	"fmt"
	"strings"
	"testing"
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
