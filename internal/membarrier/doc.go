// Package membarrier lets one side of a handshake pay for both, by membarrier(2).
//
// In many handshakes each side stores a word and then loads that of the other: a
// lock's user says that he is inside and looks whether somebody wants the lock;
// whoever wants it says so and looks whether a user is inside. A processor may delay
// a store beyond a later load, so each side needs a fence in between. If one of them
// comes often and the other seldom, the seldom one has the kernel run a fence on all
// processors that run a process which takes part. The often one then needs its
// loads and stores in this order in the program, and nothing else.
package membarrier
