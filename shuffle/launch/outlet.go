package launch

import (
	"errors"
	"io"
	"os"
	"time"
)

const (
	// silence is how long nothing comes from a process that has ended until all that it wrote has been read.
	silence = time.Second
	// pipeLimit is more than a pipe holds: 64 KiB, and 1 MiB if somebody has made it larger.
	pipeLimit = 2 << 20
)

// An outlet is a pipe that a process writes to. It is read to its end; or, when the process has ended, until what that wrote
// has been read: programs that it has started may have the pipe open for longer, and write on.
type outlet struct {
	pipe, theirs *os.File // theirs is the end for the process, until that has started
	read         func(io.Reader) error
	done         chan struct{} // closed when all has been read
	err          error         // why not all; set before done is closed

	// Of the goroutine that reads: how much may still come when the process has ended.
	ended bool
	left  int
}

func newOutlet(read func(io.Reader) error) (o *outlet, err error) {
	o = &outlet{read: read, done: make(chan struct{})}
	o.pipe, o.theirs, err = os.Pipe()
	return o, err
}

// start begins to read what the process writes, which has started.
func (o *outlet) start() {
	_ = o.theirs.Close()
	go func() {
		defer close(o.done)
		defer o.pipe.Close() // who writes on fails
		o.err = o.read(o)
	}()
}

// close is for a process that has not started.
func (o *outlet) close() {
	_ = o.theirs.Close()
	_ = o.pipe.Close()
}

// Read reads what comes.
func (o *outlet) Read(b []byte) (int, error) {
	for {
		if o.ended {
			if o.left <= 0 {
				return 0, io.EOF
			}
			_ = o.pipe.SetReadDeadline(time.Now().Add(silence))
		}
		n, err := o.pipe.Read(b)
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			o.left -= n
			return n, err
		case o.ended:
			return 0, io.EOF
		}
		o.ended, o.left = true, pipeLimit
	}
}

// end says that the process has ended.
func (o *outlet) end() { _ = o.pipe.SetReadDeadline(time.Unix(1, 0)) } // an error if all has been read
