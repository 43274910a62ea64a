package hdfs

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/testneed"
)

// memoryDir is a directory in memory.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "verbena-test-")
	var st unix.Statfs_t
	if err != nil || unix.Statfs(dir, &st) != nil || st.Type != unix.TMPFS_MAGIC {
		testneed.Missing(t, fmt.Sprintf("a directory in memory: %v", err), "mount -t tmpfs tmpfs /dev/shm")
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *system) spares() (sum SpareStats) {
	for _, d := range s.DataNodes {
		n := d.Spares()
		sum.Files, sum.Bytes, sum.Kept, sum.Reused = sum.Files+n.Files, sum.Bytes+n.Bytes, sum.Kept+n.Kept, sum.Reused+n.Reused
	}
	return sum
}

// Blocks in memory are written over the files of removed ones, by both protocols, and nobody
// gets the old bytes.
func TestBlocksInMemoryAreWrittenOver(t *testing.T) {
	dir := memoryDir(t)
	s := systemIn(t, 3, 3, "127.0.0.1", func(c *ClusterConfig) { c.Dir = dir })
	ctx := t.Context()
	removed := func(c *Client, name string, kept uint64) {
		t.Helper()
		if err := c.Remove(ctx, name); err != nil {
			t.Fatal(err)
		}
		for began := time.Now(); s.spares().Kept < kept; time.Sleep(10 * time.Millisecond) {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("%+v: want %d kept", s.spares(), kept)
			}
		}
	}
	// Blocks of 1 MiB: three of them, and three replicas each.
	shm, legacy := s.own("shm"), s.own(plain)
	store(t, shm, "/first", randomBytes(3<<20), CreateOptions{})
	removed(shm, "/first", 9)
	data := randomBytes(2<<20 + 300_000)
	store(t, shm, "/second", data, CreateOptions{})
	if n := s.spares(); n.Reused != 9 || n.Files != 0 {
		t.Errorf("%+v: want the files of 9 replicas written over", n)
	}
	for name, c := range map[string]*Client{"over shm": shm, "by the data transfer protocol": legacy, "by descriptor": s.near()} {
		t.Log("read", name)
		expect(t, c, "/second", data)
	}
	if r := s.reads(); r.HandedOver != 3 {
		t.Errorf("%+v: want 3 replicas read by descriptor", r)
	}
	// Two replicas of each whole block were not handed over. The third block is too short.
	removed(shm, "/second", 13)
	data = randomBytes(2 << 20)
	store(t, legacy, "/third", data, CreateOptions{})
	if n := s.spares(); n.Reused <= 9 {
		t.Errorf("%+v: no more were written over", n)
	}
	expect(t, shm, "/third", data)
}

// A data directory in memory that was told so keeps none.
func TestNoBlocksAreWrittenOver(t *testing.T) {
	dir := memoryDir(t)
	s := systemIn(t, 1, 1, "127.0.0.1", func(c *ClusterConfig) { c.Dir, c.SpareMemory = dir, -1 })
	c := s.own("shm")
	store(t, c, "/first", randomBytes(2<<20), CreateOptions{})
	files := func() (n int) {
		names, err := filepath.Glob(filepath.Join(dir, "*", "blocks", "*", "blk_*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	if n := files(); n != 4 {
		t.Fatalf("%d files of 2 blocks", n)
	}
	if err := c.Remove(t.Context(), "/first"); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); files() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 20*time.Second {
			t.Fatal("the blocks are still there")
		}
	}
	if n := s.spares(); n != (SpareStats{}) {
		t.Errorf("%+v", n)
	}
}
