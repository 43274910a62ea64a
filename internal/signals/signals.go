// Package signals ends a command by the signal that has interrupted it, when it has put everything in order: so a shell knows that
// the user wants to end a script, too.
package signals

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"time"
)

// BrokenPipe is the status with which a shell reports a command that SIGPIPE has ended: 128 and the signal's number.
const BrokenPipe = 128 + int(syscall.SIGPIPE)

// Of tells which signal has ended a context of [os/signal.NotifyContext], or one below it; nil: none. The context keeps the signal's
// name alone.
func Of(ctx context.Context) os.Signal {
	cause := context.Cause(ctx)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		if cause != nil && cause.Error() == s.String()+" signal received" {
			return s
		}
	}
	return nil
}

// Ends tells whether an error says no more than that a context has ended. Of errors that [errors.Join] has put together, all must: what
// could not be put in order is told.
func Ends(ctx context.Context, err error) bool {
	switch e := any(err).(type) { // the errors in it come one by one
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return Ends(ctx, inner)
		}
	case interface{ Unwrap() []error }:
		parts := e.Unwrap()
		if err.Error() == errors.Join(parts...).Error() {
			return !slices.ContainsFunc(parts, func(part error) bool { return !Ends(ctx, part) })
		}
		return slices.ContainsFunc(parts, func(part error) bool { return Ends(ctx, part) })
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))
}

// Die ends this process by a signal of [Of], which must not be caught any more. Where there are no signals the status says which.
func Die(s os.Signal) {
	status := 1
	if number, ok := s.(syscall.Signal); ok {
		status = 128 + int(number)
	}
	if p, err := os.FindProcess(os.Getpid()); err == nil && p.Signal(s) == nil {
		time.Sleep(time.Second) // another thread may take it
	}
	os.Exit(status)
}
