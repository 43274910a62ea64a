// Package lease keeps a client's lease on the files that it writes: one goroutine
// renews it for all of them, from the first file that is opened to the last that is
// closed.
package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Renewer renews while files are open. Use [New].
type Renewer struct {
	renew func(context.Context) error
	every time.Duration
	lost  time.Duration

	mu      sync.Mutex
	files   map[uint64]func(error)
	next    uint64
	cancel  context.CancelFunc // of the goroutine; nil if there is none
	wg      sync.WaitGroup
	renewed time.Time
}

// ErrLost says that the lease could not be renewed for so long that the NameNode may
// have given the file to others.
var ErrLost = errors.New("the lease could not be renewed, and the NameNode may have closed the file")

// New returns a renewer that calls renew so often, and gives files up when it has
// failed for as long as lost.
func New(renew func(context.Context) error, every, lost time.Duration) *Renewer {
	return &Renewer{renew: renew, every: every, lost: lost, files: map[uint64]func(error){}}
}

// Add begins to renew for a file that was just opened. fail is called, in another
// goroutine, when the lease is lost. The function returned ends it.
func (r *Renewer) Add(fail func(error)) (done func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	id := r.next
	r.next++
	if len(r.files) == 0 {
		r.renewed = time.Now() // opening the file has
	}
	r.files[id] = fail
	if r.cancel == nil {
		ctx, cancel := context.WithCancel(context.Background())
		r.cancel = cancel
		r.wg.Go(func() { r.run(ctx) })
	}
	return func() { r.remove(id) }
}

func (r *Renewer) remove(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.files, id) // the goroutine ends when it finds none: the next file may come at once
}

func (r *Renewer) stop() {
	if r.cancel != nil {
		r.cancel()
		r.cancel = nil
	}
}

// Close ends the renewing and waits for it.
func (r *Renewer) Close() {
	r.mu.Lock()
	clear(r.files)
	r.stop()
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *Renewer) run(ctx context.Context) {
	t := time.NewTicker(r.every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		r.mu.Lock()
		idle := len(r.files) == 0
		if idle && ctx.Err() == nil {
			r.stop()
		}
		r.mu.Unlock()
		if idle {
			return
		}
		err := r.renewInTime(ctx)
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		if err == nil {
			r.renewed = time.Now()
			r.mu.Unlock()
			continue
		}
		since := time.Since(r.renewed)
		var failed []func(error)
		if since >= r.lost {
			for _, f := range r.files {
				failed = append(failed, f)
			}
			clear(r.files)
			r.stop()
		}
		r.mu.Unlock()
		for _, f := range failed {
			f(fmt.Errorf("%w: not since %v ago: %w", ErrLost, since.Round(time.Second), err))
		}
	}
}

// renewInTime renews. It ends when the lease is lost; but a host that has slept for longer
// tries once.
func (r *Renewer) renewInTime(ctx context.Context) error {
	r.mu.Lock()
	left := r.lost - time.Since(r.renewed)
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, max(left, r.every))
	defer cancel()
	return r.renew(ctx)
}
