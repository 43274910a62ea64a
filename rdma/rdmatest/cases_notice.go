package rdmatest

import (
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// noticeCases are about queue pairs that know whether the peer sleeps.
var noticeCases = []testCase{
	{"PeerSleeps", nil, testPeerSleeps},
}

// testPeerSleeps asks while the peer's queue is armed, and while it is not.
func testPeerSleeps(e *env) {
	a, b := e.connect(nil)
	n, ok := a.QueuePair.(rdma.NoticingQueuePair)
	if !ok {
		e.logf("%s: the device does not know whether the peer sleeps", a.s.name)
		return
	}
	becomes := func(want bool, what string) {
		for deadline := time.Now().Add(e.suite.Bound); n.PeerSleeps() != want; {
			if time.Now().After(deadline) {
				e.fatalf("PeerSleeps is %t %s", !want, what)
			}
			time.Sleep(time.Millisecond)
		}
	}
	becomes(false, "of a queue that nobody has armed")
	e.check(b.recvs.Arm(false), "Arm")
	becomes(true, "of an armed queue")
	a.signal(b)
	becomes(false, "of a queue that a message has come to")
	e.check(a.Close(), "Close")
	if n.PeerSleeps() {
		e.errorf("PeerSleeps is true after Close")
	}
}
