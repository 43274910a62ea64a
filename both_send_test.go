package verbena

import (
	"bytes"
	"context"
	"sync"
	"testing"
)

// Both ends call, notify and put at once, with more than either has room for, and neither
// receives anything but answers: nobody waits for ever. Beside them an endpoint whose
// application does not receive takes what it can, and holds up nobody on the same worker.
func TestBothOnlySend(t *testing.T) {
	eachWorld(t, func(t *testing.T, w world) {
		p := w.pair(t, Config{Workers: 1, ReceiveMemory: 64 << 20, SendMemory: 64 << 20}, ListenConfig{})
		deaf, silent := p.connect(t, w.transport) // silent does not receive
		stop, cancel := context.WithCancel(p.ctx)
		var sender sync.WaitGroup
		for i := range 4 {
			sender.Go(func() {
				message := pattern(10<<10, i)
				for deaf.Send(stop, uint32(i), message) == nil {
				}
			})
		}
		ends := [2][2]*Endpoint{}
		for i := range ends {
			ends[i][0], ends[i][1] = p.connect(t, w.transport)
		}
		c := callersOn(t, ends[0][0], ends[0][1], MuxConfig{Handlers: 2})
		var all sync.WaitGroup
		for i, from := range []*Caller{c.a, c.b} {
			for j := range 24 {
				all.Go(func() {
					payload := pattern(64<<10, i+j)
					for n := range 12 {
						method := uint32(methodEcho + (j+n)%2) // short and long
						if err := c.echo(p.ctx, from, method, payload[:len(payload)>>(n%3*4)]); err != nil {
							t.Error(err)
							return
						}
						if err := from.Notify(p.ctx, methodCount, payload[:1000*(n%9)]); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
		}
		for i, from := range ends[1] {
			to := ends[1][1-i]
			x, err := to.Expose(p.ctx, ExposeConfig{Size: 1 << 20, Rights: allRights})
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			for j := range 4 { // each on memory of its own
				all.Go(func() {
					const part = 256 << 10
					got := make([]byte, part)
					for n := range 12 {
						data := pattern(part, i+j+n)
						if err := from.Put(p.ctx, x.Token(), j*part, data); err != nil {
							t.Error(err)
							return
						}
						if err := from.Get(p.ctx, x.Token(), j*part, got); err != nil || !bytes.Equal(got, data) {
							t.Errorf("what was put is not there: %v", err)
							return
						}
					}
				})
			}
		}
		all.Wait()
		cancel()
		sender.Wait()
		if err := deaf.Err(); err != nil {
			t.Errorf("the endpoint whose peer does not receive: %v", err)
		}
		go func() { _ = deaf.Close() }() // waits for silent's
		_ = silent.Close()
		c.close(t)
		closeBoth(t, ends[1][0], ends[1][1])
	})
}
