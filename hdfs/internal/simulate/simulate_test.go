package simulate

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
)

var (
	seedFlag  = flag.Uint64("seed", 1, "of the first history")
	seedsFlag = flag.Uint64("seeds", 4, "how many histories")
	allFlag   = flag.Bool("all", false, "go on after one that failed")
)

// TestSimulate runs a few seeds; go run ./soak simulate runs thousands.
func TestSimulate(t *testing.T) {
	total := map[string]int{}
	for seed := *seedFlag; seed < *seedFlag+*seedsFlag; seed++ {
		var (
			out Outcome
			err error
		)
		synctest.Test(t, func(*testing.T) { out, err = Run(seed) })
		// What pools keep must not come from one bubble into the next: channels can't.
		runtime.GC()
		runtime.GC()
		for what, n := range out.Counts {
			total[what] += n
		}
		if err != nil {
			fmt.Fprintln(os.Stdout, out.History)
			t.Errorf("seed %d: %v\nrun it again: go run ./soak simulate --seed %d", seed, err, seed)
			if !*allFlag {
				return
			}
		}
	}
	for _, what := range slices.Sorted(maps.Keys(total)) {
		fmt.Fprintf(os.Stdout, "COUNT %d %s\n", total[what], what)
	}
	if total["bytes acknowledged"] == 0 {
		t.Error("nothing was at stake")
	}
	if *seedsFlag < 4 {
		return // one seed may have but little
	}
	if total["replicas copied by "+ownNative.String()] == 0 {
		t.Error("no replica was copied natively")
	}
	for w := range ways {
		for _, what := range []string{"pipelines by ", "replicas read by "} {
			if total[what+w.String()] == 0 {
				t.Errorf("there are no %s%v", what, w)
			}
		}
	}
}
