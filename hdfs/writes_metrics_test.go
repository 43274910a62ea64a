package hdfs

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-data/verbena/internal/race"
)

// DataNodes tell of each block by which path it has come, and where the time went; and each
// hop of the native path is woken at most once a packet.
func TestWritesTellTheirStages(t *testing.T) {
	s := startSystem(t, 3, 3)
	const blocks, size = 4, 1 << 20
	content := randomBytes(blocks * size)
	put := func(c *Client, path string) {
		t.Helper()
		w, err := c.Create(t.Context(), path, CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	packets := func(cfg *ClientConfig) { cfg.PacketSize = 64 << 10 }
	put(s.own("shm", packets), "/native")
	put(s.own("shm", packets, func(cfg *ClientConfig) { cfg.LegacyTransfers = true }), "/legacy")
	var acknowledged, heard uint64
	for i, d := range s.DataNodes {
		native, legacy := d.Writes()
		for name, w := range map[string]WriteStats{"native": native, "legacy": legacy} {
			if w.Blocks != blocks || w.Bytes != uint64(len(content)) {
				t.Errorf("DataNode %d, %s: %d blocks with %d bytes", i, name, w.Blocks, w.Bytes)
			}
			for stage, spent := range map[string]time.Duration{"communication": w.Communication, "processing": w.Processing, "io": w.IO} {
				if spent <= 0 || spent > time.Minute {
					t.Errorf("DataNode %d, %s: %v of %s", i, name, spent, stage)
				}
			}
		}
		p := d.Packets()
		const sent = blocks * (size/(64<<10) + 1) // one that ends each block
		// Beside packets there are set-ups, aborts, a hello and the first wait.
		if p.Packets != sent || p.Waits > sent+2*blocks+2 || p.Acknowledgements < blocks || p.Acknowledgements > sent {
			t.Errorf("DataNode %d: %+v, %d packets were sent", i, p, sent)
		}
		acknowledged, heard = acknowledged+p.Acknowledgements, heard+p.AckWaits
	}
	// What comes from behind are two answers to set-ups for each block, one proof for each of
	// six connections at most, and acknowledgements; each receiver waits for what never comes, too.
	if most := acknowledged + 2*blocks + 2*6; heard == 0 || heard > most {
		t.Errorf("receivers of acknowledgements have waited %d times, want %d at most", heard, most)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(NewWritesCollector(s.DataNodes...)); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	total := 0.0
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
		if f.GetName() == "verbena_hdfs_datanode_blocks_written_total" {
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	if series["verbena_hdfs_datanode_write_seconds_total"] != 8 || len(series) != 11 || total != 2*3*blocks {
		t.Errorf("%v, %v blocks", series, total)
	}
}

// Packets on their way allocate nothing: not at the client, and at none of three DataNodes.
// What is left, less than one allocation a packet at all four together, is of their timers
// and heartbeats.
func TestPacketsAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector pools forget what they keep")
	}
	s := startSystem(t, 3, 3)
	for _, transport := range []string{"shm", "iwarp"} {
		t.Run(transport, func(t *testing.T) {
			const packets = 64
			c := s.own(transport, func(cfg *ClientConfig) { cfg.PacketSize, cfg.BlockSize = 64<<10, 128<<20 })
			w, err := c.Create(t.Context(), "/steady-"+transport, CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			content := randomBytes(packets * 64 << 10)
			write := func() {
				if _, err := w.Write(content); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 {
				write() // windows and pools grow
			}
			if err := w.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Heartbeats and what tests run beside it allocate, too, the more the longer a
			// packet takes: the run with the fewest counts.
			perPacket := math.Inf(1)
			for range 10 {
				perPacket = min(perPacket, testing.AllocsPerRun(2, write)/packets)
			}
			if perPacket > 1 {
				t.Errorf("%.2f allocations a packet, at all four together", perPacket)
			} else {
				t.Logf("%.2f allocations a packet", perPacket)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
