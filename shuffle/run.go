package shuffle

import (
	"context"
	"errors"
	"sync"
)

// Run is one exchange from its beginning to its end. It joins the other processes, calls send and receive for each of this
// process's threads, all in goroutines of their own, and returns nil when every record has been received, in all processes.
//
// A sender is closed when send returns nil. What receive leaves, if it returns nil before the end, is thrown away. An error of
// either, and the end of ctx, ends the exchange in all processes with that reason, as [Exchange.Abort] does.
func Run(ctx context.Context, c Config, send func(*Sender) error, receive func(*Receiver) error) (err error) {
	x, err := Join(ctx, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	stop := context.AfterFunc(ctx, func() { x.Abort(context.Cause(ctx)) })
	defer stop()
	var threads sync.WaitGroup
	start := func(work func() error) {
		threads.Go(func() {
			if err := work(); err != nil {
				x.Abort(err)
			}
		})
	}
	for thread := range x.Threads() {
		start(func() error {
			s := x.Sender(thread)
			if err := send(s); err != nil {
				return err
			}
			return s.Close()
		})
		start(func() error {
			r := x.Receiver(thread)
			if err := receive(r); err != nil {
				return err
			}
			return r.Each(ctx, func([]byte) error { return nil })
		})
	}
	threads.Wait()
	return x.Wait(ctx)
}
