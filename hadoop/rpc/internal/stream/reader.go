package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

const (
	leastBuffer = 4 << 10  // of an idle connection
	mostBuffer  = 64 << 10 // of one with many messages in a read
	// inPlace is the longest frame that stays in the reader's buffer. Longer
	// ones get memory of their own, and the decoder may run elsewhere.
	inPlace = 16 << 10
	// claimed is how much memory a frame gets before its bytes have come: a
	// length is only a claim. Then it gets eightfold what has come.
	claimed = 64 << 10
)

// ErrFrameLength says that a frame would be longer than allowed.
var ErrFrameLength = errors.New("frame length out of bounds")

// A Reader reads frames. It is for one goroutine.
type Reader struct {
	r          io.Reader
	limit      int
	buf        []byte
	start, end int // of what is in buf and has not been returned
	full       bool
}

// NewReader returns a reader of frames of at most limit bytes.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{r: direct(r), limit: limit, buf: make([]byte, leastBuffer)}
}

// Unread has b read again, before anything else is read.
func (r *Reader) Unread(b []byte) {
	if len(b) == 0 {
		return
	}
	r.buf = append(append(make([]byte, 0, len(b)+len(r.buf)), b...), r.buf[r.start:]...)
	r.start, r.end = 0, len(b)+r.end-r.start
}

// Limit changes the limit, for the frames that Next has not begun to read.
func (r *Reader) Limit(limit int) { r.limit = limit }

// Take reads the next n bytes, at most 64, that are no frame. They are valid
// until the next call.
func (r *Reader) Take(n int) ([]byte, error) {
	if err := r.need(n); err != nil {
		return nil, err
	}
	r.start += n
	return r.buf[r.start-n : r.start], nil
}

// Wait waits until something is there to read.
func (r *Reader) Wait() error {
	if r.end > r.start {
		return nil
	}
	return r.need(1)
}

// Turns waits until something is there to read, and calls turn, which takes it; and again, until turn
// reports false, leaves something, or reading fails. turn must not read what has not come yet, and not close the
// connection itself, which waits for its end.
func (r *Reader) Turns(turn func() bool) error {
	d, direct := r.r.(*directReader)
	for r.end == r.start {
		if direct {
			return d.turns(r, turn)
		}
		if err := r.Wait(); err != nil {
			return err
		}
		if !turn() {
			return nil
		}
	}
	return nil
}

// Ready tells whether Next returns without reading: the next frame is in the
// buffer, or its length is out of bounds.
func (r *Reader) Ready() bool {
	have := r.end - r.start
	if have < lengthSize {
		return false
	}
	n := uint64(binary.BigEndian.Uint32(r.buf[r.start:]))
	return n > uint64(r.limit) || uint64(have) >= lengthSize+n
}

// Pending tells whether something has come that nobody has taken.
func (r *Reader) Pending() bool { return r.end > r.start }

// Next returns the next frame without its length. If it has no owner it is valid
// until the next call. At the end of the stream between two frames it returns
// io.EOF.
func (r *Reader) Next() (carrier.Message, error) {
	if err := r.need(lengthSize); err != nil {
		return carrier.Message{}, err
	}
	length := binary.BigEndian.Uint32(r.buf[r.start:])
	if uint64(length) > uint64(r.limit) {
		return carrier.Message{}, fmt.Errorf("%w: %d bytes, at most %d", ErrFrameLength, length, r.limit)
	}
	n := int(length)
	if n > inPlace {
		r.start += lengthSize
		return r.long(n)
	}
	if err := r.need(lengthSize + n); err != nil {
		return carrier.Message{}, unexpected(err)
	}
	m := carrier.Message{Bytes: r.buf[r.start+lengthSize : r.start+lengthSize+n]}
	r.start += lengthSize + n
	return m, nil
}

// Shrink gives the buffer back that a busy time needed, if it is empty.
func (r *Reader) Shrink() {
	if r.start == r.end && len(r.buf) > leastBuffer {
		r.buf, r.start, r.end, r.full = make([]byte, leastBuffer), 0, 0, false
	}
}

// need reads until n bytes are in the buffer.
func (r *Reader) need(n int) error {
	if r.end-r.start >= n {
		return nil
	}
	switch have := r.end - r.start; {
	case have == 0:
		r.room()
	case len(r.buf)-r.start < n:
		if len(r.buf) < n || r.crowded() {
			bigger := make([]byte, max(min(2*len(r.buf), mostBuffer), n))
			copy(bigger, r.buf[r.start:r.end])
			r.buf = bigger
		} else {
			copy(r.buf, r.buf[r.start:r.end])
		}
		r.start, r.end = 0, have
	}
	r.full = false
	for r.end-r.start < n {
		got, err := r.r.Read(r.buf[r.end:])
		r.end += got
		if r.end-r.start >= n {
			break // an error comes again
		}
		if err != nil {
			if errors.Is(err, io.EOF) && r.end > r.start {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	r.full = r.end == len(r.buf)
	return nil
}

// crowded tells whether more might come in a read if there was room.
func (r *Reader) crowded() bool { return r.full && len(r.buf) < mostBuffer }

// room makes all of an empty buffer room, and more of it if it was filled.
func (r *Reader) room() {
	r.start, r.end = 0, 0
	if r.crowded() {
		r.buf = make([]byte, min(2*len(r.buf), mostBuffer))
	}
}

// long reads a frame of n bytes into memory of its own.
func (r *Reader) long(n int) (carrier.Message, error) {
	b := newBuffer(min(n, max(claimed, r.end-r.start))) // all that has come fits
	size := min(n, len(b.b))
	got := copy(b.b[:size], r.buf[r.start:r.end])
	r.start += got
	for {
		more, err := io.ReadFull(r.r, b.b[got:size])
		got += more
		if err != nil {
			b.Release()
			return carrier.Message{}, unexpected(err)
		}
		if got == n {
			return carrier.Message{Bytes: b.b[:n], Owner: b}, nil
		}
		bigger := newBuffer(min(n, 8*got))
		copy(bigger.b, b.b[:got])
		b.Release()
		b, size = bigger, min(n, len(bigger.b))
	}
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
