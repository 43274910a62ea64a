package hdfs

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"
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
	if err := c.ExpungeTrash(t.Context(), false); !errors.Is(err, ErrNoTrash) {
		t.Errorf("expunge without a trash: %v", err)
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
		}
	}
	if _, err := c.MoveToTrash(t.Context(), "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}

	old := root + "/" + time.Now().Add(-2*time.Hour).Format(checkpoints)
	young := root + "/" + time.Now().Add(-time.Minute).Format(checkpoints)
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
	if err := c.ExpungeTrash(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Stat(t.Context(), root); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
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
