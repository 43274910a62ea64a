package hdfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/hadoop/exception"
)

func entries(t *testing.T, text string, perms bool) []ACLEntry {
	t.Helper()
	list, err := ParseACL(text, perms)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// showsACL compares a mode and the entries that it does not have, in the order of HDFS.
func showsACL(t *testing.T, c *Client, name string, mode fs.FileMode, want ...string) {
	t.Helper()
	a, err := c.ACL(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(a.Entries))
	for i, e := range a.Entries {
		got[i] = e.String()
	}
	if a.Mode != mode || !slices.Equal(got, want) || a.Owner != c.User() {
		t.Errorf("%s of %s is %#o %q, want %#o %q", name, a.Owner, a.Mode, got, mode, want)
	}
}

func refusedAs(t *testing.T, what string, err error, class exception.Class) {
	t.Helper()
	var told *ServerError
	var path *fs.PathError
	if !errors.As(err, &told) || told.Class != class || !errors.As(err, &path) {
		t.Errorf("%s: %v, want %s", what, err, class)
	}
}

// Access control lists are set, changed, inherited and taken away, and decide who reads.
func TestClientACLs(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain)
	ada := s.own(plain, func(cfg *ClientConfig) { cfg.User = "ada" })
	ctx := t.Context()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const file, dir = "/acl/file", "/acl/dir"
	content := []byte("only for some")
	ok(c.MkdirAll(ctx, dir, 0o755))
	ok(c.Chmod(ctx, "/acl", 0o755))
	ok(c.Chmod(ctx, dir, 0o750))
	ok(c.WriteFile(ctx, file, content, 0o640))
	showsACL(t, c, file, 0o640)
	if _, err := ada.ReadFile(ctx, file); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("without an entry: %v", err)
	}

	ok(c.SetACL(ctx, file, entries(t, "user::rw-,user:ada:r--,group::r--,other::---", true)))
	showsACL(t, c, file, 0o640, "user:ada:r--", "group::r--")
	expect(t, ada, file, content)
	if w, err := ada.Append(ctx, file, AppendOptions{}); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("append by who may read: %v %v", w, err)
	}
	ok(c.ModifyACL(ctx, file, entries(t, "user:ada:rw-,group:staff:r-x", true)))
	showsACL(t, c, file, 0o670, "user:ada:rw-", "group::r--", "group:staff:r-x")
	ok(c.ModifyACL(ctx, file, entries(t, "mask::-w-", true))) // of no use to who wants to read
	showsACL(t, c, file, 0o620, "user:ada:rw-", "group::r--", "group:staff:r-x")
	if _, err := ada.ReadFile(ctx, file); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("behind the mask: %v", err)
	}
	ok(c.ModifyACL(ctx, file, entries(t, "user:ada:r--", true))) // the mask is made anew
	expect(t, ada, file, content)
	ok(c.RemoveACLEntries(ctx, file, entries(t, "user:ada,group:staff", false)))
	showsACL(t, c, file, 0o640, "group::r--")
	ok(c.SetACL(ctx, file, entries(t, "user::rw-,user:ada:r--,group::r--,other::---", true)))
	ok(c.RemoveACL(ctx, file))
	showsACL(t, c, file, 0o640)
	if _, err := ada.ReadFile(ctx, file); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("after the list is gone: %v", err)
	}

	// What is made in a directory has what its default entries say.
	ok(c.SetACL(ctx, dir, entries(t, "user::rwx,user:ada:r-x,group::r-x,other::---,default:user:ada:rwx", true)))
	defaults := []string{"default:user::rwx", "default:user:ada:rwx", "default:group::r-x", "default:mask::rwx", "default:other::---"}
	access := []string{"user:ada:r-x", "group::r-x"}
	showsACL(t, c, dir, 0o750, slices.Concat(access, defaults)...)
	ok(c.MkdirAll(ctx, dir+"/below", 0o755))
	showsACL(t, c, dir+"/below", 0o750, slices.Concat([]string{"user:ada:rwx", "group::r-x"}, defaults)...)
	ok(c.WriteFile(ctx, dir+"/file", content, 0o644))
	showsACL(t, c, dir+"/file", 0o640, "user:ada:rwx", "group::r-x")
	expect(t, ada, dir+"/file", content)
	ok(c.RemoveDefaultACL(ctx, dir))
	showsACL(t, c, dir, 0o750, access...)
	ok(c.WriteFile(ctx, dir+"/later", content, 0o640))
	showsACL(t, c, dir+"/later", 0o640)
	ok(c.SetACL(ctx, dir, entries(t, "default:user::rwx,default:group::r-x,default:other::r-x", true)))
	showsACL(t, c, dir, 0o750, slices.Concat(access, []string{"default:user::rwx", "default:group::r-x", "default:other::r-x"})...)

	refusedAs(t, "without the owner's", c.SetACL(ctx, file, entries(t, "user:ada:r--", true)), exception.ACL)
	refusedAs(t, "twice", c.ModifyACL(ctx, file, entries(t, "user:ada:r--,user:ada:rw-", true)), exception.ACL)
	refusedAs(t, "a named mask", c.ModifyACL(ctx, file, []ACLEntry{{Type: ACLMask, Name: "ada", Perm: 7}}), exception.ACL)
	refusedAs(t, "a file's defaults", c.ModifyACL(ctx, file, entries(t, "default:user:ada:r--", true)), exception.ACL)
	refusedAs(t, "the owner's removed", c.RemoveACLEntries(ctx, file, entries(t, "user:", false)), exception.ACL)
	var many []ACLEntry
	for i := range 33 {
		many = append(many, ACLEntry{Type: ACLUser, Name: fmt.Sprint("u", i), Perm: 4})
	}
	refusedAs(t, "too many", c.ModifyACL(ctx, file, many), exception.ACL)
	showsACL(t, c, file, 0o640)
	all := map[string]func(*Client, string) error{
		"SetACL": func(c *Client, n string) error {
			return c.SetACL(ctx, n, entries(t, "user::rw-,group::r--,other::---", true))
		},
		"ModifyACL":        func(c *Client, n string) error { return c.ModifyACL(ctx, n, entries(t, "user:ada:rwx", true)) },
		"RemoveACLEntries": func(c *Client, n string) error { return c.RemoveACLEntries(ctx, n, entries(t, "user:ada", false)) },
		"RemoveDefaultACL": func(c *Client, n string) error { return c.RemoveDefaultACL(ctx, n) },
		"RemoveACL":        func(c *Client, n string) error { return c.RemoveACL(ctx, n) },
		"ACL":              func(c *Client, n string) error { _, err := c.ACL(ctx, n); return err },
	}
	for what, do := range all {
		if err := do(c, "/acl/none"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of no file: %v", what, err)
		}
		if err := do(ada, file); what != "ACL" && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s of another's file: %v", what, err)
		}
	}
}

