package shortcircuit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Values of the byte that comes with the descriptors of a block.
const (
	// NoReceipt asks for nothing.
	NoReceipt = 0
	// Receipt asks for a byte in answer, when the descriptors have arrived.
	Receipt = 1
)

// Send sends a response, and then descriptors with one byte. They stay the caller's.
func Send(c *net.UnixConn, response proto.Message, with byte, fds ...int) error {
	if err := transfer.WriteMessage(c, response); err != nil {
		return err
	}
	// A write of its own: clients read the response without room for descriptors, and
	// the kernel drops those that come with bytes of such a read.
	if _, _, err := c.WriteMsgUnix([]byte{with}, unix.UnixRights(fds...), nil); err != nil {
		return fmt.Errorf("hand over %d descriptors: %w", len(fds), err)
	}
	return nil
}

// Answer is what came: the byte and the descriptors, which are the caller's.
type Answer struct {
	With byte
	FDs  []int
}

// Close closes the descriptors.
func (a *Answer) Close() error {
	var err error
	for _, fd := range a.FDs {
		err = errors.Join(err, unix.Close(fd))
	}
	a.FDs = nil
	return err
}

// mostDescriptors is how many come with a response at most.
const mostDescriptors = 16

// Receive reads a response into response, and then, if ok says that it brings them, a
// byte with descriptors: want of them. It takes no byte beyond.
func Receive(c *net.UnixConn, response proto.Message, ok func() bool, want int) (a Answer, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	var head [binary.MaxVarintLen32]byte
	var size uint64
	for n := 0; ; {
		if n == len(head) {
			return a, fmt.Errorf("%w: a response's length of more than %d bytes", transfer.ErrMalformed, len(head))
		}
		if err := a.read(c, head[n:n+1]); err != nil {
			return a, err
		}
		n++
		var used int
		if size, used = binary.Uvarint(head[:n]); used > 0 {
			break
		}
	}
	if size > transfer.MaxMessage {
		return a, fmt.Errorf("%w: a response of %d bytes, at most %d are allowed", transfer.ErrMalformed, size, transfer.MaxMessage)
	}
	b := make([]byte, size)
	if err := a.read(c, b); err != nil {
		return a, err
	}
	if err := proto.Unmarshal(b, response); err != nil {
		return a, fmt.Errorf("%w: response: %w", transfer.ErrMalformed, err)
	}
	if !ok() {
		return a, nil
	}
	if err := a.read(c, head[:1]); err != nil {
		return a, err
	}
	a.With = head[0]
	if len(a.FDs) != want {
		return a, fmt.Errorf("%w: %d descriptors came, due are %d; the DataNode or this process may have as many files open as they are allowed", transfer.ErrMalformed, len(a.FDs), want)
	}
	return a, nil
}

// read fills b, and keeps the descriptors that come with it.
func (a *Answer) read(c *net.UnixConn, b []byte) error {
	rights := make([]byte, unix.CmsgSpace(4*mostDescriptors))
	for len(b) > 0 {
		n, oobn, flags, _, err := c.ReadMsgUnix(b, rights)
		b = b[max(n, 0):]
		kept := a.keep(rights[:oobn])
		switch {
		case err != nil:
			return err
		case kept != nil:
			return kept
		case flags&unix.MSG_CTRUNC != 0:
			return fmt.Errorf("%w: more descriptors came than fit, or than this process may open", transfer.ErrMalformed)
		case n == 0 && len(b) > 0:
			return io.ErrUnexpectedEOF
		}
	}
	return nil
}

func (a *Answer) keep(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: %w", transfer.ErrMalformed, err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return fmt.Errorf("%w: %w", transfer.ErrMalformed, err)
		}
		a.FDs = append(a.FDs, fds...)
	}
	return nil
}
