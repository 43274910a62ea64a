package namenode

import (
	"log/slog"
	"testing"
)

// What a stopped NameNode has on disk can be checked, and recovered, without
// starting it.
func TestCheckOffline(t *testing.T) {
	r := newRig(t)
	dns := r.datanodes(1)
	r.write("/dir/f", 1, 100, dns...)
	r.mkdirs("root", "/other")
	if _, err := Check("/nn", "", r.fs, slog.Default(), false); err == nil {
		t.Fatal("checked while the NameNode runs")
	}
	id := r.nn.ClusterID()
	if err := r.nn.journal.Snapshot(); err != nil {
		t.Fatal(err)
	}
	r.mkdirs("root", "/behind/the/snapshot")
	if err := r.nn.Close(); err != nil {
		t.Fatal(err)
	}
	for _, mend := range []bool{false, true} {
		rep, err := Check("/nn", "", r.fs, slog.Default(), mend)
		if err != nil {
			t.Fatal(err)
		}
		if rep.ClusterID != id || rep.Files != 1 || rep.Directories != 6 || rep.Blocks != 1 || rep.Damaged() || rep.Base == 0 || rep.Good != rep.Last {
			t.Fatalf("%+v", rep)
		}
	}
	r.open()
	if r.nn.ClusterID() != id {
		t.Fatal("another file system after the check")
	}
}
