package shuffle_test

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/verbena-data/verbena/shuffle"
)

// A process on the same host that rests is woken by what is left for it, whether the sender
// asks for that or not.
func TestRestingProcessIsWoken(t *testing.T) {
	exchanges := worlds[1].join(t, 2, shuffle.Config{})
	ctx := testContext(t)
	for i := range 20 {
		for _, x := range exchanges {
			for !x.Rests() {
				if ctx.Err() != nil {
					t.Fatal("it never rests")
				}
				time.Sleep(time.Millisecond)
			}
		}
		s, record := exchanges[0].Sender(0), fmt.Sprint("record ", i)
		if err := s.Send(1, []byte(record)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		} else if err := s.SendGather(1, make([]byte, 8<<10)); err != nil { // the part goes out
			t.Fatal(err)
		}
		if b, err := exchanges[1].Receiver(0).Next(ctx); err != nil || string(b) != record {
			t.Fatalf("%q, %v", b, err)
		}
		if i%2 == 1 {
			if b, err := exchanges[1].Receiver(0).Next(ctx); err != nil || len(b) != 8<<10 {
				t.Fatalf("%d bytes, %v", len(b), err)
			}
		}
	}
}

// More entries than a board holds wait for a process that does not look as fast as they come: they are left bit by bit.
func TestMoreEntriesThanABoardHolds(t *testing.T) {
	exchanges := worlds[1].join(t, 2, shuffle.Config{Memory: 16 << 20})
	ctx := testContext(t)
	const records = 20 * shuffle.BoardEntries
	go func() {
		s := exchanges[0].Sender(0)
		for n := range records {
			if err := errors.Join(s.Send(1, fmt.Append(nil, n)), s.Flush()); err != nil { // an entry for each record
				t.Error(err)
				return
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := exchanges[1].Sender(0).Close(); err != nil {
		t.Fatal(err)
	}
	for n := range records {
		if b, err := exchanges[1].Receiver(0).Next(ctx); err != nil || string(b) != fmt.Sprint(n) {
			t.Fatalf("record %d: %q, %v", n, b, err)
		}
	}
	if _, err := exchanges[1].Receiver(0).Next(ctx); err != io.EOF {
		t.Error(err)
	}
}

// What a peer cannot have left, or taken, ends the exchange.
func TestForgedBoard(t *testing.T) {
	for what, c := range map[string]struct {
		at   int
		word uint64
	}{
		"more than the board holds":  {shuffle.BoardTail, 257},
		"less than before":           {shuffle.BoardTail, ^uint64(0)},
		"entries that are malformed": {shuffle.BoardTail, 1},
		"taken before it was left":   {shuffle.BoardTaken, 100},
	} {
		t.Run(what, func(t *testing.T) {
			exchanges := worlds[1].join(t, 2, shuffle.Config{})
			victim := exchanges[1]
			exchanges[0].Forge(1, c.at, c.word)
			s := victim.Sender(0)
			for victim.Err() == nil { // the victim looks when it has something to do itself
				_ = errors.Join(s.Send(0, []byte("a")), s.Flush()) // fails at some time
			}
			if err := victim.Err(); !errors.Is(err, shuffle.ErrCorrupt) {
				t.Error(err)
			}
		})
	}
}

// To find entries on a board costs no memory.
func TestLooksAllocateNothing(t *testing.T) {
	exchanges := worlds[1].join(t, 2, shuffle.Config{})
	ctx, record := testContext(t), make([]byte, 100)
	s, r := exchanges[0].Sender(0), exchanges[1].Receiver(0)
	pass := func() {
		if err := errors.Join(s.Send(1, record), s.Flush()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Next(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 { // until what is kept for later has been made
		pass()
	}
	if n := testing.AllocsPerRun(2000, pass); n > 0 {
		t.Errorf("%v allocations for each block", n)
	}
}
