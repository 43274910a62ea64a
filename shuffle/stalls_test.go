package shuffle_test

import (
	"encoding/binary"
	"io"
	"testing"

	"github.com/verbena-data/verbena/shuffle"
)

// Senders and receivers wait for each other tens of thousands of times, with as little memory as there can be, and each wait
// ends: one wake-up that is lost is enough for a hang.
func TestManyWaits(t *testing.T) {
	for _, c := range []struct {
		name    string
		world   world
		size    int
		memory  int64
		records int
	}{
		{"within a process", worlds[0], 1, 2 << 10, 400_000},
		{"shm", worlds[1], 2, 8 << 10, 30_000},
		{"tcp", worlds[0], 2, 8 << 10, 20_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			exchanges := c.world.join(t, c.size, shuffle.Config{Memory: c.memory})
			x := exchanges[0]
			to := c.size - 1
			for _, other := range exchanges[1:] {
				if err := other.Sender(0).Close(); err != nil {
					t.Fatal(err)
				}
			}
			ctx := testContext(t)
			go func() {
				s := x.Sender(0)
				record := make([]byte, 100)
				for n := range c.records {
					binary.NativeEndian.PutUint64(record, uint64(n))
					if err := s.Send(to, record); err != nil {
						t.Errorf("send: %v", err)
						return
					}
				}
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			}()
			n := 0
			for ; ; n++ {
				b, err := exchanges[to].Receiver(0).Next(ctx)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if got := int(binary.NativeEndian.Uint64(b)); got != n {
					t.Fatalf("record %d, %d was due", got, n)
				}
			}
			if n != c.records {
				t.Errorf("%d records, %d were sent", n, c.records)
			}
			stalls, waits := x.Stats().Stalls, exchanges[to].Stats().Waits
			t.Logf("%d stalls of the sender, %d waits of the receiver", stalls, waits)
			if stalls+waits < 1000 {
				t.Errorf("they have hardly waited for each other: %d stalls, %d waits", stalls, waits)
			}
		})
	}
}
