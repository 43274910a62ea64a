package store

import (
	"os"
	"path/filepath"
	"testing"
)

// Blocks are closed to other users of the machine, also in a directory that was
// open before.
func TestBlocksAreClosedToOthers(t *testing.T) {
	for _, existing := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "data")
		blocks := filepath.Join(dir, "blocks")
		if existing {
			if err := os.MkdirAll(blocks, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(Config{Dirs: []Directory{{Path: dir}}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		info, err := os.Stat(blocks)
		if err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("existing %v: %v, %v", existing, info.Mode(), err)
		}
	}
}
