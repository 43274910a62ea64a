package hdfs

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/verbena-data/verbena"
)

// Who asks for no checksums gets a damaged replica's bytes as they are, all of them, whichever way
// they go. Its checksums may be lost, too.
func TestUnverifiedReadsOfDamage(t *testing.T) {
	const damage = 3_456_789
	for _, way := range []struct {
		name, transport string
		rings           bool // a long read goes through one
	}{
		{"ring", "shm", true}, {"push", "iwarp", true}, {"tcp", verbena.TransportTCP, false}, {"legacy", plain, false},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := startSystem(t, 1, 1)
			c := s.own(way.transport, func(cfg *ClientConfig) { cfg.BlockSize, cfg.ReadFailures = 8<<20, 1 })
			content := randomBytes(5<<20 + 11)
			store(t, c, "/damaged", content, CreateOptions{})
			f, err := c.OpenUnverified(t.Context(), "/damaged")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			dn := s.DataNodes[0]
			if way.transport != plain {
				for try := 0; dn.Reads().Now == 0; try++ { // the way is open
					if err := at(f, content, 1000*try, 3000); err != nil || try == 1000 {
						t.Fatalf("read %d: %v", try, err)
					}
				}
			}
			for _, file := range replicas(t, s.cfg.Dir, int64(len(content))) {
				flipByte(t, file, damage)
				loseChecksums(t, file)
			}
			content[damage] ^= 0x40
			before := dn.Reads()
			if err := at(f, content, damage-2000, 4096); err != nil {
				t.Errorf("a short read: %v", err)
			}
			if atOnce := dn.Reads().Now > before.Now; atOnce != (way.transport != plain) {
				t.Errorf("a short read was answered at once: %v", atOnce)
			}
			if err := at(f, content, damage-100_001, 200_000); err != nil {
				t.Errorf("a read by one call: %v", err)
			}
			got, err := io.ReadAll(f)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes of %d came, or others: %v", len(got), len(content), err)
			}
			if rings := dn.Reads().Rings > before.Rings; rings != way.rings {
				t.Errorf("through a ring: %v", rings)
			}
		})
	}
}

// A file whose only replica is known to be corrupt can still be saved.
func TestUnverifiedReadsOfReportedDamage(t *testing.T) {
	s := startSystem(t, 1, 1)
	c := s.own(plain, func(cfg *ClientConfig) { cfg.ReadFailures = 1 })
	content := randomBytes(200_000)
	store(t, c, "/damaged", content, CreateOptions{})
	for _, file := range replicas(t, s.cfg.Dir, int64(len(content))) {
		flipByte(t, file, 50_000)
	}
	content[50_000] ^= 0x40
	if _, err := c.ReadFile(t.Context(), "/damaged"); err == nil {
		t.Error("the damage was not found")
	}
	f, err := c.OpenUnverified(t.Context(), "/damaged")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes of %d came, or others: %v", len(got), len(content), err)
	}
}

// loseChecksums leaves the header alone of the meta file beside a replica's data file.
func loseChecksums(t *testing.T, file string) {
	t.Helper()
	metas, err := filepath.Glob(file + "_*.meta")
	if err != nil || len(metas) != 1 {
		t.Fatalf("meta files of %s: %v, %v", file, metas, err)
	}
	if err := os.Truncate(metas[0], 512); err != nil {
		t.Fatal(err)
	}
}
