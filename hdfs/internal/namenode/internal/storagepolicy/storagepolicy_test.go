package storagepolicy

import (
	"fmt"
	"testing"
)

func TestSuite(t *testing.T) {
	for i, p := range All() {
		if i > 0 && All()[i-1].ID >= p.ID {
			t.Errorf("%s is out of order", p.Name)
		}
		if got, ok := ByID(p.ID); !ok || got.Name != p.Name {
			t.Errorf("policy %d is %v", p.ID, got)
		}
		// There is always something but for COLD, as in a cluster of disks.
		if got := p.NeedsMoreThan(Disk); got != (p.Name == "COLD") {
			t.Errorf("%s needs more than disks: %t", p.Name, got)
		}
	}
	if p, _ := ByID(Unspecified); p.Name != "HOT" {
		t.Errorf("no policy is %s", p.Name)
	}
	if _, ok := ByID(3); ok {
		t.Error("there is a policy 3")
	}
	if p, ok := ByName("warm"); !ok || p.ID != 5 {
		t.Errorf("warm is %v", p)
	}
	if _, ok := ByName("TEPID"); ok {
		t.Error("there is a policy TEPID")
	}
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name        string
		replication int
		want        string
	}{
		{"HOT", 3, "[DISK DISK DISK]"},
		{"WARM", 1, "[DISK]"},
		{"WARM", 3, "[DISK ARCHIVE ARCHIVE]"},
		{"ONE_SSD", 3, "[SSD DISK DISK]"},
		{"LAZY_PERSIST", 2, "[DISK DISK]"},
		{"LAZY_PERSIST", 0, "[]"},
	} {
		p, _ := ByName(c.name)
		if got := fmt.Sprint(p.Choose(c.replication)); got != c.want {
			t.Errorf("%d replicas of %s: %s, want %s", c.replication, c.name, got, c.want)
		}
	}
	if got := LazyPersist().String(); got != "BlockStoragePolicy{LAZY_PERSIST:15, storageTypes=[RAM_DISK, DISK], creationFallbacks=[DISK], replicationFallbacks=[DISK]}" {
		t.Error(got)
	}
}
