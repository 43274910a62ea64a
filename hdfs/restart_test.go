package hdfs

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
)

// A DataNode that says it restarts is waited for: a write to it alone goes on when it is back,
// over HDFS's own protocol and the native one.
func TestWritesWaitForADataNodeThatRestarts(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{plain, verbena.TransportTCP, verbena.TransportAuto} {
		t.Run(transport, func(t *testing.T) {
			s := startSystem(t, 1, 1)
			content := randomBytes(700_000)
			c := s.own(transport, func(cfg *ClientConfig) { cfg.PacketSize = 64 << 10 })
			w, err := c.Create(t.Context(), "/file", CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			write := func(b []byte) {
				t.Helper()
				if _, err := w.Write(b); err != nil {
					t.Fatal(err)
				}
			}
			write(content[:300_000])
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			old := s.DataNodes[0]
			s.DataNodes = nil
			old.AnnounceRestart()
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			write(content[300_000:400_000]) // while it is away
			again, err := StartDataNode(t.Context(), DataNodeConfig{
				Runtime: s.rt, Dir: filepath.Join(s.cfg.Dir, "datanode-0"), ClusterSecret: filepath.Join(s.cfg.Dir, "cluster-secret"),
				Listen: old.Addr(), NameNode: s.NameNode.Addr(),
			})
			if err != nil {
				t.Fatal(err)
			}
			s.DataNodes = []*DataNode{again}
			write(content[400_000:])
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			expect(t, c, "/file", content)
		})
	}
}

// A DataNode that is closed without a word has failed: a write to it alone ends, and does not
// wait for RestartTimeout.
func TestWritesDoNotWaitForADataNodeThatStops(t *testing.T) {
	for _, transport := range []string{plain, verbena.TransportAuto} {
		s := startSystem(t, 1, 1)
		c := s.own(transport, func(cfg *ClientConfig) { cfg.RestartTimeout = 24 * time.Hour })
		w, err := c.Create(t.Context(), "/file", CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 300_000)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := s.DataNodes[0].Close(); err != nil {
			t.Fatal(err)
		}
		s.DataNodes = nil
		_, werr := w.Write(make([]byte, 300_000))
		if err := w.Close(); werr == nil && err == nil {
			t.Errorf("%s: written without a DataNode", transport)
		}
	}
}
