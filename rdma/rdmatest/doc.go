// Package rdmatest is the conformance suite of the verbs model.
//
// One call of [Run] in a provider's tests runs all cases that the class and the
// capabilities of its devices ask for. Each case is a script for two sides, the
// initiator and the target. A side may be in another process, driven over a
// control connection ([RemoteDevice], [ServeDevice]); so the two halves of a
// case can run on two hosts, or over two providers that speak the same wire
// protocol.
//
// Every failure must end in the way that package rdma documents for the class,
// never in a hang or a panic: each case runs under a watchdog. What a device may
// lack stands in a table; a case skipped for anything else fails.
//
// A provider's test has this, and TestMain for the peers that are killed:
//
//	func TestMain(m *testing.M) {
//		rdmatest.RunChild(map[string]rdmatest.Opener{"shm": open})
//		goleak.VerifyTestMain(m)
//	}
//
//	func TestConformance(t *testing.T) {
//		rdmatest.Run(t, rdmatest.Suite{
//			Open: func(t *testing.T) (initiator, target rdma.Device) { ... },
//			Peer: rdmatest.Process("shm"),
//		})
//	}
//
// To run the target on another host or with another provider, a program there
// opens the device and calls ServeDevice on a connection, and Open returns the
// RemoteDevice of the connection's other end. The control connection is trusted:
// who reaches it can do with the device what the device can do.
//
// Beside the scripts, which each look at one thing, the case History runs random
// operations of all kinds on many connections and compares them with a sequential
// model (package history). Its seeds are the same in each run. A failure prints its
// seed, and
//
//	go test -run '.../History$' -rdmatest.seed=SEED -rdmatest.links=1
//
// repeats the plan, though not the timing. Other seeds and more links search further.
//
// The folder fake has a model of a network within one process, which passes the
// suite, and can be given the bugs that the suite must find.
package rdmatest
