package pairs

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/internal/external"
	"github.com/verbena-data/verbena/shuffle/internal/jobtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run has several processes do it. change may give one of them another configuration.
func run(t *testing.T, size, threads int, cfg Config, change func(rank int, cfg *Config)) ([]Result, []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if cfg.Temporary == "" {
		cfg.Temporary = t.TempDir()
	}
	results, errs := make([]Result, size), make([]error, size)
	var group sync.WaitGroup
	for rank, x := range jobtest.Exchanges(t, size, threads) {
		own := cfg
		if change != nil {
			change(rank, &own)
		}
		group.Go(func() { results[rank], errs[rank] = Run(ctx, x, own) })
	}
	group.Wait()
	return results, errs
}

// distinct is how many different keys the mappers draw.
func distinct(c Config) int64 {
	seen := map[uint32]bool{}
	for m := range c.Mappers {
		keys := c.keys(m)
		for range c.pairsOf(m) {
			seen[keys.Uint32N(uint32(c.Keys))] = true
		}
	}
	return int64(len(seen))
}

// TestOperations finds as many keys as were drawn, and every pair, in memory and with
// temporary files, however many tasks there are, and with one key for all.
func TestOperations(t *testing.T) {
	for _, operation := range Operations {
		for name, c := range map[string]Config{
			"in memory":       {Pairs: 20_001, Keys: MaxKeys, ValueSize: 100, Mappers: 5, Reducers: 4},
			"temporary files": {Pairs: 40_000, Keys: 30_000, ValueSize: 1024, Mappers: 6, Reducers: 6},
			"one key":         {Pairs: 30_000, Keys: 1, ValueSize: 20, Mappers: 3, Reducers: 3},
			"few tasks":       {Pairs: 1000, Keys: 500, ValueSize: 0, Mappers: 1, Reducers: 1},
			"no pairs":        {Keys: 9, ValueSize: 9, Mappers: 2, Reducers: 2},
		} {
			for _, shape := range [][2]int{{1, 1}, {3, 1}, {2, 2}} {
				c.Operation, c.Check, c.Seed = operation, true, 7
				c.Memory = 41<<20 + int64(c.Reducers)*external.MinMemory
				results, errs := run(t, shape[0], shape[1], c, nil)
				if err := errors.Join(errs...); err != nil {
					t.Fatalf("%s, %s, %v: %v", operation, name, shape, err)
				}
				r := results[0]
				if want := distinct(c); r.Pairs != c.Pairs || r.Groups != want || r.Bytes != c.Pairs*int64(4+c.ValueSize) || r.Processes != shape[0] {
					t.Errorf("%s, %s, %v: %+v; want %d keys", operation, name, shape, r, want)
				}
				if (name == "temporary files" && shape[0] == 1) != (r.Runs > 0) {
					t.Errorf("%s, %s, %v: %d temporary files", operation, name, shape, r.Runs)
				}
			}
		}
	}
}

// TestTasksAreDivided gives each task to one partition, and those of a process together.
func TestTasksAreDivided(t *testing.T) {
	for _, n := range []int{1, 2, 5, 8, 31} {
		for _, partitions := range []int{1, 2, 3, 8} {
			next := 0
			for p := range partitions {
				first, end := share(n, p, partitions)
				if first != next {
					t.Fatalf("%d tasks, partition %d of %d begins at %d, not %d", n, p, partitions, first, next)
				}
				for task := first; task < end; task++ {
					if got := owner(task, n, partitions); got != p {
						t.Errorf("task %d of %d is owned by %d of %d, not by %d", task, n, got, partitions, p)
					}
				}
				next = end
			}
			if next != n {
				t.Errorf("%d of %d tasks are divided among %d", next, n, partitions)
			}
		}
	}
}

// TestSortByRanges has ranges of about the same size, though keys are few.
func TestSortByRanges(t *testing.T) {
	const size = 4
	c := Config{Operation: SortBy, Pairs: 40_000, Keys: MaxKeys, ValueSize: 1, Mappers: size, Reducers: size, Memory: 64 << 20}
	counts := make([]int64, size)
	exchanges := jobtest.Exchanges(t, size, 1)
	var group sync.WaitGroup
	for rank, x := range exchanges {
		group.Go(func() {
			j := &job{cfg: c, x: x}
			if err := j.make(t.Context()); err != nil {
				t.Error(err)
			}
			if err := j.partition(t.Context()); err != nil {
				t.Error(err)
				return
			}
			if rank == 0 {
				for m := range c.Mappers {
					keys := c.keys(m)
					for range c.pairsOf(m) {
						counts[j.reducer(keys.Uint32N(uint32(c.Keys)))]++
					}
				}
			}
			if err := j.forget(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for r, n := range counts {
		if mean := c.Pairs / size; n < mean*3/4 || n > mean*5/4 {
			t.Errorf("reducer %d has %d of %d pairs", r, n, c.Pairs)
		}
	}
}

// TestRefuses says what is wrong, in all processes.
func TestRefuses(t *testing.T) {
	good := Config{Operation: GroupBy, Pairs: 10_000, Keys: 100, ValueSize: 1000, Mappers: 2, Reducers: 2, Memory: 64 << 20}
	for want, change := range map[string]func(rank int, c *Config){
		"no operation":                   func(_ int, c *Config) { c.Operation = "join" },
		"a range of 0 keys":              func(_ int, c *Config) { c.Keys = 0 },
		"values of -1 bytes":             func(_ int, c *Config) { c.ValueSize = -1 },
		"-1 reducers":                    func(_ int, c *Config) { c.Reducers = -1 },
		"raise --memory":                 func(_ int, c *Config) { c.Memory = external.MinMemory },
		"must have the same flags":       func(rank int, c *Config) { c.ValueSize += rank },
		"/nowhere":                       nil,
		"mappers and 99999999 reducers:": func(_ int, c *Config) { c.Reducers = 99999999 },
	} {
		c := good
		if change == nil {
			c.Temporary, c.Pairs, c.Memory = "/nowhere", 60_000, 30<<20+external.MinMemory
		}
		_, errs := run(t, 2, 1, c, change)
		for rank, err := range errs {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("process %d: %v, want %q", rank, err, want)
			}
		}
	}
}

// TestReduceEnds has no pair reduced when the job has ended.
func TestReduceEnds(t *testing.T) {
	gone := errors.New("gone")
	s, err := external.New(t.Context(), external.Config{Fixed: keySize, Memory: external.MinMemory, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := errors.Join(s.Add(make([]byte, keySize)), s.Finish()); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancelCause(t.Context())
	end(gone)
	var p part
	if err := (&job{}).reduceOne(ctx, s, &p); !errors.Is(err, gone) || p.Pairs > 0 {
		t.Errorf("%v; %d pairs", err, p.Pairs)
	}
}

// TestDeath ends the others with the reason when one process leaves.
func TestDeath(t *testing.T) {
	exchanges := jobtest.Exchanges(t, 2, 1)
	c := Config{Operation: GroupBy, Pairs: 100_000, Keys: 1000, ValueSize: 100, Memory: 64 << 20, Temporary: t.TempDir()}
	gone := errors.New("gone")
	exchanges[1].Abort(gone)
	_, err := Run(t.Context(), exchanges[0], c)
	var died *shuffle.ProcessError
	if !errors.As(err, &died) || died.Rank != 1 || !strings.Contains(err.Error(), gone.Error()) {
		t.Error(err)
	}
}
