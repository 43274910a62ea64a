package datanode

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A DataNode that restarts says so to who writes, whichever place it has in the pipeline, and
// the pipeline goes on with it when it is back.
func TestRestartIsAnnounced(t *testing.T) {
	for victim := range 3 {
		t.Run(fmt.Sprint(victim), func(t *testing.T) {
			f := newFixture(t, 3, nil)
			data := random(1, 200_000)
			c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
			c.flush(0, data[:100_000], false, 3)
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				f.nodes[victim].AnnounceRestart()
			}()
			const start = 100_000 / 512 * 512
			var a transfer.Ack
			for end := 100_001; ; end++ { // what has been acknowledged before the news is written
				if victim > 0 { // news from behind comes with acknowledgements
					_, err := c.nc.Write(encodePacket(c.sum, transfer.PacketHeader{Offset: start, Seqno: c.seq}, data[start:end]))
					must(t, err)
					c.seq++
				}
				if a = c.ack(); !a.OK() {
					break
				}
			}
			if a.Seqno != transfer.UnknownSeqno || len(a.Replies) != victim+1 || a.Replies[victim] != hdfspb.Status_OOB_RESTART {
				t.Fatalf("acknowledgement %+v", a)
			}
			for _, r := range a.Replies[:victim] {
				if r != hdfspb.Status_SUCCESS {
					t.Errorf("acknowledgement %+v", a)
				}
			}
			c.nc.Close()
			<-gone
			late := dialNode(t, f.nodes[victim])
			if resp := late.request(create, 2, 1001, 0, 0, 0, nil); resp.GetStatus() != hdfspb.Status_ERROR {
				t.Errorf("a block is begun at a DataNode that restarts: %v", resp)
			}
			late.nc.Close()
			f.restart(victim)
			c = openWrite(t, f.nodes, streamingRecovery, 1, 1001, 1002, 100_000, 200_000)
			c.flush(start, data[start:], false, 3)
			c.finish(200_000, 3)
			for _, n := range f.nodes {
				wantRead(t, n, 1, 1002, data)
			}
		})
	}
}

// shutdownDatanode tells writers of a restart if it is for an upgrade, and nothing otherwise.
func TestShutdownForUpgrade(t *testing.T) {
	for _, upgrade := range []bool{false, true} {
		ended := make(chan struct{})
		f := newFixture(t, 1, func(_ int, c *Config) { c.Superuser, c.Shutdown = "root", func() { close(ended) } })
		c := openWrite(t, f.nodes, create, 1, 1001, 0, 0, 0)
		c.flush(0, random(1, 1000), false, 1)
		if _, err := f.nodes[0].shutdownDatanode(as("root"), &hdfspb.ShutdownDatanodeRequestProto{ForUpgrade: proto.Bool(upgrade)}); err != nil {
			t.Fatal(err)
		}
		if upgrade {
			if a := c.ack(); a.Seqno != transfer.UnknownSeqno || len(a.Replies) != 1 || a.Replies[0] != hdfspb.Status_OOB_RESTART {
				t.Errorf("acknowledgement %+v", a)
			}
			c.nc.Close()
		}
		<-ended
		f.nodes[0].stop() // which is up to who is called
		f.nodes = nil
		var a transfer.Ack
		if err := c.r.ReadAck(&a); err == nil {
			t.Errorf("upgrade: %v: %+v comes behind", upgrade, a)
		}
		c.nc.Close()
	}
}
