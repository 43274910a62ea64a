package iwarp

import (
	"net"
	"os"
	"sync"

	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
)

// stage takes what follows the payload that is read to its place.
type stage [128 << 10]byte

var stages = sync.Pool{New: func() any { return new(stage) }}

// plainStream works on any connection, with reads and writes of whole buffers.
// While a message waits for a receive it does not notice that the connection ends.
type plainStream struct {
	conn     net.Conn
	done     <-chan struct{} // the queue pair has failed
	received chan struct{}   // holds a token once a message has been given its receive
}

func newPlainStream(conn net.Conn, done <-chan struct{}) *plainStream {
	return &plainStream{conn, done, make(chan struct{}, 1)}
}

const (
	plainRead  = 32 << 10
	plainWrite = 64 << 10
)

func (s *plainStream) read(e *engine.Engine, after func()) error {
	buffer := make([]byte, plainRead)
	for {
		n, err := s.conn.Read(buffer)
		if n > 0 {
			if err := e.Feed(buffer[:n]); err != nil {
				return err
			}
			after()
		}
		for e.Waiting() {
			select {
			case <-s.received:
			case <-s.done:
				return os.ErrDeadlineExceeded
			}
			_, err := e.Resume()
			after()
			if err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

func (s *plainStream) resume() {
	select {
	case s.received <- struct{}{}:
	default:
	}
}

// write cannot tell whether Write would wait, so it does not try.
func (s *plainStream) write(o *outgoing, wait bool) (bool, error) {
	if !wait {
		return false, nil
	}
	stage := stages.Get().(*stage)
	defer stages.Put(stage)
	buffer := stage[:0]
	for _, v := range o.batch.Vectors {
		for len(v) > 0 {
			n := min(len(v), plainWrite-len(buffer))
			buffer = append(buffer, v[:n]...)
			v = v[n:]
			if len(buffer) == plainWrite {
				if _, err := s.conn.Write(buffer); err != nil {
					return false, err
				}
				buffer = buffer[:0]
			}
		}
	}
	if len(buffer) > 0 {
		if _, err := s.conn.Write(buffer); err != nil {
			return false, err
		}
	}
	return true, nil
}

const (
	// largeULPDU makes the payload of a tagged FPDU a multiple of 64 bytes just
	// under what the length field can tell.
	largeULPDU = 65472 + 14
	// leastULPDU is what a TCP segment of the smallest size that Linux lets a
	// path have leaves; smaller values would be nonsense.
	leastULPDU = 128
)
