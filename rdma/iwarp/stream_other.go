//go:build !linux

package iwarp

import (
	"errors"
	"net"
	"runtime"

	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
)

func available() error {
	return errors.New("the user-space iWARP provider runs on Linux, this is " + runtime.GOOS)
}

// outgoing is a batch on its way.
type outgoing struct{ batch *engine.Batch }

func newOutgoing() *outgoing { return &outgoing{engine.NewBatch()} }

func (o *outgoing) free()    { o.batch.Free() }
func (o *outgoing) prepare() {}

func newStream(conn net.Conn, q *queuePair) stream { return newPlainStream(conn, q.done) }

func (d *device) tune(_ net.Conn, params *engine.Params) { params.MaxULPDU = largeULPDU }

var errNoSocket = errors.New("the peer has no socket in this network namespace")

func peerUser(net.Conn) (uint32, error) { return 0, errNoSocket }
