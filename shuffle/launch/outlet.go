package launch

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// pipeLimit is more than a pipe holds: 64 KiB, and 1 MiB if somebody has made it larger.
const pipeLimit = 2 << 20

// An outlet is a pipe that a process writes to. It is read to its end; or, when the process has ended, until the pipe is empty:
// then all that the process wrote has been read. Programs that it has started may have the pipe open for longer, and write on.
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
			return o.readNow(b)
		}
		n, err := o.pipe.Read(b)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		o.ended, o.left = true, pipeLimit
		if err := o.pipe.SetReadDeadline(time.Time{}); err != nil {
			return 0, err
		}
	}
}

// readNow reads what is in the pipe, and waits for nothing.
func (o *outlet) readNow(b []byte) (n int, err error) {
	if o.left <= 0 {
		return 0, io.EOF
	}
	raw, err := o.pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			if n, failed = syscall.Read(int(fd), b); !errors.Is(failed, syscall.EINTR) {
				return true
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case errors.Is(failed, syscall.EAGAIN), failed == nil && n == 0:
		return 0, io.EOF
	case failed != nil:
		return 0, failed
	}
	o.left -= n
	return n, nil
}

// end says that the process has ended.
func (o *outlet) end() { _ = o.pipe.SetReadDeadline(time.Unix(1, 0)) } // an error if all has been read
