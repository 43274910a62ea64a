package shuffle_test

import (
	"context"
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
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			members := worlds[0].members(t, 2, shuffle.Config{})
			joined := make(chan *shuffle.Exchange, 1)
			go func() {
				x, err := shuffle.Join(ctx, members[0])
				if err != nil {
					t.Error(err)
				}
				joined <- x
			}()
			e := dialUntilServed(ctx, t, members[1], 0)
			defer e.Close()
			h := shuffle.HelloOf(members[1])
			if err := e.Send(ctx, wire.TagHello, h.Append(nil)); err != nil {
				t.Fatal(err)
			}
			x := <-joined
			if x == nil {
				return
			}
			defer x.Close()
			if err := x.Sender(0).Close(); err != nil {
				t.Fatal(err)
			}
			send(t, e, c.blocks(h.Page))
			var err error
			for err == nil {
				_, err = x.Receiver(0).Next(ctx)
			}
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

// send sends blocks as messages.
func send(t *testing.T, e *verbena.Endpoint, blocks [][]byte) {
	t.Helper()
	for _, b := range blocks {
		if err := e.Send(t.Context(), wire.TagBlock, b); err != nil {
			t.Fatal(err)
		}
	}
}
