// Package release stores words that publish what was stored before them.
//
// Go's atomic stores are sequentially consistent, which on amd64 costs a locked
// instruction. Where nothing that is loaded afterwards must be ordered after the
// store, a plain one does there: the processor never reorders stores, and the
// compiler keeps their order. On other architectures, and for the race
// detector, these are the atomic stores.
//
// Readers use atomic loads. A store that is followed by a load of what the other
// side stores (a flag that says whether it sleeps, say) needs the atomic store, unless that
// side makes up for it (package membarrier).
package release
