package perf

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// A child whose parent is gone ends in order, or is given up.
func TestUntilEOF(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		input, parent := io.Pipe()
		givenUp := make(chan struct{})
		ctx, cancel := UntilEOF(t.Context(), input, func() { close(givenUp) })
		defer cancel()
		synctest.Wait()
		if ctx.Err() != nil {
			t.Error("it ends while the parent lives")
		}
		if err := parent.Close(); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		began := time.Now()
		<-givenUp
		if took := time.Since(began); took != endLimit {
			t.Errorf("given up after %s, want %s", took, endLimit)
		}
	})
}
