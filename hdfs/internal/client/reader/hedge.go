package reader

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// fetched is what one of the reads that race has come to.
type fetched struct {
	node *hdfspb.DatanodeInfoProto
	p    []byte
	err  error
}

// hedged fills p from a DataNode, and from a second one as well if the first takes
// longer than Hedge; the first answer counts. An error comes with the DataNode that is to
// blame.
func (f *File) hedged(ctx context.Context, b *located, first *hdfspb.DatanodeInfoProto, p []byte, off int64) (*hdfspb.DatanodeInfoProto, error) {
	ctx, cancel := context.WithCancel(ctx)
	answers := make(chan fetched, 2)
	begin := func(node *hdfspb.DatanodeInfoProto) {
		own := make([]byte, len(p)) // the loser still writes to its own
		go func() { answers <- fetched{node, own, f.fetch(ctx, b, node, own, off)} }()
	}
	begin(first)
	racing := 1
	defer func() {
		cancel()
		for ; racing > 0; racing-- {
			<-answers // no goroutine outlives the read
		}
	}()
	t := time.NewTimer(f.cfg.Hedge)
	defer t.Stop()
	var failed fetched
	for {
		select {
		case a := <-answers:
			racing--
			if a.err == nil {
				copy(p, a.p)
				return a.node, nil
			}
			if failed.err == nil || errors.Is(failed.err, context.Canceled) {
				failed = a
			}
			if racing == 0 {
				return failed.node, failed.err
			}
		case <-t.C:
			other := f.alive(b, first)
			if other == nil {
				continue
			}
			select {
			case f.cfg.Hedges <- struct{}{}:
			default:
				continue // as many as are allowed are under way
			}
			defer func() { <-f.cfg.Hedges }()
			begin(other)
			racing++
		}
	}
}
