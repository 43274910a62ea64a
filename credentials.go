package verbena

import (
	"fmt"
	"net"

	"github.com/verbena-data/verbena/rdma"
)

// Peer tells whose process is at the other end, where the kernel of this host
// vouches for it: over shared memory, and whenever the dial went to a Unix
// socket. Over a network nobody does, and it reports false.
func (e *Endpoint) Peer() (rdma.Credentials, bool) {
	if e.peer == nil {
		return rdma.Credentials{}, false
	}
	return *e.peer, true
}

// identify notes whose process e leads to. The endpoint is connected, and conn is
// what its hello came over.
func (e *Endpoint) identify(conn net.Conn) {
	who, ok := socketCredentials(conn)
	if q, queued := e.carrier.(*shell); queued && !ok {
		if c, vouched := q.qp.(rdma.CredentialedQueuePair); vouched {
			who, ok = c.PeerCredentials()
		}
	}
	if ok {
		e.peer = &who
	}
}

// processOf names a process as the one whose memory an endpoint's is.
func processOf(who rdma.Credentials) string {
	return fmt.Sprintf("process %d of user %d", who.PID, who.UID)
}
