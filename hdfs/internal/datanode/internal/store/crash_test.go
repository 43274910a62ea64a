package store

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// model is what the test knows of a block.
type model struct {
	w        *Writer
	bytes    []byte // all that was written
	synced   int    // bytes on stable storage
	gen      uint64
	syncGen  uint64 // generation when synced was set
	final    bool
	finalSyn bool
	deleted  bool
}

// A crashStory is random things done to blocks of one directory.
type crashStory struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	fs     *vfs.MemFS
	s      *Store
	blocks []*model // the first one has id 1
	gen    uint64   // the last that was given out
}

// crashRun tells a story, then lets the machine or the process die, and looks at what is
// there afterwards. It returns how many files of removed replicas were written over.
func crashRun(t *testing.T, seed uint64) (reused uint64) {
	c := &crashStory{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 7)), fs: vfs.NewCrashableMem(), gen: 1000}
	c.open()
	for range 5 + c.rng.IntN(60) {
		c.step()
	}
	c.check(c.s, true)
	for range 3 {
		crashed := c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: c.rng.IntN(101), RNG: c.rng})
		s := open(t, crashed, "b")
		c.check(s, false)
		must(t, s.Close())
		// And again at once: what the first start changed must hold as well.
		s = open(t, crashed.CrashClone(vfs.CrashCloneCfg{}), "c")
		c.check(s, false)
		must(t, s.Close())
	}
	return c.s.Spares().Reused
}

// open opens the store, which writes over the files of removed replicas, as those in memory do.
func (c *crashStory) open() {
	c.s = open(c.t, c.fs, "a")
	v := c.s.volumes[0]
	must(c.t, v.prepareSpares(1<<20))
	v.spares.least, v.spares.first = 1, 1
	if c.seed%2 == 0 {
		v.spares.first = 2000 // many a replica has some bytes before its first long write
	}
}

func idOf(i int) uint64 { return uint64(i + 1) }

// check compares all blocks with what is known of them. process says that no more than the
// process has died, if anything.
func (c *crashStory) check(s *Store, process bool) {
	for i, m := range c.blocks {
		r, err := s.Get(idOf(i))
		if m.deleted && process && err == nil {
			c.t.Fatalf("seed %d: block %d came back", c.seed, i)
		}
		if m.deleted {
			continue
		}
		if err != nil {
			if m.syncGen != 0 || process {
				c.t.Fatalf("seed %d: block %d with %d bytes synced, %d written: %v", c.seed, i, m.synced, len(m.bytes), err)
			}
			continue
		}
		info := r.Info()
		if info.Length < int64(m.synced) || info.Length > int64(len(m.bytes)) || info.Generation < m.syncGen {
			c.t.Fatalf("seed %d: block %d is %+v; %d bytes synced at generation %d, %d written", c.seed, i, info, m.synced, m.syncGen, len(m.bytes))
		}
		if process && (info.Length != int64(len(m.bytes)) || info.Generation != m.gen || (info.State == Finalized) != m.final) {
			c.t.Fatalf("seed %d: after the death of the process block %d is %+v, not %d bytes, generation %d, final %t", c.seed, i, info, len(m.bytes), m.gen, m.final)
		}
		if m.finalSyn && info.State != Finalized {
			c.t.Fatalf("seed %d: block %d was finalized with hsync, now it is %v", c.seed, i, info.State)
		}
		if got := contents(c.t, s, idOf(i)); !bytes.Equal(got, m.bytes[:info.Length]) {
			c.t.Fatalf("seed %d: wrong bytes in block %d", c.seed, i)
		}
	}
}

