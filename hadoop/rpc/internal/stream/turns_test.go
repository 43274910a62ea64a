package stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// turns has a reader take frames until reading ends, and returns them.
func turns(r *Reader, each func(frame []byte)) error {
	for {
		var failed error
		err := r.Turns(func() bool {
			for r.Ready() {
				m, err := r.Next()
				if err != nil {
					failed = err
					return false
				}
				each(m.Bytes)
				m.Release()
			}
			return !r.Pending()
		})
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		if m, err := r.Next(); err != nil { // of what has not come whole
			return err
		} else {
			each(m.Bytes)
			m.Release()
		}
	}
}

func framed(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// Whoever asks and waits gets an answer each time, from a socket and from what is none.
func TestTurnsAnswerAll(t *testing.T) {
	here, there := pair(t)
	done := make(chan error, 1)
	go func() {
		r := NewReader(there, 1<<20)
		w := NewWriter(there, time.Minute, time.Minute, nil)
		defer w.Stop()
		done <- turns(r, func(frame []byte) {
			m := w.Alloc(len(frame))
			m.Bytes = append(m.Bytes, frame...)
			if err := w.Send(m, carrier.Now); err != nil {
				t.Error(err)
			}
		})
	}()
	answers := NewReader(here, 1<<20)
	for i := range 500 {
		b := text(i, []int{0, 1, 100, 3000, 20_000, 100_000}[i%6])
		sent := framed(b)
		if i%5 == 0 { // in pieces, of the length too
			for len(sent) > 0 {
				n := min(len(sent), 1+len(sent)/3)
				if _, err := here.Write(sent[:n]); err != nil {
					t.Fatal(err)
				}
				sent = sent[n:]
			}
		} else if _, err := here.Write(sent); err != nil {
			t.Fatal(err)
		}
		m, err := answers.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.Bytes, b) {
			t.Fatalf("answer %d of %d bytes is not the request of %d", i, len(m.Bytes), len(b))
		}
		m.Release()
	}
	here.Close()
	if err := <-done; !errors.Is(err, io.EOF) {
		t.Errorf("%v at the end, want EOF", err)
	}
}

// The end of the stream that comes together with the last frame is not missed.
func TestTurnsSeeAnEndThatCameWithAFrame(t *testing.T) {
	here, there := pair(t)
	r := NewReader(there, 1<<20)
	if _, err := here.Write(framed([]byte("the last"))); err != nil {
		t.Fatal(err)
	}
	if err := here.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := there.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	var got []byte
	if err := turns(r, func(frame []byte) { got = append(got, frame...) }); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want EOF", err)
	}
	if string(got) != "the last" {
		t.Errorf("%q came before the end", got)
	}
}

// A turn may end its own connection, and a deadline ends the wait between turns.
func TestTurnsEnd(t *testing.T) {
	here, there := pair(t)
	r := NewReader(there, 1<<20)
	w := NewWriter(there, time.Minute, time.Minute, nil)
	if err := there.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := turns(r, func([]byte) {}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want a deadline's error", err)
	}
	if err := there.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Write(framed([]byte("end"))); err != nil {
		t.Fatal(err)
	}
	err := turns(r, func([]byte) { w.Abort(io.ErrClosedPipe) })
	if err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%v, want that the connection is closed", err)
	}
	w.Stop()
}
