package topology

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return name
}

func mustNew(t *testing.T, cfg Config) *Map {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTable(t *testing.T) {
	name := write(t, "# racks\n10.0.0.1 /a/1\n  10.0.0.2\t/a/2/ # the second\n\ndn3.example.org /b/1\n", 0o600)
	m := mustNew(t, Config{Table: name})
	for _, c := range []struct{ address, name, want string }{
		{"10.0.0.1", "dn1", "/a/1"},
		{"10.0.0.2", "", "/a/2"},
		{"10.0.0.3", "dn3.example.org", "/b/1"},
		{"10.0.0.4", "dn4", DefaultRack},
		{"", "", DefaultRack},
	} {
		if got := m.Rack(t.Context(), c.address, c.name); got != c.want {
			t.Errorf("%s %s is on %s, want %s", c.address, c.name, got, c.want)
		}
	}
	if err := os.WriteFile(name, []byte("10.0.0.1 /c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := m.Rack(t.Context(), "10.0.0.1", ""); got != "/a/1" {
		t.Errorf("before it is read again: %s", got)
	}
	if err := m.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := m.Rack(t.Context(), "10.0.0.1", ""); got != "/c" {
		t.Errorf("after it was read again: %s", got)
	}
	if err := os.WriteFile(name, []byte("10.0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Reload(); err == nil || !strings.Contains(err.Error(), ":1:") {
		t.Errorf("a line without a rack: %v", err)
	}
	if got := m.Rack(t.Context(), "10.0.0.1", ""); got != "/c" {
		t.Errorf("after a table that can't be read: %s", got)
	}
	for _, bad := range []string{"h rack", "h /a b", "h /"} {
		if _, err := New(Config{Table: write(t, bad, 0o600)}); err == nil {
			t.Errorf("the table %q was taken", bad)
		}
	}
}

func TestScript(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	text := "#!/bin/sh\necho \"$#\" >> " + dir + "/runs\nfor a; do case $a in 10.0.0.*) echo /x/1;; 10.0.1.*) echo /x/2;; *) exit 3;; esac; done\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	m := mustNew(t, Config{Script: script, ScriptArgs: 2, Table: write(t, "10.0.0.9 /table", 0o600)})
	m.Resolve(t.Context(), []string{"10.0.0.1", "10.0.1.1", "10.0.0.2", "10.0.0.9", "no address"})
	for address, want := range map[string]string{"10.0.0.1": "/x/1", "10.0.1.1": "/x/2", "10.0.0.2": "/x/1", "10.0.0.9": "/table"} {
		if got := m.Rack(t.Context(), address, ""); got != want {
			t.Errorf("%s is on %s, want %s", address, got, want)
		}
	}
	if runs, err := os.ReadFile(filepath.Join(dir, "runs")); err != nil || string(runs) != "2\n1\n" {
		t.Errorf("the script was run with %q arguments, %v", runs, err)
	}
	if got := m.Rack(t.Context(), "192.168.0.1", ""); got != DefaultRack {
		t.Errorf("after a failure: %s", got)
	}
	if got := mustNew(t, Config{Script: filepath.Join(dir, "none")}).Rack(t.Context(), "10.0.0.1", ""); got != DefaultRack {
		t.Errorf("without the script: %s", got)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		rackA, hostA, rackB, hostB string
		want                       int
	}{
		{"/r", "a", "/r", "a", 0},
		{"/r", "a", "/r", "b", 2},
		{"/r", "a", "/s", "b", 4},
		{"/d/r", "a", "/d/s", "b", 4},
		{"/d/r", "a", "/e/r", "b", 6},
		{"/d/r", "a", "/d", "b", 3},
	} {
		if got := Distance(c.rackA, c.hostA, c.rackB, c.hostB); got != c.want {
			t.Errorf("%v: %d", c, got)
		}
	}
}
