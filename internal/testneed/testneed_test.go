package testneed

import (
	"flag"
	"runtime"
	"strconv"
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

// The tests of a package run this way as many at once as it says, or as go test says.
func TestAtOnce(t *testing.T) {
	own := flag.Lookup("test.parallel").Value
	before := own.String()
	t.Cleanup(func() {
		if err := own.Set(before); err != nil {
			t.Error(err)
		}
	})
	most := runtime.GOMAXPROCS(0)
	if AtOnce(most); own.String() != before {
		t.Errorf("%s at once, as many as processors", own)
	}
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" || f.Name == "test.fuzz" })
	want := strconv.Itoa(most + 3)
	if given {
		want = before
	}
	if AtOnce(most + 3); own.String() != want {
		t.Errorf("%s at once, want %s", own, want)
	}
	if AtOnce(most + 5); own.String() != want {
		t.Errorf("%s at once, want %s, which was set before", own, want)
	}
}
