package hdfs

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs"
)

// Between two hosts with adapters, of the lab's machine, blocks are written through a chain of three DataNodes,
// read through rings, and small pieces of them from windows without the DataNode's service code: all of it over the
// adapters.
func TestLabAdapters(t *testing.T) {
	device := os.Getenv("VERBENA_LAB_DEVICE")
	if device == "" {
		t.Skip("it runs in the lab's machines: go run ./lab --machine files")
	}
	on := func(device string) *verbena.Runtime {
		rt, err := verbena.New(verbena.Config{
			Providers: []rdma.Provider{ibverbs.New(ibverbs.Config{Device: device})},
			// An emulated machine on a busy host is slow.
			HelloTimeout: 30 * time.Second, ConnectTimeout: 30 * time.Second, Linger: 30 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		return rt
	}
	client := on(device)
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close the client's runtime: %v", err)
		}
	})
	servers := on(os.Getenv("VERBENA_LAB_PEER_DEVICE"))
	s := systemOn(t, servers, 3, 3, os.Getenv("VERBENA_LAB_LISTEN"))
	s.dialers["ibverbs"] = NewDialer(client, "ibverbs")
	c := s.own("ibverbs", func(cfg *ClientConfig) { cfg.BlockSize, cfg.Patience = 3<<20, time.Minute })

	content := randomBytes(7<<20 + 777) // three blocks, two of which are long enough for a ring
	store(t, c, "/chain", content, CreateOptions{})
	for i, node := range s.DataNodes {
		if native, legacy := node.Writes(); native.Blocks != 3 || legacy.Blocks != 0 {
			t.Errorf("DataNode %d has %d blocks by the native path and %d by the legacy one, want 3 and 0", i, native.Blocks, legacy.Blocks)
		}
	}
	expect(t, c, "/chain", content)
	f, err := c.Open(t.Context(), "/chain")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	served := func() (n, rings uint64) {
		for _, node := range s.DataNodes {
			n, rings = n+node.Reads().Served, rings+node.Reads().Rings
		}
		return n, rings
	}
	if _, rings := served(); rings != 2 {
		t.Errorf("%d reads went through rings, want those of the two long blocks", rings)
	}
	hot := content[:256<<10] // in one window
	for warm(t, c, f, hot, 20); c.WindowReads().Granted == 0; {
		warm(t, c, f, hot, 1)
	}
	before, _ := served()
	reads := c.WindowReads().Reads
	for off := 0; off < len(hot); off += 4096 {
		if err := at(f, content, off, 4096); err != nil {
			t.Fatal(err)
		}
	}
	after, _ := served()
	if by := c.WindowReads().Reads - reads; by != uint64(len(hot)/4096) || after != before {
		t.Errorf("of %d reads %d were one-sided, and the DataNodes have served %d", len(hot)/4096, by, after-before)
	}
	for name, rt := range map[string]*verbena.Runtime{"client's": client, "servers'": servers} {
		over := map[string]int{}
		for _, e := range rt.Endpoints() {
			over[fmt.Sprintf("%s of %s", e.Selection.Transport, e.Service)]++
			if e.Selection.Transport != "ibverbs" {
				t.Errorf("an endpoint of %s on the %s side is over %s:\n%v", e.Service, name, e.Selection.Transport, e.Selection)
			}
		}
		t.Logf("the %s side: %v", name, over)
		if over["ibverbs"+" of hdfs-data/1"] == 0 {
			t.Errorf("the %s side has no endpoint of hdfs-data/1: %v", name, over)
		}
	}
}
