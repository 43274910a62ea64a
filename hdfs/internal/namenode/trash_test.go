package namenode

import (
	"slices"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/trash"
)

// What is in the trash becomes a checkpoint, and goes when it is older than the interval.
// What is no checkpoint stays.
func TestTrash(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.TrashInterval, c.TrashCheckpoint = time.Hour, 20*time.Minute
		c.ListLimit = 2
	})
	r.check()
	got := must[*hdfspb.GetServerDefaultsResponseProto](t)(r.nn.getServerDefaults(r.as("alice"), nil)).GetServerDefaults().GetTrashInterval()
	if got != 60 {
		t.Errorf("clients are told a trash interval of %d minutes", got)
	}
	const of = "/user/alice/.Trash"
	for _, d := range []string{of + "/Current/d", of + "/mine", of + "/7001010000", "/user/bob", "/user/carol/.Trash/Current"} {
		r.mkdirs("root", d)
	}
	r.clock.advance(20 * time.Minute)
	r.check()
	names := r.nn.children(of)
	if len(names) != 2 || slices.Contains(names, trash.Current) || slices.Contains(names, "7001010000") {
		t.Fatalf("after a checkpoint: %q", names)
	}
	first := names[0]
	if at, ok := trash.Time(first); !ok || r.clock.now().Sub(at) >= time.Second {
		t.Errorf("the checkpoint is named %s at %v", first, r.clock.now())
	}
	if names := r.nn.children("/user/carol/.Trash"); len(names) != 1 || names[0] != first {
		t.Errorf("carol's trash: %q", names)
	}
	r.mkdirs("root", of+"/Current/again")
	r.check() // not due yet
	if !slices.Contains(r.nn.children(of), trash.Current) {
		t.Errorf("a checkpoint before its time: %q", r.nn.children(of))
	}
	for range 3 {
		r.clock.advance(20 * time.Minute)
		r.check()
	}
	if names := r.nn.children(of); !slices.Contains(names, first) {
		t.Errorf("after an hour, not more: %q", names)
	}
	r.clock.advance(20 * time.Minute)
	r.check()
	if names := r.nn.children(of); slices.Contains(names, first) || len(names) != 2 || !slices.Contains(names, "mine") {
		t.Errorf("after more than an hour: %q", names)
	}
}

// A checkpoint whose name is taken gets another one.
func TestTrashOfOneSecond(t *testing.T) {
	r := newRig(t, func(c *Config) { c.TrashInterval = time.Hour })
	const of = "/user/alice/.Trash"
	now := r.clock.now()
	for range 3 {
		r.mkdirs("root", of+"/Current/d")
		if err := r.nn.emptyTrash(t.Context(), of, now); err != nil {
			t.Fatal(err)
		}
	}
	name := trash.Checkpoint(now, 0)
	if got := r.nn.children(of); !slices.Equal(got, []string{name, name + "-1", name + "-2"}) {
		t.Errorf("got %q", got)
	}
	for _, name := range r.nn.children(of) {
		if at, ok := trash.Time(name); !ok || !at.Equal(now.Truncate(time.Second)) {
			t.Errorf("%s is of %v", name, at)
		}
	}
}
