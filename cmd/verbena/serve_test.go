package main

import (
	"net/http"
	"runtime"
	"testing"
)

// The metrics are read, and nothing else; who reads nothing, or asks nothing more, keeps no
// connection.
func TestMetricsServer(t *testing.T) {
	m, err := serveMetrics(t.Context(), "127.0.0.1:0", told{command: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for method, want := range map[string]int{http.MethodGet: http.StatusOK, http.MethodHead: http.StatusOK, http.MethodPost: http.StatusMethodNotAllowed, http.MethodDelete: http.StatusMethodNotAllowed} {
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+m.address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Close = true
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want || (want != http.StatusOK) != (answer.Header.Get("Allow") == "GET, HEAD") {
			t.Errorf("%s: %s, %v", method, answer.Status, answer.Header)
		}
	}
	if s := m.server; s.ReadHeaderTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 {
		t.Errorf("a client may stay for ever: %s for its request, %s for the answer, %s between", s.ReadHeaderTimeout, s.WriteTimeout, s.IdleTimeout)
	}
}

func TestThreadsOfANameNode(t *testing.T) {
	was := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(was)
	look := func(heap uint64, wantDone bool, want int) {
		t.Helper()
		done := moreThreads(heap)
		if n := runtime.GOMAXPROCS(0); done != wantDone || n != want {
			t.Errorf("%d B of heap: %d threads, done %t; want %d, %t", heap, n, done, want, wantDone)
		}
	}
	t.Setenv("GOMAXPROCS", "1")
	look(largeHeap, true, 1)
	t.Setenv("GOMAXPROCS", "")
	look(largeHeap-1, false, 1)
	look(largeHeap, true, leastThreads)
	runtime.GOMAXPROCS(leastThreads + 1)
	look(largeHeap, true, leastThreads+1)
	runtime.GOMAXPROCS(1)
	followHeap()()
	look(0, false, 1)
}

// A DataNode on two processors has one of Go's to spare, unless somebody has set how many there are.
func TestThreadsOfADataNode(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	for _, test := range []struct {
		set        string
		had, wants int
	}{{"", 1, 1}, {"", 2, 3}, {"", 3, 3}, {"", 4, 4}, {"2", 2, 2}} {
		t.Setenv("GOMAXPROCS", test.set)
		runtime.GOMAXPROCS(test.had)
		// A command that fails has got so far.
		if _, err := run(t, "", "datanode", "--dir", t.TempDir(), "--native-memory", "-1"); err == nil {
			t.Fatal("it serves with less than no memory")
		}
		if n := runtime.GOMAXPROCS(0); n != test.wants {
			t.Errorf("%d threads of %d, GOMAXPROCS %q; want %d", n, test.had, test.set, test.wants)
		}
	}
}
