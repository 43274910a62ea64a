package hdfs

import (
	"fmt"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/client/writer"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// A file is closed when its blocks have as many replicas as the NameNode wants at least.
// An append that begins before the NameNode knows the others has them take part all the
// same, though they refuse a copy of what they have.
func TestAppendBeforeAllReplicasAreReported(t *testing.T) {
	s := startSystem(t, 3, 3)
	for _, transport := range []string{plain, verbena.TransportAuto} {
		t.Run(transport, func(t *testing.T) {
			c := s.own(transport)
			var nodes int
			inject(c, &faulty{setup: func(req *data.WriteRequest, _ int) { nodes = len(req.Nodes) }})
			name := "/appended-" + transport
			content := randomBytes(300_001)
			store(t, c, name, content[:100_001], CreateOptions{})
			eventually(t, "three replicas", func() error { return hasReplicas(t, c, name, 3) })

			flag := uint32(flagAppend)
			var resp hdfspb.AppendResponseProto
			if err := c.names.Call(t.Context(), "append", &hdfspb.AppendRequestProto{Src: &name, ClientName: &c.holder, Flag: &flag}, &resp); err != nil {
				t.Fatal(err)
			}
			last := resp.GetBlock()
			last.Locs, last.StorageIDs, last.StorageTypes = last.Locs[:2], last.StorageIDs[:2], last.StorageTypes[:2]
			cfg, _, err := c.writing(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			st := resp.GetStat()
			stream, err := writer.NewAppend(t.Context(), cfg, writer.File{Path: name, ID: st.GetFileId(), BlockSize: int64(st.GetBlocksize()), Replication: 3}, last)
			if err != nil {
				t.Fatal(err)
			}
			w, err := c.opened(t.Context(), name, stream)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(content[100_001:]); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if nodes != 3 {
				t.Errorf("the pipeline has %d DataNodes", nodes)
			}
			expect(t, c, name, content)
		})
	}
}

// hasReplicas tells whether the first block of a file is on so many DataNodes.
func hasReplicas(t *testing.T, c *Client, name string, want int) error {
	where, err := c.BlockLocations(t.Context(), name, 0, 1)
	if err == nil && (len(where) == 0 || len(where[0].DataNodes) != want) {
		err = fmt.Errorf("%s is at %+v", name, where)
	}
	return err
}
