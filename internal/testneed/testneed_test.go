package testneed

import (
	"runtime"
	"testing"
)

// recorder is a test that notes how it ended.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Skipf(string, ...any)  { r.skipped = true; runtime.Goexit() }
func (r *recorder) Fatalf(string, ...any) { r.failed = true; runtime.Goexit() }

func end(f func(testing.TB)) *recorder {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func TestTool(t *testing.T) {
	missing := func(t testing.TB) { Tool(t, "no such program", "write it") }
	present := func(t testing.TB) { Tool(t, "sh", "") }
	t.Setenv(Variable, "")
	if r := end(missing); !r.skipped || r.failed {
		t.Errorf("a missing tool: %+v", r)
	}
	if r := end(present); r.skipped || r.failed {
		t.Errorf("a tool that is there: %+v", r)
	}
	t.Setenv(Variable, "1")
	if r := end(missing); r.skipped || !r.failed {
		t.Errorf("a missing tool that is required: %+v", r)
	}
}
