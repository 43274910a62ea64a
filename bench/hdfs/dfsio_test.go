package main

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestDFSIO's formulas: the throughput weighs slow tasks by their time, the mean rate does not.
func TestRatesOfTasks(t *testing.T) {
	r := ratesOf(100, []time.Duration{time.Second, 4 * time.Second})
	if math.Abs(r.Throughput-40) > 1e-9 || math.Abs(r.Average-62.5) > 1e-9 || math.Abs(r.Deviation-37.5) > 1e-9 {
		t.Errorf("%+v", r)
	}
}

// What Hadoop 3.4.1 writes into the file of -resFile.
const dfsioResult = `----- TestDFSIO ----- : write
            Date & time: Mon Nov 23 22:40:00 UTC 2026
        Number of files: 4
 Total MBytes processed: 256
      Throughput mb/sec: 312.58
 Average IO rate mb/sec: 320.1
  IO rate std deviation: 48.7
     Test exec time sec: 3.42

`

func TestResultOfHadoop(t *testing.T) {
	r, err := parseDFSIO(dfsioResult)
	if want := (rates{Throughput: 312.58, Average: 320.1, Deviation: 48.7, Seconds: 3.42}); err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	for what, text := range map[string]string{
		"nothing": "", "two runs": dfsioResult + dfsioResult, "no time": strings.Replace(dfsioResult, "Test exec time sec", "", 1),
		"no number": strings.Replace(dfsioResult, "3.42", "3.4.2", 1),
	} {
		if r, err := parseDFSIO(text); err == nil {
			t.Errorf("%s: %+v", what, r)
		}
	}
}

func TestDFSIOAsksForSomething(t *testing.T) {
	for what, d := range map[string]dfsio{
		"no files": {tasks: 1}, "no tasks": {files: 1}, "a negative packet": {files: 1, tasks: 1, packet: -1},
		"more files than MiB": {files: 4, tasks: 1, sizes: []int64{3}},
	} {
		if d.check() == nil {
			t.Errorf("%s passes", what)
		}
	}
	if err := (&dfsio{files: 4, tasks: 2, sizes: []int64{4}}).check(); err != nil {
		t.Error(err)
	}
}
