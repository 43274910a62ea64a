package shuffle_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/crc32c"
	"github.com/verbena-data/verbena/shuffle"
	"github.com/verbena-data/verbena/shuffle/internal/wire"
)

// blockOf is a block for thread 0, with a checksum, that lies in a page of the slab.
func blockOf(sequence uint32, offset int, flags uint8, records uint32, contents []byte) []byte {
	b := make([]byte, wire.HeaderSize+wire.PartSize, wire.HeaderSize+wire.PartSize+len(contents))
	part := wire.Part{Flags: flags, Length: uint32(len(contents)), Records: records}
	part.Put(b[wire.HeaderSize:])
	b = append(b, contents...)
	h := wire.Header{Length: uint32(len(b) - wire.HeaderSize), Sequence: sequence, Offset: uint32(offset), Summed: true, Parts: 1}
	h.Put(b)
	wire.SetSum(b, crc32c.Update(0, b[4:]))
	return b
}

// What a peer has not sent, or has sent twice, fails the exchange with the reason; and the same without the defect does not.
func TestLostAndDamagedBlocks(t *testing.T) {
	record := []byte("\x01a")
	end := func(records, bytes uint64, parts uint32) []byte {
		totals := wire.Totals{Records: records, Bytes: bytes, Parts: parts}
		return totals.Append(nil)
	}
	fragment := func(length uint64, piece string) []byte {
		return append(binary.BigEndian.AppendUint64(nil, length), piece...)
	}
	// 16 records, which end where what a receiver shows at first does.
	shown := bytes.Repeat(append([]byte{127}, make([]byte, 127)...), shuffle.ShownAtFirst/128)
	damaged := func(page int) [][]byte {
		b := blockOf(0, 0, 0, 1, record)
		b[len(b)-1] ^= 1
		return [][]byte{b, blockOf(1, page, wire.End, 0, end(1, 2, 1))}
	}
	for _, c := range []struct {
		name, want string // "" for the end
		blocks     func(page int) [][]byte
	}{
		{"all", "", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, record), blockOf(1, page, wire.End, 0, end(1, 2, 1))}
		}},
		{"the first block is lost", "was due", func(page int) [][]byte {
			return [][]byte{blockOf(1, page, wire.End, 0, end(0, 0, 0))}
		}},
		{"a block comes twice", "was due", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, record), blockOf(0, page, 0, 1, record)}
		}},
		{"a block in the middle is lost", "was due", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, record), blockOf(2, page, wire.End, 0, end(1, 2, 1))}
		}},
		{"records are lost", "were sent, and", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, record), blockOf(1, page, wire.End, 0, end(2, 2, 1))}
		}},
		{"bytes are lost", "were sent, and", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, record), blockOf(1, page, wire.End, 0, end(1, 3, 1))}
		}},
		{"parts are lost", "were sent, and", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, record), blockOf(1, page, wire.End, 0, end(1, 2, 2))}
		}},
		{"a byte is damaged", "the checksum", damaged},
		{"a record in fragments", "", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, wire.Fragment|wire.First, 0, fragment(3, "ab")), blockOf(1, page, wire.Fragment, 1, []byte("c")), blockOf(2, 2*page, wire.End, 0, end(1, 11, 2))}
		}},
		{"a record in fragments is longer than all", "MaxRecord is", func(int) [][]byte {
			return [][]byte{blockOf(0, 0, wire.Fragment|wire.First, 0, fragment(1<<40, "ab"))}
		}},
		{"a record in fragments is longer than it says", "fragments of more than", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, wire.Fragment|wire.First, 0, fragment(3, "ab")), blockOf(1, page, wire.Fragment, 1, []byte("cd"))}
		}},
		{"a record in fragments ends too early", "in which 1 records end", func(int) [][]byte {
			return [][]byte{blockOf(0, 0, wire.Fragment|wire.First, 1, fragment(3, "ab"))}
		}},
		{"a record in fragments is broken off", "broken off", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, wire.Fragment|wire.First, 0, fragment(3, "ab")), blockOf(1, page, 0, 1, record)}
		}},
		{"a record in fragments begins in its middle", "begins in its middle", func(int) [][]byte {
			return [][]byte{blockOf(0, 0, wire.Fragment, 1, []byte("c"))}
		}},
		{"a part behind the end", "behind the end", func(int) [][]byte {
			last, behind := blockOf(0, 0, wire.End, 0, end(0, 0, 0)), blockOf(0, 0, 0, 1, record)
			b := append(last, behind[wire.HeaderSize:]...)
			h := wire.Header{Length: uint32(len(b) - wire.HeaderSize), Summed: true, Parts: 2}
			h.Put(b)
			wire.SetSum(b, crc32c.Update(0, b[4:]))
			return [][]byte{b}
		}},
		{"a part of a lane that is not there", "a part of lane 1", func(int) [][]byte {
			b := blockOf(0, 0, 0, 1, record)
			part := wire.Part{Sender: 1, Length: uint32(len(record)), Records: 1}
			part.Put(b[wire.HeaderSize:])
			wire.SetSum(b, crc32c.Update(0, b[4:]))
			return [][]byte{b}
		}},
		{"a record is longer than its part", "left of the part", func(int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, []byte("\x05a"))}
		}},
		{"a part has more than its records", "behind the last record", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 1, []byte("\x01a\x01b")), blockOf(1, page, wire.End, 0, end(1, 4, 1))}
		}},
		{"a part has more than its records, behind what is shown at first", "2 bytes behind the last record", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 16, append(shown[:len(shown):len(shown)], "\x01b"...)), blockOf(1, page, wire.End, 0, end(16, 2050, 1))}
		}},
		{"a part whose records end where what is shown at first does", "", func(page int) [][]byte {
			return [][]byte{blockOf(0, 0, 0, 16, shown), blockOf(1, page, wire.End, 0, end(16, 2048, 1))}
		}},
		{"a block without parts", "an empty block", func(int) [][]byte {
			b := make([]byte, wire.HeaderSize)
			h := wire.Header{Summed: true}
			h.Put(b)
			wire.SetSum(b, crc32c.Update(0, b[4:]))
			return [][]byte{b}
		}},
	} {
		for way, until := range map[string]func(context.Context, *shuffle.Receiver) error{"by Next": untilError, "by batches": untilErrorOfBatches} {
			t.Run(c.name+", "+way, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				x, e, h := joinedByHand(ctx, t, worlds[0])
				if err := x.Sender(0).Close(); err != nil {
					t.Fatal(err)
				}
				send(t, e, c.blocks(h.Page))
				err := until(ctx, x.Receiver(0))
				var process *shuffle.ProcessError
				switch {
				case c.want == "":
					if err != io.EOF {
						t.Error(err)
					}
				case !errors.Is(err, shuffle.ErrCorrupt) || !errors.As(err, &process) || process.Rank != 1 || !strings.Contains(err.Error(), c.want):
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		}
	}
}

// untilError takes records until there is none, and returns why.
func untilError(ctx context.Context, r *shuffle.Receiver) (err error) {
	for err == nil {
		_, err = r.Next(ctx)
	}
	return err
}

// untilErrorOfBatches is untilError by batches.
func untilErrorOfBatches(ctx context.Context, r *shuffle.Receiver) error {
	for {
		b, err := r.NextBatch(ctx)
		if err != nil {
			return err
		}
		for ok := true; ok; {
			_, ok = b.Next()
		}
		b.Release()
	}
}

// joinedByHand is process 0 of two, and the endpoint of process 1, which has said its hello and is the test's.
func joinedByHand(ctx context.Context, t *testing.T, w world) (*shuffle.Exchange, *verbena.Endpoint, *wire.Hello) {
	t.Helper()
	members := w.members(t, 2, shuffle.Config{})
	joined := make(chan *shuffle.Exchange, 1)
	go func() {
		x, err := shuffle.Join(ctx, members[0])
		if err != nil {
			t.Error(err)
		}
		joined <- x
	}()
	e := dialUntilServed(ctx, t, members[1], 0)
	t.Cleanup(func() { _ = e.Close() }) // the other side may have closed it
	h := shuffle.HelloOf(members[1])
	if err := e.Send(ctx, wire.TagHello, h.Append(nil)); err != nil {
		t.Fatal(err)
	}
	x := <-joined
	if x == nil {
		t.FailNow()
	}
	t.Cleanup(func() { _ = x.Close() })
	return x, e, h
}

// send sends blocks as messages.
func send(t *testing.T, e *verbena.Endpoint, blocks [][]byte) {
	t.Helper()
	for _, b := range blocks {
		if err := e.Send(t.Context(), wire.TagBlock, b); err != nil {
			t.Fatal(err)
		}
	}
}

// A block has a checksum of all that it contains where no device compares any, and otherwise of its header: what the
// receiving side compares is there.
func TestWhatIsSummed(t *testing.T) {
	for _, w := range worlds {
		if w.mode == shuffle.OneSided {
			continue // the message has no block
		}
		w.mode = shuffle.TwoSided
		t.Run(w.transport, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			x, e, _ := joinedByHand(ctx, t, w)
			if err := errors.Join(x.Sender(0).Send(1, []byte("record")), x.Sender(0).Flush()); err != nil {
				t.Fatal(err)
			}
			m, err := e.Receive(ctx)
			for err == nil && m.Tag != wire.TagBlock {
				m.Release()
				m, err = e.Receive(ctx)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer m.Release()
			header, summed, contents, err := wire.ParseHeader(m.Bytes())
			if err != nil || !strings.Contains(string(contents), "record") {
				t.Errorf("%q, %v", contents, err)
			}
			want := len(m.Bytes()) - 4
			if w.transport == "iwarp" {
				want = wire.HeaderSize - 4
			}
			if len(summed) != want || header.Sum != crc32c.Update(0, summed) {
				t.Errorf("%+v: %d of %d bytes have the sum %08x, want %d", header, len(summed), len(m.Bytes()), crc32c.Update(0, summed), want)
			}
		})
	}
}

// What a peer must not say at all, or not twice, fails the exchange with the reason.
func TestMessagesThatMustNotCome(t *testing.T) {
	type message struct {
		tag  uint32
		data []byte
	}
	entry := func(kind uint8, receiver, offset, length int) []byte {
		return wire.Entry{Kind: kind, Receiver: uint16(receiver), Offset: uint32(offset), Length: uint32(length)}.Append(nil)
	}
	for name, c := range map[string]struct {
		messages []message
		want     string
	}{
		"a tag that is none":                 {[]message{{99, nil}}, "tag 99"},
		"a second hello":                     {[]message{{wire.TagHello, nil}}, "tag 1"},
		"a second goodbye":                   {[]message{{wire.TagBye, nil}, {wire.TagBye, nil}}, "goodbye"},
		"a contribution twice":               {[]message{{wire.TagGather, wire.AppendGather(nil, 0, nil)}, {wire.TagGather, wire.AppendGather(nil, 0, nil)}}, "a second contribution"},
		"a contribution ahead of all":        {[]message{{wire.TagGather, wire.AppendGather(nil, 2, nil)}}, "to collective 2"},
		"a block that nobody sent is free":   {[]message{{wire.TagControl, entry(wire.Free, 0, 0, 100)}}, "no block was there"},
		"a block of a thread that is none":   {[]message{{wire.TagControl, entry(wire.Free, 7, 0, 100)}}, "about thread 7"},
		"a block is put where all are sent":  {[]message{{wire.TagControl, entry(wire.Filled, 0, 0, 100)}}, "an entry of kind 1"},
		"a block where another one still is": {[]message{{wire.TagBlock, blockOf(0, 0, 0, 1, []byte("\x01a"))}, {wire.TagBlock, blockOf(1, 0, 0, 1, []byte("\x01a"))}}, "where is no room"},
		"half an entry":                      {[]message{{wire.TagControl, entry(wire.Free, 0, 0, 100)[:5]}}, "behind the last entry"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			x, e, _ := joinedByHand(ctx, t, worlds[0])
			for _, m := range c.messages {
				if err := e.Send(ctx, m.tag, m.data); err != nil {
					t.Fatal(err)
				}
			}
			err := x.Wait(ctx)
			var process *shuffle.ProcessError
			if !errors.Is(err, shuffle.ErrCorrupt) || !errors.As(err, &process) || process.Rank != 1 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
