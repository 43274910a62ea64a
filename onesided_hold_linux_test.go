package verbena

import (
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A holdCounter counts who holds a queue, and whether an event was there when he looked.
type holdCounter struct {
	rdma.EventQueue
	holds, held, releases int
}

func (c *holdCounter) Hold() {
	c.holds++
	c.EventQueue.Hold()
}

func (c *holdCounter) Held() bool {
	held := c.EventQueue.Held()
	if held {
		c.held++
	}
	return held
}

func (c *holdCounter) Release() {
	c.releases++
	c.EventQueue.Release()
}

// A Put that the socket takes is done when it is posted. Whoever has posted it sees that, and
// the worker sleeps on, which would look for more in vain.
func TestPutWakesNoWorker(t *testing.T) {
	p := worldOf(t, "iwarp").pair(t, Config{}, ListenConfig{})
	a, b := p.connect(t, "iwarp")
	_, token := exposeTo(t, b, 1<<16, MayWrite)
	buffer := newBuffer(t, p.ctx, a, 8<<10, 1)
	defer buffer.Release()
	worker := a.carrier.(*shell).w
	for _, kind := range []struct {
		name string
		put  func() error
	}{
		{"from a buffer", func() error { return a.PutBuffer(p.ctx, token, 0, buffer, 0, 8<<10) }},
		{"copied", func() error { return a.Put(p.ctx, token, 0, buffer.Bytes()) }},
	} {
		// It takes the worker a while to fall asleep after what came before.
		const puts, tries = 100, 20
		for try := 1; ; try++ {
			time.Sleep(5 * time.Millisecond)
			counter := &holdCounter{EventQueue: worker.events}
			worker.events = counter
			for range puts {
				if err := kind.put(); err != nil {
					t.Fatal(err)
				}
			}
			worker.events = counter.EventQueue
			if counter.releases != counter.holds || counter.holds < puts {
				t.Fatalf("%s: the queue was held %d times, and let go %d times", kind.name, counter.holds, counter.releases)
			}
			if counter.held > puts/2 {
				break // it would not stay asleep otherwise
			}
			if try == tries {
				t.Fatalf("%s: %d of %d completions found a worker that sleeps", kind.name, counter.held, puts)
			}
		}
	}
}
