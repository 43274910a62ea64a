package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	every = 30 * time.Second
	lost  = 20 * time.Minute
)

// A lease is renewed as long as a file is open, once for all files, and no longer.
func TestRenewsWhileFilesAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewed atomic.Int32
		r := New(func(context.Context) error { renewed.Add(1); return nil }, every, lost)
		fail := func(err error) { t.Error(err) }
		time.Sleep(time.Hour)
		if n := renewed.Load(); n != 0 {
			t.Errorf("%d renewals without a file", n)
		}
		first := r.Add(fail)
		second := r.Add(fail)
		time.Sleep(10*every + time.Second)
		first()
		time.Sleep(10 * every)
		if n := renewed.Load(); n != 20 {
			t.Errorf("%d renewals in 20 intervals", n)
		}
		second()
		second() // a second time is of no effect
		time.Sleep(2 * every)
		synctest.Wait()
		if r.cancel != nil {
			t.Error("the goroutine has not ended")
		}
		n := renewed.Load()
		time.Sleep(time.Hour)
		if renewed.Load() != n {
			t.Error("renewed without a file")
		}
		third := r.Add(fail)
		time.Sleep(every + time.Second)
		if renewed.Load() != n+1 {
			t.Error("a later file's lease is not renewed")
		}
		third()
		r.Close()
	})
}

// A file that is opened before the goroutine has seen that there is none keeps it.
func TestNextFileComesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var renewed atomic.Int32
		r := New(func(context.Context) error { renewed.Add(1); return nil }, every, lost)
		defer r.Close()
		for range 100 {
			done := r.Add(func(err error) { t.Error(err) })
			time.Sleep(every / 10)
			done()
		}
		if n := renewed.Load(); n < 9 || n > 10 {
			t.Errorf("%d renewals in 10 intervals", n)
		}
	})
}

// Failures are borne until the lease may be another's. Then all files fail, once, and
// files that come later have a new lease.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("the NameNode is away")
		var broken atomic.Bool
		r := New(func(context.Context) error {
			if broken.Load() {
				return away
			}
			return nil
		}, every, lost)
		defer r.Close()
		type failure struct {
			err  error
			when time.Time
		}
		failed := make(chan failure, 10)
		for range 2 {
			r.Add(func(err error) { failed <- failure{err, time.Now()} })
		}
		time.Sleep(every + time.Second)
		broken.Store(true)
		time.Sleep(lost - 2*every)
		if len(failed) != 0 {
			t.Fatal("given up too soon")
		}
		broken.Store(false)
		time.Sleep(every)
		broken.Store(true)
		began := time.Now()
		time.Sleep(2 * lost)
		if len(failed) != 2 {
			t.Errorf("%d files failed", len(failed))
		}
		for range len(failed) {
			f := <-failed
			if after := f.when.Sub(began); !errors.Is(f.err, ErrLost) || !errors.Is(f.err, away) || after < lost-every || after > lost+every {
				t.Errorf("after %v: %v", after, f.err)
			}
		}
		broken.Store(false)
		done := r.Add(func(err error) { t.Errorf("a new file: %v", err) })
		time.Sleep(lost + time.Hour)
		done()
	})
}

// A renewal that nobody answers does not keep files from knowing that their lease is lost.
func TestLeaseLostInARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, every, lost)
		defer r.Close()
		failed := make(chan error, 1)
		began := time.Now()
		r.Add(func(err error) { failed <- err })
		if err := <-failed; !errors.Is(err, ErrLost) {
			t.Error(err)
		}
		if took := time.Since(began); took != lost {
			t.Errorf("it took %v, want %v", took, lost)
		}
	})
}

// Close ends a renewal that is under way, and tells no file.
func TestCloseEndsRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, every, time.Nanosecond)
		done := r.Add(func(err error) { t.Errorf("%v", err) })
		time.Sleep(every + time.Second)
		began := time.Now()
		r.Close()
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %v", took)
		}
		done()
		r.Close()
	})
}
