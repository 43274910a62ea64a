//go:build unix

package stream

import (
	"bytes"
	"errors"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/carrier"
)

// collect returns a reader that keeps what it takes, and a function that tells how many
// frames these are.
func collect(r io.Reader) (s *SharedReader, frames *[][]byte, taken func() int) {
	frames = new([][]byte)
	var n atomic.Int64
	s = Share(NewReader(r, 1<<20), func() {}, func(m carrier.Message) error {
		*frames = append(*frames, bytes.Clone(m.Bytes))
		m.Release()
		n.Add(1)
		return nil
	})
	return s, frames, func() int { return int(n.Load()) }
}

// Who looks while another one sleeps gets what comes, and nothing is lost or taken twice.
func TestLookBesideRun(t *testing.T) {
	here, there := pair(t)
	s, frames, taken := collect(there)
	ended := make(chan error, 1)
	go func() { ended <- s.Run() }()
	const n = 600
	var sent [][]byte
	looked, deadline := 0, time.Now().Add(time.Minute)
	for i := range n {
		b := text(i, []int{0, 1, 100, 3000, 20_000, 100_000}[i%6])
		sent = append(sent, b)
		rest := framed(b)
		if i%5 == 0 { // its first bytes apart
			if _, err := here.Write(rest[:2]); err != nil {
				t.Fatal(err)
			}
			rest = rest[2:]
			if _, err := s.Look(); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := here.Write(rest); err != nil {
			t.Fatal(err)
		}
		for taken() <= i {
			came, err := s.Look()
			if err != nil {
				t.Fatal(err)
			}
			if came {
				looked++
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d frames have come", taken(), i+1)
			}
			runtime.Gosched()
		}
	}
	here.Close()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("%v at the end, want EOF", err)
	}
	for i, b := range *frames {
		if !bytes.Equal(b, sent[i]) {
			t.Fatalf("frame %d has %d bytes, and is not the one of %d", i, len(b), len(sent[i]))
		}
	}
	if len(*frames) != n || looked == 0 {
		t.Errorf("%d frames, %d by who looked", len(*frames), looked)
	}
}

// A look takes whole frames, leaves the beginning of one, and does not wait.
func TestLook(t *testing.T) {
	here, there := pair(t)
	s, frames, taken := collect(there)
	look := func(want bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); ; {
			came, err := s.Look()
			if err != nil {
				t.Fatal(err)
			}
			if came == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("a look finds something: %t", came)
			}
		}
	}
	look(false)
	one, two := framed([]byte("one")), framed([]byte("two"))
	if _, err := here.Write(append(one, two[:5]...)); err != nil {
		t.Fatal(err)
	}
	look(true)
	if taken() != 1 {
		t.Fatalf("%d frames", taken())
	}
	if _, err := here.Write(two[5:]); err != nil {
		t.Fatal(err)
	}
	look(false) // Run sees to the rest of a frame
	here.Close()
	if err := s.Run(); !errors.Is(err, io.EOF) {
		t.Fatalf("%v, want EOF", err)
	}
	if got := string(bytes.Join(*frames, []byte(" "))); got != "one two" {
		t.Errorf("%q came", got)
	}
}

// The end of the stream, an error of who takes frames, and a frame that is too long end
// the reading for who looks and for who runs.
func TestLookFails(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		name string
		send []byte
		want error
	}{
		{"the end", nil, io.EOF},
		{"refused", framed([]byte("no")), refused},
		{"too long", []byte{0x7f, 0xff, 0xff, 0xff}, ErrFrameLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			here, there := pair(t)
			s := Share(NewReader(there, 1<<20), func() {}, func(m carrier.Message) error { m.Release(); return refused })
			if _, err := here.Write(c.send); err != nil {
				t.Fatal(err)
			}
			if c.send == nil {
				here.Close()
			}
			var err error
			for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); {
				_, err = s.Look()
			}
			if !errors.Is(err, c.want) {
				t.Fatalf("a look says %v, want %v", err, c.want)
			}
			if came, err := s.Look(); came || !errors.Is(err, c.want) {
				t.Errorf("the next look: %t, %v", came, err)
			}
			there.Close()
			if err := s.Run(); err == nil {
				t.Error("the reading goes on")
			}
		})
	}
}

// What is no socket is read by who runs, and nobody looks.
func TestNobodyLooksAtAPipe(t *testing.T) {
	here, there := net.Pipe()
	s, frames, _ := collect(there)
	ended := make(chan error, 1)
	go func() { ended <- s.Run() }()
	if _, err := here.Write(framed([]byte("piped"))); err != nil {
		t.Fatal(err)
	}
	if came, err := s.Look(); came || err != nil || s.Looks() {
		t.Errorf("a look: %t, %v", came, err)
	}
	here.Close()
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("%v at the end, want EOF", err)
	}
	if len(*frames) != 1 || string((*frames)[0]) != "piped" {
		t.Errorf("%q came", *frames)
	}
}
