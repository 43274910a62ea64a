package reader

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
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
			cfg.Path, cfg.Hedge, cfg.Hedges = d, time.Second, NewHedges(1)
			for range 3 {
				f, err := Open(t.Context(), cfg, "/file")
				if err != nil {
					t.Fatal(err)
				}
				p := make([]byte, 90)
				n, err := f.ReadAt(t.Context(), p, 10)
				synctest.Wait() // the other one has written
				if err != nil || n != len(p) || !bytes.Equal(p, d.content[10:]) {
					t.Errorf("fails %v: %d bytes, %v, or others", fails, n, err)
				}
				if len(cfg.Hedges.room) != 0 {
					t.Error("the read counts as a hedge that is under way")
				}
				f.Close()
			}
		})
	}
}

// A stuck is a path whose first DataNode takes 10 s for a read, as a slow disk does: the end
// of the context does not end it. It writes nonsense then.
type stuck struct{ *cluster }

const slowDisk = 10 * time.Second

func (s stuck) Fill(_ context.Context, req *data.ReadRequest, p []byte) (bool, error) {
	s.count("read")
	if req.Node.GetId().GetDatanodeUuid() == "uuid-1" {
		time.Sleep(slowDisk)
		clear(p)
		return true, nil
	}
	copy(p, s.content[int(req.Block.GetBlockId()-100)*testBlock+int(req.Offset):])
	return true, nil
}

// A hedged read takes as long as the faster of its two DataNodes. The slower one counts as
// under way for as long as it is, so that what is left behind is bounded, and Close waits
// for it.
func TestHedgesDoNotWaitForTheLoser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{newCluster(100, 2)}
		cfg := s.config()
		cfg.Path, cfg.Hedge, cfg.Hedges = s, time.Second, NewHedges(2)
		f, err := Open(t.Context(), cfg, "/file")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var kept [][]byte
		for i, want := range []time.Duration{time.Second, time.Second, slowDisk} {
			p, at := make([]byte, 100), time.Now()
			_, err := f.ReadAt(t.Context(), p, 0)
			if took := time.Since(at); err != nil || took != want {
				t.Errorf("read %d took %v, want %v: %v", i+1, took, want, err)
			}
			if want < slowDisk {
				kept = append(kept, p)
			}
		}
		cfg.Hedges.Close()
		if took := time.Since(began); took != 2*time.Second+slowDisk || len(cfg.Hedges.room) != 0 {
			t.Errorf("closed after %v, %d under way", took, len(cfg.Hedges.room))
		}
		for _, p := range kept {
			if !bytes.Equal(p, s.content) {
				t.Error("the loser has written to the caller's bytes")
			}
		}
		// Whoever reads after that reads from one DataNode.
		reads := s.counts["read"]
		if _, err := f.ReadAt(t.Context(), make([]byte, 10), 0); err != nil || s.counts["read"] != reads+1 {
			t.Errorf("%d reads after Close: %v", s.counts["read"]-reads, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// The end of a hedged read's context ends it, though neither DataNode heeds that.
func TestHedgedReadsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stuck{newCluster(100, 2)}
		s.nodes[1].Id.DatanodeUuid = s.nodes[0].Id.DatanodeUuid // as slow
		cfg := s.config()
		cfg.Path, cfg.Hedge, cfg.Hedges = s, time.Second, NewHedges(1)
		f, err := Open(t.Context(), cfg, "/file")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		_, err = f.ReadAt(ctx, make([]byte, 100), 0)
		took := time.Since(began)
		cfg.Hedges.Close()
		if !errors.Is(err, context.DeadlineExceeded) || took != 3*time.Second || s.counts["read"] != 2 {
			t.Errorf("%v after %v, %d reads", err, took, s.counts["read"])
		}
	})
}

// A hedged read of more than one buffer takes is several.
func TestLongHedgedReads(t *testing.T) {
	c := newCluster(1, 2)
	c.content = make([]byte, mostHedged+testBlock)
	c.answer = func(resp *hdfspb.LocatedBlocksProto) {
		b := c.located(0)
		b.B.NumBytes = proto.Uint64(uint64(len(c.content)))
		resp.Blocks, resp.LastBlock = []*hdfspb.LocatedBlockProto{b}, b
	}
	c.content[mostHedged-1], c.content[mostHedged] = 1, 2
	cfg := c.config()
	cfg.Path, cfg.Hedge, cfg.Hedges = wholly{c}, time.Minute, NewHedges(1)
	f, err := Open(t.Context(), cfg, "/file")
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, len(c.content))
	if n, err := f.ReadAt(t.Context(), p, 0); err != nil || n != len(p) || !bytes.Equal(p, c.content) {
		t.Errorf("%d bytes, %v, or others", n, err)
	}
	cfg.Hedges.Close()
}

type wholly struct{ *cluster }

func (c wholly) Fill(_ context.Context, req *data.ReadRequest, p []byte) (bool, error) {
	copy(p, c.content[req.Offset:])
	return true, nil
}
