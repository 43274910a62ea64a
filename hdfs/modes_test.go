package hdfs

import (
	"io/fs"
	"testing"
)

// Umasks are what Hadoop's UmaskParser makes of them.
func TestUmasksAreHadoops(t *testing.T) {
	for text, want := range map[string]uint32{
		"022": 0o022, "0022": 0o022, "777": 0o777, "000": 0, " 027 ": 0o027,
		"u=rwx,g=rwx,o=rwx": 0, "u=rwx,g=rwx,o=rw": 0o001, "u=rwx,g=rx,o=": 0o027, "u=rw,g=x,o=wx": 0o164, "u=rwx, g=rx, o=rx": 0o022,
		"a+rw": 0o111, "=rx": 0o222, "go=r,u=rwx": 0o033, "u+rwx,g+rx": 0o027, "u=rwx,": 0o077,
		"a=rwx,u+w": 0o500, "a=rwx,o-w": 0o007, "u=rwx,g=+-=rx,o-": 0o027, "au=rwx": 0o077, "a-rwx": 0o777,
	} {
		if got, err := parseUmask(text); err != nil || got != want {
			t.Errorf("%q: %03o, %v, want %03o", text, got, err, want)
		}
	}
	for _, bad := range []string{"1777", "99", "foo", "", "u", "u=rwX", "u=rwxt", "u=rwx g=rx", "+022", "rwx", "k=r", "u=r,,g", "-1"} {
		if got, err := parseUmask(bad); err == nil {
			t.Errorf("%q was accepted as %03o", bad, got)
		}
	}
}

// showsMode compares the mode of a path.
func showsMode(t *testing.T, c *Client, name string, want fs.FileMode) {
	t.Helper()
	info, err := c.Stat(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != want {
		t.Errorf("%s has mode %03o, want %03o", name, got, want)
	}
}

// The umask is taken from the modes that the program does not say, of files and of
// directories, and from no other; a directory's default access control list takes its place.
func TestUmaskIsTakenFromModes(t *testing.T) {
	s := startSystem(t, 1, 1)
	ctx := t.Context()
	done := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	first := s.own(plain)
	done(first.Mkdir(ctx, "/inherits", 0))
	done(first.ModifyACL(ctx, "/inherits", entries(t, "default:user:ada:rwx", true)))
	for dir, each := range map[string]struct {
		umask           *uint32
		directory, file fs.FileMode
	}{
		"unset": {nil, 0o755, 0o644}, "000": {ptr(0), 0o777, 0o666}, "002": {ptr(0o002), 0o775, 0o664}, "077": {ptr(0o077), 0o700, 0o600},
	} {
		c := s.own(plain, func(cfg *ClientConfig) { cfg.Umask = each.umask })
		at := "/" + dir
		done(c.Mkdir(ctx, at, 0))
		done(c.MkdirAll(ctx, at+"/a/b", 0))
		done(c.WriteFile(ctx, at+"/file", nil, 0))
		done(c.Mkdir(ctx, at+"/given", 0o757))
		done(c.WriteFile(ctx, at+"/given-file", nil, 0o646))
		for name, want := range map[string]fs.FileMode{"": each.directory, "/a/b": each.directory, "/file": each.file, "/given": 0o757, "/given-file": 0o646} {
			showsMode(t, c, at+name, want)
		}

		at = "/inherits/" + dir
		done(c.Mkdir(ctx, at, 0))
		done(c.WriteFile(ctx, at+"-file", nil, 0))
		done(c.Mkdir(ctx, at+"-given", 0o750))
		done(c.WriteFile(ctx, at+"-given-file", nil, 0o640))
		list := []string{"user:ada:rwx", "group::r-x"}
		defaults := []string{"default:user::rwx", "default:user:ada:rwx", "default:group::r-x", "default:mask::rwx", "default:other::r-x"}
		showsACL(t, c, at, 0o775, append(list, defaults...)...)
		showsACL(t, c, at+"-file", 0o664, list...)
		showsACL(t, c, at+"-given", 0o750, append(list, defaults...)...)
		showsACL(t, c, at+"-given-file", 0o640, list...)
	}
}

func ptr(umask uint32) *uint32 { return &umask }
