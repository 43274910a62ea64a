package testneed

import (
	"flag"
	"runtime"
	"strconv"
)

// AtOnce lets n tests run at once that call t.Parallel, unless go test's -parallel says
// otherwise; by default there are as many as processors. It is for packages whose
// parallel tests wait for most of their time, and is called by their TestMain. Fuzzing
// has a worker for each processor as before: its workers compute.
func AtOnce(n int) {
	flag.Parse()
	given := runtime.GOMAXPROCS(0) >= n
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" || f.Name == "test.fuzz" })
	if given {
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err) // the flag is testing's own
	}
}
