package hdfs

import (
	"bytes"
	"io"
	"testing"

	"github.com/verbena-data/verbena"
)

// For a client that compares no checksums the DataNode does, whichever way the bytes go: of a replica
// that is damaged it gets the bytes before the damage or an error, and never others.
func TestUnverifiedReadsOfDamage(t *testing.T) {
	const damage = 3_456_789
	for _, way := range []struct {
		name, transport string
		small           bool // by reads that are answered at once
		rings           bool // through one
	}{
		{"ring", "shm", false, true}, {"ring over iwarp", "iwarp", false, true}, {"calls", verbena.TransportTCP, false, false},
		{"at once", "shm", true, false}, {"at once over tcp", verbena.TransportTCP, true, false},
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
			if way.small {
				for try := 0; dn.Reads().Now == 0; try++ {
					if err := at(f, content, 1000*try, 3000); err != nil || try == 1000 {
						t.Fatalf("read %d: %v", try, err)
					}
				}
			}
			before := dn.Reads()
			for _, file := range replicas(t, s.cfg.Dir, int64(len(content))) {
				flipByte(t, file, damage)
			}
			if way.small {
				if err := at(f, content, damage-70_000, 4096); err != nil {
					t.Errorf("before the damage: %v", err)
				}
				if dn.Reads().Now == before.Now {
					t.Error("a small read was not answered at once")
				}
				p := make([]byte, 4096)
				if n, err := f.ReadAt(p, damage-2000); err == nil {
					t.Errorf("%d bytes were read over the damage, and they are right: %v", n, bytes.Equal(p, content[damage-2000:][:4096]))
				}
				return
			}
			got, err := io.ReadAll(f)
			if err == nil || len(got) > damage || !bytes.Equal(got, content[:len(got)]) {
				t.Errorf("%d bytes were read, the damage is at %d: %v", len(got), damage, err)
			}
			if rings := dn.Reads().Rings > before.Rings; rings != way.rings {
				t.Errorf("through a ring: %v", rings)
			}
		})
	}
}
