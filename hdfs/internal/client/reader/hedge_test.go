package reader

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
)

// A duel is a path on which the first DataNode is slow and writes nonsense where it is to put
// bytes, whenever the second one has put the right ones there.
type duel struct {
	*cluster
	filled, spoilt chan struct{}
	fails          bool // the first one fails then, and the second one takes longer
}

func (d *duel) Fill(ctx context.Context, req *data.ReadRequest, p []byte) (bool, error) {
	if req.Node.GetId().GetDatanodeUuid() == "uuid-1" {
		clear(p)
		<-d.filled
		clear(p)
		d.spoilt <- struct{}{}
		if d.fails {
			return false, errors.New("reset")
		}
		<-ctx.Done()
		clear(p)
		return false, context.Cause(ctx)
	}
	copy(p, d.content[req.Offset:])
	d.filled <- struct{}{}
	<-d.spoilt
	if d.fails {
		time.Sleep(time.Second)
	}
	return true, nil
}

// Of a hedged read the bytes are those of the DataNode that has given them first, whatever
// the other one still writes, and a failure of one is none while the other one reads. What the
// read has taken of the bound on hedges it gives back.
func TestTheLoserOfAHedgeWritesNothing(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d := &duel{cluster: newCluster(100, 2), filled: make(chan struct{}), spoilt: make(chan struct{}), fails: fails}
			cfg := d.config()
			cfg.Path, cfg.Hedge, cfg.Hedges = d, time.Second, make(chan struct{}, 1)
			for range 3 {
				f, err := Open(t.Context(), cfg, "/file")
				if err != nil {
					t.Fatal(err)
				}
				p := make([]byte, 90)
				if n, err := f.ReadAt(t.Context(), p, 10); err != nil || n != len(p) || !bytes.Equal(p, d.content[10:]) {
					t.Errorf("fails %v: %d bytes, %v, or others", fails, n, err)
				}
				if len(cfg.Hedges) != 0 {
					t.Error("the read counts as a hedge that is under way")
				}
				f.Close()
			}
		})
	}
}
