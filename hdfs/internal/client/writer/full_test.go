package writer

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// full is what Write returns whose DataNode at has no room for an endpoint.
func full(at int) error {
	return &data.PipelineError{Node: at, Blameless: true, Err: fmt.Errorf("dial: %w", data.ErrNoRoom)}
}

// firstIsFull refuses pipelines of which a DataNode is the first.
func firstIsFull(name string) func(*data.WriteRequest, int) error {
	return func(req *data.WriteRequest, _ int) error {
		if uuid(req.Nodes[0]) == name {
			return full(0)
		}
		return nil
	}
}

// A DataNode to which a new block can't be brought first, because it has no room for one
// more client, comes later in the pipeline: it is not left out.
func TestBlocksBeginAtADataNodeWithRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		c.setup = firstIsFull("uuid-1")
		c.mustWrite(c.config(), randomBytes(testBlock+1))
		last := c.pipelines[len(c.pipelines)-1]
		if want := []string{"uuid-2", "uuid-3", "uuid-1"}; !slices.Equal(uuids(last.Nodes), want) || last.Storages[2] != "storage of uuid-1" || len(last.Types) != 3 {
			t.Errorf("the last pipeline has %v with %v", uuids(last.Nodes), last.Storages)
		}
		for _, req := range callsOf[*hdfspb.AddBlockRequestProto](c) {
			if len(req.GetExcludeNodes()) > 0 {
				t.Errorf("%v are to be left out", uuids(req.GetExcludeNodes()))
			}
		}
		if n := c.counts["abandonBlock"]; n != 0 {
			t.Errorf("%d blocks were given up", n)
		}
	})
}

// thirdFailsOnce is the acks of a first pipeline whose third DataNode fails at packet 5.
func (c *cluster) thirdFailsOnce(l *line, seqno int64) *transfer.Ack {
	if seqno == 5 && len(c.pipelines) == 1 {
		return replies(l, seqno, 2, hdfspb.Status_ERROR)
	}
	return nil
}

// When a pipeline is repaired or begun for an append, a full DataNode is waited for, first or
// not, and stays in it.
func TestFullDataNodesStayInPipelines(t *testing.T) {
	for at := range 2 {
		t.Run(fmt.Sprint("repaired, full at ", at), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, false)
				c.ack = c.thirdFailsOnce
				began := time.Now()
				c.setup = func(_ *data.WriteRequest, n int) error {
					if n > 1 && time.Since(began) < 10*time.Second {
						return full(at)
					}
					return nil
				}
				c.mustWrite(c.config(), randomBytes(testBlock))
				last := c.pipelines[len(c.pipelines)-1]
				if got := uuids(last.Nodes); !slices.Contains(got, "uuid-1") || !slices.Contains(got, "uuid-2") || len(got) != 2 {
					t.Errorf("the repaired pipeline has %v", got)
				}
				if d := time.Since(began); d > 15*time.Second {
					t.Errorf("there was room after 10 s, and it took %v", d)
				}
			})
		})
	}
	t.Run("append", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, false)
			before := randomBytes(1234)
			c.blocks[55], c.order = slices.Clone(before), []uint64{55}
			c.setup = firstIsFull("uuid-1")
			s, err := NewAppend(t.Context(), c.config(), testFile, c.located(55, len(before), c.nodes))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.Write(randomBytes(100)); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if last := c.pipelines[len(c.pipelines)-1]; !slices.Equal(uuids(last.Nodes), []string{"uuid-2", "uuid-3", "uuid-1"}) {
				t.Errorf("the pipeline has %v", uuids(last.Nodes))
			}
		})
	})
}

// One that has no room for long is done without, if others are left: a write does not wait
// for ever for one of several.
func TestFullDataNodesAreDoneWithoutInTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		c.ack = c.thirdFailsOnce
		c.setup = func(req *data.WriteRequest, n int) error {
			if at := slices.Index(uuids(req.Nodes), "uuid-2"); n > 1 && at >= 0 {
				return full(at)
			}
			return nil
		}
		cfg := c.config()
		cfg.BestEffort = true
		c.mustWrite(cfg, randomBytes(testBlock))
		if last := c.pipelines[len(c.pipelines)-1]; !slices.Equal(uuids(last.Nodes), []string{"uuid-1"}) {
			t.Errorf("the pipeline has %v", uuids(last.Nodes))
		}
	})
}
