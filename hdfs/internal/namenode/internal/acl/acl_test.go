package acl

import (
	"reflect"
	"strings"
	"testing"
)

// parse reads entries as the shell takes them.
func parse(t testing.TB, list string) (out []Entry) {
	for text := range strings.FieldsSeq(list) {
		e := Entry{}
		if rest, ok := strings.CutPrefix(text, "default:"); ok {
			text, e.Scope = rest, Default
		}
		f := strings.Split(text, ":")
		if len(f) != 3 {
			t.Fatalf("%q is no entry", text)
		}
		for i, name := range typeNames {
			if name == f[0] {
				e.Type = Type(i)
			}
		}
		e.Name = f[1]
		for i, c := range f[2] {
			if c != '-' {
				e.Perm |= 4 >> i
			}
		}
		out = append(out, e)
	}
	return out
}

func text(entries []Entry) string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.String()
	}
	return strings.Join(out, " ")
}

// many are n named entries.
func many(n int, before string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(before + "user:u" + string(rune('A'+i/26)) + string(rune('A'+i%26)) + ":r-- ")
	}
	return b.String()
}

const minimal = "user::rwx group::r-x other::---"

// TestChanges compares with what Apache HDFS makes of the same lists.
func TestChanges(t *testing.T) {
	changes := map[string]func(full, spec []Entry) ([]Entry, error){
		"merge": Merge, "filter": Filter, "replace": Replace,
		"filterDefault": func(full, _ []Entry) ([]Entry, error) { return FilterDefault(full) },
	}
	for _, c := range []struct{ change, full, spec, want string }{
		{"merge", minimal, "user:bob:r--", "user::rwx user:bob:r-- group::r-x mask::r-x other::---"},
		{"merge", minimal, "user:bob:r-- mask::r--", "user::rwx user:bob:r-- group::r-x mask::r-- other::---"},
		{"merge", minimal, "mask::-w-", "user::rwx group::r-x mask::-w- other::---"},
		{"merge", minimal, "default:user:bob:rw-", minimal + " default:user::rwx default:user:bob:rw- default:group::r-x default:mask::rwx default:other::---"},
		{"merge", "user::rwx user:bob:rwx group::r-- mask::r-- other::---", "user:carol:r-x", "user::rwx user:bob:rwx user:carol:r-x group::r-- mask::rwx other::---"},
		{"merge", "user::rwx user:bob:rwx group::r-- mask::r-- other::---", "default:group::r--", "user::rwx user:bob:rwx group::r-- mask::r-- other::--- default:user::rwx default:group::r-- default:other::---"},
		// Of an entry that is there already, sent twice, one counts.
		{"merge", minimal, "user::r-- user::-w-", "user::r-- group::r-x other::---"},
		{"merge", minimal, "user:bob:r-- user:bob:-w-", "!Invalid ACL: multiple entries with same scope, type and name."},
		{"merge", minimal, "mask:bob:r--", "!Invalid ACL: this entry type must not have a name: mask:bob:r--."},
		{"merge", minimal, "default:other:bob:r--", "!Invalid ACL: this entry type must not have a name: default:other:bob:r--."},
		{"merge", minimal, many(28, ""), "user::rwx " + many(28, "") + "group::r-x mask::r-x other::---"},
		{"merge", minimal, many(29, ""), "!Invalid ACL: ACL has 33 access entries, which exceeds maximum of 32."},
		{"merge", minimal, many(33, "default:"), "!Invalid ACL: ACL has 33 default entries, which exceeds maximum of 32."},
		{"filter", "user::rwx user:bob:rwx group::r-- mask::rwx other::---", "user:bob:---", "user::rwx group::r-- mask::r-- other::---"},
		{"filter", "user::rwx user:bob:rwx group::r-- mask::rwx other::---", "user:bob:--- mask::---", "user::rwx group::r-- other::---"},
		{"filter", "user::rwx user:bob:rwx group::r-- mask::rwx other::---", "mask::---", "!Invalid ACL: mask is required and cannot be deleted."},
		{"filter", minimal, "other::---", "!Invalid ACL: the user, group and other entries are required."},
		{"filter", minimal + " default:user::r-- default:group::r-- default:other::r--", "default:user::---", minimal + " default:user::rwx default:group::r-- default:other::r--"},
		{"filterDefault", minimal + " default:user::r-- default:group::r-- default:other::r--", "", minimal},
		{"replace", "user::rwx user:bob:rwx group::r-- mask::r-- other::---", minimal, minimal},
		{"replace", "user::rwx user:bob:rwx group::r-- mask::r-- other::---", "default:user::r--", "user::rwx user:bob:rwx group::r-- mask::r-- other::--- default:user::r-- default:group::r-- default:other::---"},
		{"replace", minimal, "user:bob:r--", "!Invalid ACL: the user, group and other entries are required."},
	} {
		full, err := changes[c.change](parse(t, c.full), parse(t, c.spec))
		got := text(full)
		if err != nil {
			got = "!" + err.Error()
		}
		if got != strings.TrimSpace(c.want) {
			t.Errorf("%s %s\n with %s\n got %s\nwant %s", c.change, c.full, c.spec, got, c.want)
		}
	}
}