func showsXAttrs(t *testing.T, c *Client, name string, want map[string]string, names ...string) {
	t.Helper()
	list, err := c.XAttrs(t.Context(), name, names...)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, x := range list {
		got[x.Name] = string(x.Value)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || len(list) != len(want) {
		t.Errorf("%s has %q, want %q", name, got, want)
	}
}

// Extended attributes are made, replaced, listed and removed; of each namespace by whom
// HDFS lets.
func TestClientXAttrs(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain)
	ada := s.own(plain, func(cfg *ClientConfig) { cfg.User = "ada" })
	ctx := t.Context()
	const file = "/xattr/file"
	if err := c.WriteFile(ctx, file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	showsXAttrs(t, c, file, nil)
	ok(c.CreateXAttr(ctx, file, "user.a", []byte("first")))
	refusedAs(t, "made twice", c.CreateXAttr(ctx, file, "user.a", []byte("second")), exception.IO)
	showsXAttrs(t, c, file, map[string]string{"user.a": "first"})
	ok(c.ReplaceXAttr(ctx, file, "user.a", []byte("second")))
	refusedAs(t, "nothing to replace", c.ReplaceXAttr(ctx, file, "user.b", nil), exception.IO)
	ok(c.SetXAttr(ctx, file, "user.a", []byte{0, 0xff, 'x'}))
	ok(c.SetXAttr(ctx, file, "user.b", nil))
	ok(c.SetXAttr(ctx, file, "trusted.c", []byte("c")))
	ok(c.SetXAttr(ctx, "/xattr", "USER.of a directory", []byte("d")))
	showsXAttrs(t, c, file, map[string]string{"user.a": "\x00\xffx", "user.b": "", "trusted.c": "c"})
	showsXAttrs(t, c, file, map[string]string{"user.a": "\x00\xffx", "trusted.c": "c"}, "trusted.c", "user.a")
	showsXAttrs(t, c, "/xattr", map[string]string{"user.of a directory": "d"})
	showsXAttrs(t, ada, file, map[string]string{"user.a": "\x00\xffx", "user.b": ""})
	if _, err := c.XAttrs(ctx, file, "user.none"); err == nil {
		t.Error("an attribute that is not there was returned")
	}
	ok(c.RemoveXAttr(ctx, file, "user.a"))
	refusedAs(t, "removed twice", c.RemoveXAttr(ctx, file, "user.a"), exception.IO)
	showsXAttrs(t, c, file, map[string]string{"user.b": "", "trusted.c": "c"})

	const limit = 16_384 // of a name without its namespace and the value
	largest := bytes.Repeat([]byte("v"), limit-len("large"))
	ok(c.SetXAttr(ctx, file, "user.large", largest))
	showsXAttrs(t, c, file, map[string]string{"user.large": string(largest)}, "user.large")
	if err := c.SetXAttr(ctx, file, "user.large", append(largest, 'v')); !errors.Is(err, fs.ErrInvalid) || !strings.Contains(err.Error(), "16385") {
		t.Errorf("a byte too many: %v", err)
	}
	showsXAttrs(t, c, file, map[string]string{"user.large": string(largest)}, "user.large")
	for i := range 29 { // with b, c and large 32
		ok(c.CreateXAttr(ctx, file, fmt.Sprint("user.n", i), nil))
	}
	refusedAs(t, "one too many", c.CreateXAttr(ctx, file, "user.more", nil), exception.IO)

	type change = func(c *Client, name, attribute string) error
	changes := map[string]change{
		"set":     func(c *Client, n, a string) error { return c.SetXAttr(ctx, n, a, nil) },
		"create":  func(c *Client, n, a string) error { return c.CreateXAttr(ctx, n, a, nil) },
		"replace": func(c *Client, n, a string) error { return c.ReplaceXAttr(ctx, n, a, nil) },
		"remove":  func(c *Client, n, a string) error { return c.RemoveXAttr(ctx, n, a) },
		"get":     func(c *Client, n, a string) error { _, err := c.XAttrs(ctx, n, a); return err },
	}
	for what, do := range changes {
		for _, bad := range []string{"", "a", "user", "user.", ".a", "nobody.a", "userx.a", " user.a"} {
			var told *ServerError
			if err := do(c, file, bad); !errors.Is(err, fs.ErrInvalid) || errors.As(err, &told) {
				t.Errorf("%s of %q: %v", what, bad, err)
			}
		}
		for _, foreign := range []string{"security.a", "system.a", "raw.a"} {
			if err := do(c, file, foreign); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s of %s: %v", what, foreign, err)
			}
		}
		if err := do(c, "/xattr/none", "user.a"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s of no file: %v", what, err)
		}
		if err := do(ada, file, "trusted.c"); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s of a trusted attribute: %v", what, err)
		}
		if err := do(ada, file, "user.b"); what != "get" && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s of another's: %v", what, err)
		}
	}
	if err := c.SetXAttr(ctx, "/xattr", "security.hdfs.unreadable.by.superuser", nil); err == nil {
		t.Error("a directory that the superuser may not read")
	}
	ok(c.SetXAttr(ctx, file, "security.hdfs.unreadable.by.superuser", nil))
	if _, err := c.Open(ctx, file); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("unreadable by the superuser: %v", err)
	}
}
