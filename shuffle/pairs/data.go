package pairs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sync/errgroup"

	"github.com/verbena-data/verbena/shuffle/internal/external"
)

// progressEach is after about how many bytes progress is told.
const progressEach = 4 << 20

// meter tells progress.
type meter struct {
	done  atomic.Int64
	total int64
	tell  func(done, total int64)
}

func (m *meter) add(n int) {
	if done := m.done.Add(int64(n)); m.tell != nil {
		m.tell(done, m.total)
	}
}

// mappers are those of this process.
func (j *job) mappers() (first, end int) { return share(j.cfg.Mappers, j.x.Rank(), j.x.Size()) }

// pairsOf is how many pairs a mapper makes.
func (c *Config) pairsOf(mapper int) int64 {
	n, m := int64(c.Mappers), int64(mapper)
	of := func(m int64) int64 { return c.Pairs/n*m + c.Pairs%n*m/n }
	return of(m+1) - of(m)
}

// held is how many bytes of pairs this process keeps in memory.
func (j *job) held() (n int64) {
	first, end := j.mappers()
	for m := first; m < end; m++ {
		n += j.cfg.pairsOf(m) * int64(j.cfg.record())
	}
	return n
}

// reducing is the memory of each reducer of this process.
func (j *job) reducing() int64 {
	first, end := j.reducers()
	return (j.cfg.Memory - j.held()) / int64(max(1, end-first))
}

// make makes this process's pairs, and keeps them.
func (j *job) make(ctx context.Context) error {
	held := j.held()
	if first, end := j.reducers(); j.reducing() < external.MinMemory && end > first {
		return fmt.Errorf("the pairs of process %d take %d MiB, and each of its %d reducers %d MiB at least; it has %d MiB for both: raise --memory, or have fewer pairs or reducers",
			j.x.Rank(), held>>20, end-first, external.MinMemory>>20, j.cfg.Memory>>20)
	}
	// What is made, what is sent and what is reduced.
	j.progress.total, j.progress.tell = 3*j.cfg.Pairs*int64(j.cfg.record()), j.cfg.Progress
	first, end := j.mappers()
	for m := first; m < end; m++ {
		pairs := j.cfg.pairsOf(m)
		j.own.Made += pairs
		if pairs == 0 {
			j.made = append(j.made, nil)
			continue
		}
		memory, err := external.MapMemory(int(pairs) * j.cfg.record())
		if err != nil {
			return err
		}
		j.made = append(j.made, memory)
	}
	sums := make([]uint64, len(j.made))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(j.x.Threads())
	for i, memory := range j.made {
		g.Go(func() (err error) {
			sums[i], err = j.fill(ctx, first+i, memory)
			return err
		})
	}
	err := g.Wait()
	for _, s := range sums {
		j.own.Sent += s
	}
	return err
}

// fill makes the pairs of a mapper. The checksum is 0 without Check.
func (j *job) fill(ctx context.Context, mapper int, memory []byte) (sum uint64, err error) {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], j.cfg.Seed)
	binary.LittleEndian.PutUint64(seed[8:], uint64(mapper))
	random, keys := rand.NewChaCha8(seed), j.cfg.keys(mapper)
	size := j.cfg.record()
	for done := 0; len(memory) > 0; memory = memory[size:] {
		record := memory[:size]
		binary.BigEndian.PutUint32(record, keys.Uint32N(uint32(j.cfg.Keys)))
		_, _ = random.Read(record[keySize:]) // never an error
		if j.cfg.Check {
			sum += checksum(record)
		}
		if done += size; done >= progressEach || len(memory) == size {
			if ctx.Err() != nil {
				return 0, context.Cause(ctx)
			}
			j.progress.add(done)
			done = 0
		}
	}
	return sum, nil
}

// keys draws the keys of a mapper.
func (c *Config) keys(mapper int) *rand.Rand { return rand.New(rand.NewPCG(c.Seed, uint64(mapper))) }

// checksum is that of a pair. Those of all are added up, so that their order does not count.
func checksum(record []byte) uint64 { return xxhash.Sum64(record) }

// of returns what a thread's mappers have made.
func (j *job) of(thread int) [][]byte {
	offset, _ := j.mappers()
	first, end := share(j.cfg.Mappers, j.x.Rank()*j.x.Threads()+thread, j.x.Partitions())
	return j.made[first-offset : end-offset]
}

// sampled is how many keys all processes together look at for each reducer.
const sampled = 100

// sample returns keys from all over this process's pairs, at most 100,000.
func (j *job) sample() (keys [][]byte) {
	var total int64
	for _, m := range j.made {
		total += int64(len(m) / j.cfg.record())
	}
	wanted := min(int64(sampled)*int64(j.cfg.Reducers)/int64(j.x.Size())+1, 100_000, total)
	i := 0
	var before int64 // pairs of the mappers before i
	for n := range wanted {
		at := total / wanted * n
		for at-before >= int64(len(j.made[i])/j.cfg.record()) {
			before += int64(len(j.made[i]) / j.cfg.record())
			i++
		}
		keys = append(keys, bytes.Clone(j.made[i][int(at-before)*j.cfg.record():][:keySize]))
	}
	return keys
}

// forget frees the pairs.
func (j *job) forget() error {
	var errs []error
	for _, m := range j.made {
		if m != nil {
			errs = append(errs, external.Unmap(m))
		}
	}
	j.made = nil
	return errors.Join(errs...)
}