func TestInherit(t *testing.T) {
	const rich = "default:user::rwx default:user:bob:rwx default:group::r-x default:mask::rwx default:other::--x"
	for _, c := range []struct {
		parent    string
		mode      uint16
		directory bool
		wantMode  uint16
		want      string
	}{
		{"user:bob:rwx group::r-x", 0o1640, false, 0o1640, "none"},
		{rich, 0o666, false, 0o660, "user:bob:rwx group::r-x"},
		{rich, 0o1750, true, 0o1750, "user:bob:rwx group::r-x " + rich},
		{"default:user::rwx default:group::r-x default:other::r-x", 0o664, false, 0o644, ""},
		{"default:user::rwx default:group::r-x default:other::r-x", 0o700, true, 0o700, "default:user::rwx default:group::r-x default:other::r-x"},
	} {
		mode, kept, ok := Inherit(parse(t, c.parent), c.mode, c.directory)
		got := text(kept)
		if !ok {
			got = "none"
		}
		if mode != c.wantMode || got != c.want {
			t.Errorf("%o below %s: %o and %q, want %o and %q", c.mode, c.parent, mode, got, c.wantMode, c.want)
		}
	}
}

func TestAllows(t *testing.T) {
	// The mask takes the right to write from all but the owner and others.
	kept := parse(t, "user:bob:rwx user:carol:--- group::r-- group:users:-wx group:guests:---")
	const mode = 0o0456
	for _, c := range []struct {
		user   string
		groups string
		may    uint8
	}{
		{"owner", "staff users", 4},
		{"bob", "guests", 5},
		{"carol", "staff users", 0},
		{"dave", "staff", 4},
		{"dave", "users", 1},
		{"dave", "staff users", 4 | 1}, // by one or the other, but not both at once
		{"dave", "guests", 0},
		{"erin", "", 6},
	} {
		for want := range uint8(8) {
			allowed := Allows(mode, kept, c.user == "owner", c.user, "staff", strings.Fields(c.groups), want)
			should := c.may&want == want
			if c.groups == "staff users" && c.user == "dave" && want == 5 {
				should = false
			}
			if allowed != should {
				t.Errorf("%s of %q may %o: %t", c.user, c.groups, want, allowed)
			}
		}
	}
	if HasAccess(parse(t, "default:user::rwx")) || !HasAccess(kept) {
		t.Error("HasAccess does not tell the scopes apart")
	}
}

func TestRemove(t *testing.T) {
	if got := Remove(0o1760, parse(t, "user:bob:rwx group::r-x default:user::rwx")); got != 0o1750 {
		t.Errorf("%o, want 1750: the owning group's entry takes the mask's place", got)
	}
	if got := Remove(0o760, parse(t, "default:user::rwx default:group::--- default:other::---")); got != 0o760 {
		t.Errorf("%o, want 760: there is no mask", got)
	}
}

// FuzzChanges has random changes keep what every list must be.
func FuzzChanges(f *testing.F) {
	f.Add(uint16(0o750), []byte{0, 1, 7, 1, 4, 5, 9, 2, 2})
	f.Add(uint16(0o1777), []byte{12, 0, 1, 3, 0, 0, 2, 1, 7, 1, 8, 3})
	f.Fuzz(func(t *testing.T, mode uint16, data []byte) {
		var spec []Entry
		for len(data) >= 3 {
			spec = append(spec, Entry{Scope: Scope(data[0] & 1), Type: Type(data[0] >> 1 & 3), Name: []string{"", "", "a", "b", "c", "d", "e", "f"}[data[1]&7], Perm: data[2] & 7})
			data = data[3:]
		}
		var kept []Entry
		for i := range spec {
			part := spec[:i+1]
			for _, change := range []func(full, spec []Entry) ([]Entry, error){Merge, Replace, Filter} {
				before := Full(mode, kept)
				full, err := change(before, part)
				if err != nil {
					continue
				}
				newMode, newKept := Split(mode, full)
				if err := Check(newKept); err != nil {
					t.Fatalf("%s and %s give %s: %v", text(before), text(part), text(full), err)
				}
				if back := Full(newMode, newKept); !reflect.DeepEqual(back, full) || newMode&^classes != mode&^classes {
					t.Fatalf("%s comes back as %s", text(full), text(back))
				}
				childMode, child, ok := Inherit(newKept, 0o777, true)
				if ok != (len(DefaultsOf(newKept)) > 0) || Check(child) != nil || childMode > 0o777 {
					t.Fatalf("a child of %s has %s", text(full), text(child))
				}
				mode, kept = newMode, newKept
			}
		}
	})
}
