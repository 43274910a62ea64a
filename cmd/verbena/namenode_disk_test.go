package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The state of a NameNode in two directories is checked while it does not run, what is damaged of it is set
// aside, and a start makes a directory that is gone anew.
func TestNameNodeCheckAndRecover(t *testing.T) {
	data, second := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "second")
	first := filepath.Join(data, "namenode")
	up := startUp(t, data, "127.0.0.1:0", "--second-dir", second, "--snapshot-entries", "50")
	args := []string{"fs", "--namenode", up.Address, "mkdir"}
	for i := range 20 {
		args = append(args, fmt.Sprint("/d", i))
	}
	if out, err := run(t, "", args...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	look := func(what, want string, args ...string) {
		t.Helper()
		out, err := run(t, "", append([]string{"namenode", what}, args...)...)
		if err != nil || !strings.Contains(out, "0 files, 21 directories, 0 blocks") || !strings.Contains(out, want) {
			t.Errorf("%s %v: %v\n%s\nwant %q", what, args, err, out, want)
		}
	}
	if out, err := run(t, "", "namenode", "check", "--dir", first, "--second-dir", second); err == nil {
		t.Errorf("checked while it runs:\n%s", out)
	}
	up.Kill()
	look("check", second+": state up to entry", "--dir", first, "--second-dir", second)
	look("check", "log: entries 1 to", "--dir", second) // each has everything
	look("check", second+": state up to entry", "--property", "dfs.namenode.name.dir="+first+","+second)
	// What is left of a snapshot is set aside.
	snapshots := filepath.Join(first, "snapshots")
	if err := os.MkdirAll(snapshots, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{".meta", ".state"} {
		if err := os.WriteFile(filepath.Join(snapshots, "2-15-1795630409447211590"+suffix), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look("check", "snapshot 2-15-1795630409447211590: damaged", "--dir", first)
	look("recover", "The NameNode can start.", "--dir", first)
	if out, err := run(t, "", "namenode", "check", "--dir", first); err != nil || strings.Contains(out, "damaged") {
		t.Errorf("after the recovery: %v\n%s", err, out)
	}
	// One of the directories is gone.
	if err := os.RemoveAll(first); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, "", "namenode", "check", "--dir", first); err == nil {
		t.Errorf("a directory that is gone is whole:\n%s", out)
	}
	look("check", second, "--dir", first, "--second-dir", second)
	up = startUp(t, data, "127.0.0.1:0", "--second-dir", second)
	if out, err := run(t, "", "fs", "--namenode", up.Address, "ls", "-C", "/"); err != nil || strings.Count(out, "/d") != 20 {
		t.Errorf("after a start: %v\n%s", err, out)
	}
	up.Kill()
	look("check", "log: entries 1 to", "--dir", first) // the start has made it whole
}
