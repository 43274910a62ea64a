package verbena

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/verbena-data/verbena/internal/slab"
)

// trialShare says that messages on trial may have an eighth of the long messages' memory.
const trialShare = 8

// trialPatience is how long Receive waits for a place on trial, before it asks for
// memory for the whole message. Tests change it.
var trialPatience = 10 * time.Second

// errNoTrial says that no place on trial has come free in time.
var errNoTrial = errors.New("verbena: no place on trial")

// getTrial gets trial memory. It waits for a place on trial, at most patience, and then
// returns errNoTrial. One message of a peer is on trial at a time, and all together have
// an eighth of the memory; one that is larger may be on trial alone.
func (sh *share) getTrial(ctx context.Context, size int, patience time.Duration) (slab.Slab, error) {
	t := time.NewTimer(patience)
	defer t.Stop()
	a := sh.of
	n := int64(size)
	for {
		a.mu.Lock()
		if !sh.trial && (a.onTrial == 0 || a.onTrial+n <= a.long.Limit()/trialShare) {
			sh.trial = true
			a.onTrial += n
			a.mu.Unlock()
			break
		}
		ended := a.trialEnd
		a.mu.Unlock()
		select {
		case <-ended:
		case <-t.C:
			return slab.Slab{}, errNoTrial
		case <-ctx.Done():
			return slab.Slab{}, fmt.Errorf("waiting for memory of a message: %w", context.Cause(ctx))
		}
	}
	memory, err := a.long.Get(ctx, size)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		sh.endTrial(n)
		return memory, err
	}
	a.onTrial += int64(memory.Size()) - n
	sh.users++ // the message's
	return memory, nil
}

// endTrial gives the peer's place on trial back. It needs the mutex.
func (sh *share) endTrial(n int64) {
	sh.trial = false
	sh.of.onTrial -= n
	close(sh.of.trialEnd)
	sh.of.trialEnd = make(chan struct{})
}