// step does something to a block, or makes one.
func (c *crashStory) step() {
	t, rng := c.t, c.rng
	if len(c.blocks) == 0 || c.alive() < 4 && rng.IntN(6) == 0 {
		c.gen++
		w, err := c.s.Create(idOf(len(c.blocks)), c.gen, transfer.CRC32C(), false, nil, Want{})
		must(t, err)
		c.blocks = append(c.blocks, &model{w: w, gen: c.gen})
		return
	}
	i := rng.IntN(len(c.blocks))
	m := c.blocks[i]
	if m.deleted {
		return
	}
	c.gen++
	switch op := rng.IntN(20); {
	case m.w != nil && op < 10:
		c.write(m)
	case m.w != nil && op < 15:
		must(t, m.w.Sync())
		m.synced, m.syncGen = len(m.bytes), m.gen
	case m.w != nil && op < 17:
		sync := rng.IntN(2) == 0
		must(t, m.w.Finalize(sync))
		must(t, m.w.Close(false))
		m.w, m.final = nil, true
		if sync {
			m.synced, m.syncGen, m.finalSyn = len(m.bytes), m.gen, true
		}
	case m.w != nil && op < 18: // the writer's connection breaks, another comes
		must(t, m.w.Close(false))
		c.reopen(i, ReopenOptions{Mode: RecoverWriting, Max: int64(len(m.bytes))})
	case m.final && op < 6:
		c.reopen(i, ReopenOptions{Mode: Append, Min: int64(len(m.bytes))})
		m.final, m.finalSyn = false, false
	case m.final && op < 8:
		r, err := c.s.Get(idOf(i))
		must(t, err)
		must(t, r.SyncFinalized()) // promises nothing
	case op == 18:
		c.recover(i)
	case op == 19 && rng.IntN(3) == 0:
		c.endWriter(m)
		must(t, c.s.Delete(idOf(i), m.gen))
		m.deleted = true
	case op == 17 && rng.IntN(4) == 0:
		c.restart()
	}
}

// alive is how many blocks have not been deleted.
func (c *crashStory) alive() (n int) {
	for _, m := range c.blocks {
		if !m.deleted {
			n++
		}
	}
	return n
}

// write adds bytes to a block, often together with some that are there already.
func (c *crashStory) write(m *model) {
	rng := c.rng
	n := 1 + rng.IntN(3000)
	off := len(m.bytes)
	if rng.IntN(2) == 0 {
		off = off / 512 * 512
	} else if rng.IntN(4) == 0 && off > 0 {
		off -= rng.IntN(min(off, 700))
	}
	fresh := random(rng, n)
	write(c.t, m.w, int64(off), append(bytes.Clone(m.bytes[off:]), fresh...))
	m.bytes = append(m.bytes, fresh...)
}

// reopen gives a block another writer, and the last generation.
func (c *crashStory) reopen(i int, o ReopenOptions) {
	m := c.blocks[i]
	o.Generation, o.NewGeneration = m.gen, c.gen
	w, err := c.s.Reopen(idOf(i), o)
	must(c.t, err)
	if m.syncGen != 0 {
		m.syncGen = c.gen
	}
	m.w, m.gen = w, c.gen
}

func (c *crashStory) endWriter(m *model) {
	if m.w != nil {
		must(c.t, m.w.Close(false))
		m.w = nil
	}
}

// recover is a recovery of a block, often one that cuts.
func (c *crashStory) recover(i int) {
	t, rng, m, gen := c.t, c.rng, c.blocks[i], c.gen
	c.endWriter(m)
	r, err := c.s.Get(idOf(i))
	must(t, err)
	_, err = r.InitRecovery(m.gen, gen)
	must(t, err)
	if !m.final && rng.IntN(2) == 0 { // which brings what is lacking
		m.bytes = append(bytes.Clone(m.bytes), random(rng, 1+rng.IntN(3000))...)
		extend(t, r, gen, m.bytes)
	}
	n := len(m.bytes)
	if rng.IntN(3) > 0 {
		n = rng.IntN(n + 1)
	}
	must(t, r.Settle(gen, int64(n)))
	must(t, r.Settle(gen, int64(n)))
	m.bytes, m.synced, m.gen, m.syncGen, m.final, m.finalSyn = bytes.Clone(m.bytes[:n]), n, gen, gen, true, true
}

// restart lets the process die. The story goes on: writers come back.
func (c *crashStory) restart() {
	must(c.t, c.s.Close())
	c.open()
	c.check(c.s, true)
	for i, m := range c.blocks {
		if m.w != nil {
			c.gen++
			c.reopen(i, ReopenOptions{Mode: RecoverWriting, Max: int64(len(m.bytes))})
		}
	}
}

func TestCrash(t *testing.T) {
	seeds := uint64(1500)
	if testing.Short() {
		seeds = 200
	}
	var reused uint64
	for seed := range seeds {
		reused += crashRun(t, seed)
	}
	if reused < seeds/10 {
		t.Errorf("%d files of removed replicas were written over in %d stories", reused, seeds)
	}
}
