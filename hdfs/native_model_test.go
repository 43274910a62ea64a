package hdfs

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
)

// How TestBothPathsUnderAModel goes. For long, it is
// go test ./hdfs -run TestBothPathsUnderAModel -model-seeds 200 -timeout 1h.
var (
	modelSeed  = flag.Uint64("model-seed", 1, "the first seed of TestBothPathsUnderAModel")
	modelSeeds = flag.Uint64("model-seeds", 3, "how many seeds TestBothPathsUnderAModel takes, with -short one")
)

// recoverFile has a file's lease recovered, and waits until it is closed.
func recoverFile(t *testing.T, c *Client, name string) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		closed, err := c.RecoverLease(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if closed {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the file stays open")
		}
	}
}

// Random writers of both protocols append to one file, flush, hsync, close or die, others recover it, and cut it
// anywhere; readers of both find what a model says, byte for byte. So do those that read while it is written and
// recovered, by messages, rings, windows and descriptors.
func TestBothPathsUnderAModel(t *testing.T) {
	t.Parallel()
	seeds := *modelSeeds
	if testing.Short() {
		seeds = 1
	}
	for i := range seeds {
		seed := *modelSeed + i
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel() // each waits for leases for most of its time
			bothPathsUnderAModel(t, seed)
		})
	}
}

// modelBlock is the length of a block: long enough to be read through a ring.
const modelBlock = 5 << 20

// bothModel is one file, who writes and reads it, and what has to be in it.
type bothModel struct {
	t       *testing.T
	rng     *rand.Rand
	clients []*Client
	step    int
	// want is in the file; of what was not flushed when a writer died, any part may be.
	want    []byte
	readers sync.WaitGroup // beside a writer
}

const modelFile = "/model"

