package verbena

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/internal/slab"
)

// held is what a process has of the system, and what its two runtimes have
// registered.
type held struct {
	Descriptors, Mappings, Goroutines int
	Registered                        int64
}

func (p *pair) held(t *testing.T) held {
	t.Helper()
	open, err := openDescriptors()
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	h := held{Descriptors: open, Mappings: strings.Count(string(maps), "memfd:"), Goroutines: runtime.NumGoroutine()}
	for _, r := range []*Runtime{p.client, p.server} {
		for _, n := range r.own.domains {
			for _, pool := range []*slab.Pool{n.receivePool, n.longPool, n.sendPool, n.offerPool} {
				if err := pool.Trim(); err != nil { // instead of some idle seconds
					t.Fatal(err)
				}
				h.Registered += pool.Registered()
			}
		}
	}
	return h
}

var churned = flag.Int("churned", 400, "endpoints of each kind that TestEndpointsComeAndGo opens")

// Endpoints that were opened, used and closed leave what was there before the
// first of them, but for what one endpoint leaves: an open domain with a worker. Many:
//
//	go test . -run TestEndpointsComeAndGo -churned 20000
func TestEndpointsComeAndGo(t *testing.T) {
	total, most := *churned, 400 // at once: more than one worker takes
	if testing.Short() || race.Enabled {
		total, most = 100, 100
	}
	eachWorld(t, func(t *testing.T, w world) {
		atOnce := most
		if w.name == "fakewarp" {
			atOnce = 100 // each endpoint has receives posted of its own: the shared queue holds no more
		}
		p := w.pair(t, Config{Workers: 1, Linger: time.Minute}, ListenConfig{Backlog: atOnce})
		p.comeAndGo(t, 1)
		before := p.held(t)
		for done := 0; done < total; done += atOnce {
			p.comeAndGo(t, atOnce)
		}
		after := p.held(t)
		for after.exceeds(before) && p.ctx.Err() == nil { // what ends by itself
			runtime.Gosched()
			after = p.held(t)
		}
		if after.exceeds(before) {
			var stacks bytes.Buffer
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			t.Errorf("before %+v, after %d endpoints %+v\n%s", before, total, after, stacks.Bytes())
		}
	})
}

func (h held) exceeds(o held) bool {
	return h.Descriptors > o.Descriptors || h.Mappings > o.Mappings || h.Goroutines > o.Goroutines || h.Registered > o.Registered
}

// comeAndGo has so many endpoints at once, each with a message of each kind both
// ways.
func (p *pair) comeAndGo(t *testing.T, count int) {
	t.Helper()
	errs := make(chan error, 2*count)
	var all, open sync.WaitGroup
	open.Add(count)
	for i := range count {
		all.Go(func() { errs <- p.askAndClose(i, &open) })
		all.Go(func() { errs <- p.answerAll() })
	}
	all.Wait()
	for range 2 * count {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// askAndClose closes its endpoint when all have been used.
func (p *pair) askAndClose(seed int, open *sync.WaitGroup) error {
	e, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{})
	if err != nil {
		open.Done()
		return err
	}
	for _, size := range []int{10, 300 << 10} {
		want := pattern(size, seed)
		if err = e.Send(p.ctx, uint32(size), want); err != nil {
			break
		}
		var m *Message
		if m, err = e.Receive(p.ctx); err != nil {
			break
		}
		if !bytes.Equal(m.Bytes(), want) {
			err = fmt.Errorf("wrong bytes came back of %d", size)
		}
		m.Release()
	}
	open.Done()
	open.Wait()
	return errors.Join(err, e.Close())
}

func (p *pair) answerAll() error {
	e, err := p.listener.Accept(p.ctx)
	if err != nil {
		return err
	}
	for {
		m, err := e.Receive(p.ctx)
		if err == io.EOF {
			return e.Close()
		}
		if err != nil {
			return errors.Join(err, e.Close())
		}
		err = e.Send(p.ctx, m.Tag, m.Bytes())
		m.Release()
		if err != nil {
			return errors.Join(err, e.Close())
		}
	}
}
