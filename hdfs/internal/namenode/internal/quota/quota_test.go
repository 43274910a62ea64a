package quota

import (
	"errors"
	"math"
	"testing"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/storagepolicy"
)

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KB", 1152: "1.13 KB", 1536: "1.50 KB", -1536: "-1.50 KB", 1 << 20: "1 MB",
		1<<20 - 1: "1.00 MB", 3 << 29: "1.50 GB", 1 << 50: "1 PB", math.MaxInt64: "8.00 EB", math.MinInt64: "-8 EB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	l := NoLimits(false)
	l.Names, l.Space, l.Types[storagepolicy.SSD] = 3, 2048, 1024
	ssd := func(n int64) (c Counts) {
		c.Types[storagepolicy.SSD] = n
		return c
	}
	for _, c := range []struct {
		used, more Counts
		want       string
	}{
		{Counts{Names: 2}, Counts{Names: 1}, ""},
		{Counts{Names: 3}, Counts{Names: 1}, string(exception.NSQuotaExceeded) + ": The NameSpace quota (directories and files) of directory /d is exceeded: quota=3 file count=4"},
		{Counts{Names: 9}, Counts{Names: -1}, ""},
		{Counts{Names: 9}, Counts{Space: 1}, ""}, // there are too many, but that is another matter
		{Counts{Space: 1024}, Counts{Space: 1024}, ""},
		{Counts{Space: 1024}, Counts{Space: 1025}, string(exception.DSQuotaExceeded) + ": The DiskSpace quota of /d is exceeded: quota = 2048 B = 2 KB but diskspace consumed = 2049 B = 2.00 KB"},
		{ssd(1), ssd(1023), ""},
		{ssd(1), ssd(1024), string(exception.QuotaByStorageTypeExceeded) + ": Quota by storage type : SSD on path : /d is exceeded. quota = 1 KB but space consumed = 1.00 KB"},
	} {
		got := ""
		if err := l.Check(&c.used, &c.more, "/d"); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v and %+v:\n got %s\nwant %s", c.used, c.more, got, c.want)
		}
	}
}

func TestRequest(t *testing.T) {
	with := func(names, space int64) Limits {
		l := NoLimits(false)
		l.Names, l.Space = names, space
		return l
	}
	ssd := with(5, 6)
	ssd.Types[storagepolicy.SSD] = 6
	for _, c := range []struct {
		request   Request
		operation string
		root      bool
		want      Limits
		class     exception.Class
	}{
		{Request{Names: 7, Space: DontSet}, "setQuota", false, with(7, 6), ""},
		{Request{Names: DontSet, Space: 0}, "setSpaceQuota", false, with(5, 0), ""},
		{Request{Names: Reset, Space: DontSet}, "clearQuota", false, with(-1, 6), ""},
		{Request{Names: Reset, Space: DontSet}, "clearQuota", true, with(DontSet, 6), ""},
		{Request{Names: DontSet, Space: Reset}, "clearSpaceQuota", true, with(5, -1), ""},
		{Request{Names: -2, Space: DontSet}, "setQuota", false, Limits{}, exception.JavaIllegalArgument},
		{Request{Names: 1, Space: 1, Type: storagepolicy.SSD}, "setSpaceQuota", false, Limits{}, exception.UnsupportedAction},
		{Request{Names: DontSet, Space: 6, Type: storagepolicy.SSD}, "setSpaceQuota", false, ssd, ""},
		{Request{Names: DontSet, Space: 6, Type: 99}, "setSpaceQuota", false, Limits{}, exception.UnsupportedAction},
	} {
		if got := c.request.Operation(); got != c.operation {
			t.Errorf("%+v is %s, want %s", c.request, got, c.operation)
		}
		err := c.request.Check(true)
		var refused *exception.Error
		if errors.As(err, &refused) != (c.class != "") || refused != nil && refused.Class != c.class {
			t.Errorf("%+v: %v, want %q", c.request, err, c.class)
		}
		if err != nil {
			continue
		}
		if got := c.request.Apply(with(5, 6), c.root); got != c.want {
			t.Errorf("%+v makes %+v, want %+v", c.request, got, c.want)
		}
	}
}

// What is open is decided by a policy as the policy chooses for each file.
func TestUnder(t *testing.T) {
	for _, p := range append(storagepolicy.All(), storagepolicy.Policy{}) {
		var open, want Counts
		for replication := 1; replication <= 5; replication++ {
			bytes := int64(100 + replication)
			c := Blocks(bytes, replication, storagepolicy.Unspecified)
			open.Add(&c)
			want.Space += bytes * int64(replication)
			if p.ID == storagepolicy.Unspecified {
				want.Open.First += bytes
				want.Open.All += bytes * int64(replication)
				continue
			}
			for _, t := range p.Choose(replication) {
				want.Types[t] += bytes
			}
		}
		if got := open.Under(p.ID); got != want {
			t.Errorf("under %q: %+v, want %+v", p.Name, got, want)
		}
		if got := open.Under(p.ID).Under(storagepolicy.LazyPersist().ID); p.ID != storagepolicy.Unspecified && got != want {
			t.Errorf("what %s has decided is decided again: %+v, want %+v", p.Name, got, want)
		}
	}
}

func TestBlocks(t *testing.T) {
	warm, _ := storagepolicy.ByName("WARM")
	c := Blocks(100, 3, warm.ID)
	if c.Space != 300 || c.Types[storagepolicy.Disk] != 100 || c.Types[storagepolicy.Archive] != 200 {
		t.Errorf("three warm replicas of 100 bytes are %+v", c)
	}
	if got := Blocks(100, 3, storagepolicy.Unspecified); got != (Counts{Space: 300, Open: Undecided{First: 100, All: 300}}) {
		t.Errorf("three replicas without a policy are %+v", got)
	}
	c.Add(&Counts{Names: 1, Space: 1})
	c.Sub(&Counts{Names: 1, Space: 301})
	if c.Names != 0 || c.Space != 0 {
		t.Errorf("what is left is %+v", c)
	}
	root, other := NoLimits(true), NoLimits(false)
	if root.Bound(true) || other.Bound(false) || !other.Bound(true) {
		t.Error("a directory without limits is bound")
	}
}