func bothPathsUnderAModel(t *testing.T, seed uint64) {
	s := startSystem(t, 3, 3)
	m := &bothModel{t: t, rng: rand.New(rand.NewPCG(seed, 0))}
	common := func(cfg *ClientConfig) {
		cfg.PacketSize, cfg.ReplaceBestEffort, cfg.BlockSize = 30_000, true, modelBlock
	}
	legacy := func(cfg *ClientConfig) { cfg.LegacyTransfers = true }
	local := func(cfg *ClientConfig) { cfg.NoLocalReads = false }
	byDescriptor := s.own(plain, common, local)
	m.clients = []*Client{
		s.own(verbena.TransportAuto, common), s.own(plain, common), s.own("shm", common), s.own("shm", common, legacy),
		s.own("tcp", common), s.own("iwarp", common), byDescriptor,
	}
	if err := m.any(m.rng).WriteFile(t.Context(), modelFile, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for m.step = range 24 {
		if len(m.want) > 0 && m.rng.IntN(4) == 0 {
			m.cut()
		} else {
			m.append()
		}
		expect(t, m.any(m.rng), modelFile, m.want)
	}
	m.eachWay(m.clients[2], byDescriptor)
	var rings, windows uint64
	for _, node := range s.DataNodes {
		n := node.Reads()
		rings += n.Rings
		windows += n.Windows.Granted
	}
	if rings == 0 || windows == 0 || byDescriptor.LocalReads().Reads == 0 && runtime.GOOS == "linux" {
		t.Errorf("%d reads through rings, %d windows, %+v: a way was not taken", rings, windows, byDescriptor.LocalReads())
	}
}

// eachWay makes the file long enough, and has it read by rings, windows and descriptors, which some seeds do not
// come to by themselves.
func (m *bothModel) eachWay(shm, byDescriptor *Client) {
	m.t.Helper()
	w, err := m.any(m.rng).Append(m.t.Context(), modelFile, AppendOptions{})
	if err != nil {
		m.t.Fatal(err)
	}
	more := randomBytes(2 * modelBlock)
	if _, err := w.Write(more); err != nil {
		m.t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.want = append(m.want[:len(m.want):len(m.want)], more...)
	expect(m.t, shm, modelFile, m.want)
	expect(m.t, byDescriptor, modelFile, m.want)
	f, err := shm.Open(m.t.Context(), modelFile)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	warm(m.t, shm, f, m.want, 1)
}

func (m *bothModel) any(rng *rand.Rand) *Client { return m.clients[rng.IntN(len(m.clients))] }

func (m *bothModel) cut() {
	m.t.Helper()
	to := m.rng.IntN(len(m.want) + 1)
	done, err := m.any(m.rng).Truncate(m.t.Context(), modelFile, int64(to))
	if err != nil {
		m.t.Fatalf("step %d: truncate from %d to %d: %v", m.step, len(m.want), to, err)
	}
	if m.want = m.want[:to]; !done {
		recoverFile(m.t, m.any(m.rng), modelFile)
	}
}

// append has one writer append pieces, others read meanwhile, and the writer close the file or die.
func (m *bothModel) append() {
	m.t.Helper()
	w, err := m.any(m.rng).Append(m.t.Context(), modelFile, AppendOptions{})
	if err != nil {
		m.t.Fatalf("step %d: append at %d: %v", m.step, len(m.want), err)
	}
	defer m.readers.Wait()
	pieces, full := 1+m.rng.IntN(4), m.want
	sizes := make([]int, pieces)
	for i := range sizes {
		if sizes[i] = m.rng.IntN(400_000); m.rng.IntN(8) == 0 {
			sizes[i] += 2 << 20
		}
		full = append(full[:len(full):len(full)], randomBytes(sizes[i])...)
	}
	written := len(m.want)
	for _, n := range sizes {
		m.readMeanwhile(full)
		if _, err := w.Write(full[written : written+n]); err != nil {
			m.t.Fatalf("step %d: %v", m.step, err)
		}
		written += n
		switch m.rng.IntN(3) {
		case 0:
			err = w.Flush(m.t.Context())
		case 1:
			err = w.Sync(m.t.Context(), m.rng.IntN(2) == 0)
		default:
			continue
		}
		if err != nil {
			m.t.Fatalf("step %d: %v", m.step, err)
		}
		m.want = full[:written]
		expect(m.t, m.any(m.rng), modelFile, m.want)
	}
	if m.rng.IntN(3) > 0 {
		if err := w.Close(); err != nil {
			m.t.Fatalf("step %d: %v", m.step, err)
		}
		m.want = full
		return
	}
	w.Abort()
	if err := w.Close(); err == nil { // gives the memory of what was not sent back
		m.t.Fatalf("step %d: an aborted writer closed the file", m.step)
	}
	m.readMeanwhile(full)
	recoverFile(m.t, m.any(m.rng), modelFile)
	got, err := m.any(m.rng).ReadFile(m.t.Context(), modelFile)
	if err != nil {
		m.t.Fatalf("step %d: %v", m.step, err)
	}
	if !bytes.HasPrefix(full, got) || len(got) < len(m.want) {
		m.t.Fatalf("step %d: a dead writer left %d bytes, %d were flushed of %d, or others", m.step, len(got), len(m.want), len(full))
	}
	m.want = got
}

// readMeanwhile has two readers beside what follows: one reads all, the other one small pieces of one place, and
// then of any. What was flushed before they began is there, and nothing that is not in full.
func (m *bothModel) readMeanwhile(full []byte) {
	flushed, step := len(m.want), m.step
	rng := rand.New(rand.NewPCG(m.rng.Uint64(), 1))
	whole, pieces := m.any(rng), m.any(rng)
	m.readers.Go(func() {
		got, err := whole.ReadFile(m.t.Context(), modelFile)
		if err != nil || len(got) < flushed || !bytes.HasPrefix(full, got) {
			m.t.Errorf("step %d: beside a writer %d bytes were read, or others; %d were flushed: %v", step, len(got), flushed, err)
		}
	})
	if flushed == 0 {
		return
	}
	m.readers.Go(func() {
		f, err := pieces.Open(m.t.Context(), modelFile)
		if err != nil {
			m.t.Errorf("step %d: %v", step, err)
			return
		}
		defer f.Close()
		place, span := rng.IntN(flushed), 100_000
		for i := range 60 {
			if i == 40 {
				place, span = 0, flushed
			}
			off := place + rng.IntN(min(span, flushed-place))
			if err := at(f, full, off, min(1+rng.IntN(9000), flushed-off)); err != nil {
				m.t.Errorf("step %d: beside a writer, at %d of %d: %v", step, off, flushed, err)
				return
			}
		}
	})
}
