package hdfs

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/trash"
)

// Trash is where Hadoop's shell puts it, under a path of its own; nothing goes there
// twice, and nothing if no trash is kept.
func TestTrash(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain)
	if err := c.WriteFile(t.Context(), "/data/file", []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.MoveToTrash(t.Context(), "/data/file"); !errors.Is(err, ErrNoTrash) {
		t.Errorf("without a trash: %v", err)
	}
	home := "/user/" + c.User()
	if err := c.MkdirAll(t.Context(), home+"/.Trash/200102030405/x", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.ExpungeTrash(t.Context(), false); err != nil {
		t.Errorf("expunge where no trash is kept: %v", err)
	}
	if entries, err := c.ReadDir(t.Context(), home+"/.Trash"); err != nil || len(entries) > 0 {
		t.Errorf("what was set aside is there, though no trash is kept: %v, %v", entries, err)
	}
	if err := c.RemoveAll(t.Context(), home); err != nil {
		t.Fatal(err)
	}
	c = s.own(plain, func(cfg *ClientConfig) { cfg.TrashInterval = time.Hour })
	if err := errors.Join(c.ExpungeTrash(t.Context(), false), c.ExpungeTrash(t.Context(), true)); err != nil {
		t.Errorf("expunge without a directory: %v", err)
	}
	root := "/user/" + c.User() + "/.Trash"
	to, err := c.MoveToTrash(t.Context(), "/data/file")
	if err != nil || to != root+"/Current/data/file" {
		t.Fatalf("%s %v", to, err)
	}
	expect(t, c, to, []byte("kept"))
	if _, err := c.Stat(t.Context(), "/data/file"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	if err := c.WriteFile(t.Context(), "/data/file", []byte("another"), 0o644); err != nil {
		t.Fatal(err)
	}
	second, err := c.MoveToTrash(t.Context(), "/data/file")
	if err != nil || second == to || !strings.HasPrefix(second, to) {
		t.Fatalf("%s %v", second, err)
	}
	expect(t, c, to, []byte("kept"))
	expect(t, c, second, []byte("another"))
	for _, name := range []string{to, root, "/user/" + c.User(), "/user", "/"} {
		if to, err := c.MoveToTrash(t.Context(), name); err == nil {
			t.Errorf("%s went to %s", name, to)
		} else if in := strings.HasPrefix(name, root); errors.Is(err, ErrInTrash) != in {
			t.Errorf("%s is in the trash: %v", name, err)
		}
	}
	if _, err := c.MoveToTrash(t.Context(), "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}

	old := root + "/" + trash.Checkpoint(time.Now().Add(-2*time.Hour), 1)
	young := root + "/" + trash.Checkpoint(time.Now().Add(-time.Minute), 1)
	for _, dir := range []string{old, young, root + "/mine"} {
		if err := c.MkdirAll(t.Context(), dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ExpungeTrash(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	entries, err := c.ReadDir(t.Context(), root)
	if err != nil || len(entries) != 3 {
		t.Fatalf("%d entries: %v", len(entries), err)
	}
	for _, e := range entries {
		switch at := path.Join(root, e.Name()); at {
		case young, root + "/mine":
		case old, root + "/Current":
			t.Errorf("%s is still there", at)
		default:
			expect(t, c, at+"/data/file", []byte("kept"))
		}
	}
	if err := c.MkdirAll(t.Context(), root+"/Current/more", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.ExpungeTrash(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if entries, err := c.ReadDir(t.Context(), root); err != nil || len(entries) != 1 || entries[0].Name() != "mine" {
		t.Errorf("%v, %v", entries, err)
	}
}

// What is in the way of a removal to the trash it steps around: a file where its directory
// should be, and checkpoints that are made meanwhile. Those of one second have names of their
// own. A file further up is an error.
func TestTrashStepsAround(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.TrashInterval = time.Hour })
	current := path.Join(c.trashRoot(), trash.Current)
	write := func(name string) {
		t.Helper()
		if err := c.WriteFile(t.Context(), name, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	move := func(name string) string {
		t.Helper()
		write(name)
		to, err := c.MoveToTrash(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		expect(t, c, to, []byte(name))
		return to
	}
	move("/a/b")
	if err := c.RemoveAll(t.Context(), "/a"); err != nil {
		t.Fatal(err)
	}
	if to := move("/a/b/c"); !strings.HasPrefix(to, current+"/a/b1") || path.Base(to) != "c" {
		t.Errorf("beside the file b it is at %s", to)
	}
	write("/a/b/d/e")
	if to, err := c.MoveToTrash(t.Context(), "/a/b/d/e"); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below the file b: %s, %v", to, err)
	}
	expect(t, c, "/a/b/d/e", []byte("/a/b/d/e"))
	now := time.Now()
	busy := &checkpointing{Client: c, now: now}
	for i := range 3 {
		write("/x/y")
		busy.times = 1
		to, err := moveToTrash(t.Context(), busy, "/x/y", current+"/x/y")
		if err != nil || to != current+"/x/y" {
			t.Fatalf("%d: %s, %v", i, to, err)
		}
		expect(t, c, to, []byte("/x/y"))
	}
	for attempt := range 3 {
		if _, err := c.Stat(t.Context(), path.Join(c.trashRoot(), trash.Checkpoint(now, attempt))); err != nil {
			t.Errorf("checkpoint %d of a second: %v", attempt, err)
		}
	}
	// A trash that always goes away is no reason to try for ever.
	write("/x/y")
	busy.times = math.MaxInt
	if to, err := moveToTrash(t.Context(), busy, "/x/y", current+"/x/y"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s, %v", to, err)
	}
	expect(t, c, "/x/y", []byte("/x/y"))
}

// A checkpoint that somebody else has made meanwhile is as good.
func TestTrashIsSetAsideOnce(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain)
	root := c.trashRoot()
	if err := c.MkdirAll(t.Context(), path.Join(root, trash.Current, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := setTrashAside(t.Context(), &overtaken{c}, root, time.Now()); err != nil {
		t.Error(err)
	}
	entries, err := c.ReadDir(t.Context(), root)
	if err != nil || len(entries) != 1 || entries[0].Name() != trash.Checkpoint(time.Time{}, 0) {
		t.Errorf("%v, %v", entries, err)
	}
}

// overtaken has somebody else make a checkpoint before each.
type overtaken struct{ *Client }

func (c *overtaken) Rename(ctx context.Context, from, to string, replace bool) error {
	if err := c.Client.Rename(ctx, from, path.Join(path.Dir(to), trash.Checkpoint(time.Time{}, 0)), false); err != nil {
		return err
	}
	return c.Client.Rename(ctx, from, to, replace)
}

// checkpointing makes a checkpoint before the next renames.
type checkpointing struct {
	*Client
	now   time.Time
	times int
}

func (c *checkpointing) renameToTrash(ctx context.Context, from, to string) error {
	if c.times > 0 {
		c.times--
		if err := setTrashAside(ctx, c.Client, c.trashRoot(), c.now); err != nil {
			return err
		}
	}
	return c.Client.renameToTrash(ctx, from, to)
}

// Quotas are set, shown, kept by writers, and taken away.
func TestQuotas(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain)
	if err := c.Mkdir(t.Context(), "/few", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.SetQuota(t.Context(), "/few", 3, QuotaUnchanged); err != nil {
		t.Fatal(err)
	}
	for i, want := range []error{nil, nil, syscall.EDQUOT} {
		if err := c.WriteFile(t.Context(), "/few/"+string(rune('a'+i)), nil, 0o644); !errors.Is(err, want) {
			t.Errorf("file %d: %v", i, err)
		}
	}
	sum, err := c.Summary(t.Context(), "/few")
	if err != nil || sum.Quota != 3 || sum.SpaceQuota != QuotaNone || sum.Files != 2 {
		t.Errorf("%+v %v", sum, err)
	}
	if err := c.SetQuota(t.Context(), "/few", QuotaNone, 3<<20); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteFile(t.Context(), "/few/c", randomBytes(2<<20), 0o644); err != nil {
		t.Error(err)
	}
	if err := c.WriteFile(t.Context(), "/few/d", randomBytes(2<<20), 0o644); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("beyond the quota of bytes: %v", err)
	}
	if err := c.SetQuota(t.Context(), "/few", QuotaUnchanged, QuotaNone); err != nil {
		t.Fatal(err)
	}
	// As in HDFS only files with a policy count for a kind of storage.
	if err := errors.Join(c.SetStoragePolicy(t.Context(), "/few", "HOT"), c.SetTypeQuota(t.Context(), "/few", "disk", 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteFile(t.Context(), "/few/e", randomBytes(2<<20), 0o644); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("beyond the quota of a kind of storage: %v", err)
	}
	if err := c.SetTypeQuota(t.Context(), "/few", "tape", 1); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("%v", err)
	}
	if err := c.SetQuota(t.Context(), "/none", 1, 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Storage policies are set, inherited and taken away.
func TestStoragePolicies(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain)
	if err := c.WriteFile(t.Context(), "/dir/file", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	has := func(name, want string) {
		t.Helper()
		if got, err := c.StoragePolicy(t.Context(), name); err != nil || got != want {
			t.Errorf("%s has %q, want %q: %v", name, got, want, err)
		}
	}
	has("/dir/file", "HOT")
	if err := c.SetStoragePolicy(t.Context(), "/dir", "WARM"); err != nil {
		t.Fatal(err)
	}
	has("/dir", "WARM")
	has("/dir/file", "WARM")
	if err := c.SetStoragePolicy(t.Context(), "/dir/file", "ALL_SSD"); err != nil {
		t.Fatal(err)
	}
	has("/dir/file", "ALL_SSD")
	if err := errors.Join(c.UnsetStoragePolicy(t.Context(), "/dir/file"), c.UnsetStoragePolicy(t.Context(), "/dir")); err != nil {
		t.Fatal(err)
	}
	has("/dir/file", "HOT")
	var refused *ServerError
	if err := c.SetStoragePolicy(t.Context(), "/dir", "LUKEWARM"); !errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}
