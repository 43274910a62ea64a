//go:build !amd64 || race

package biased

import "github.com/verbena-data/verbena/internal/membarrier"

// Pays tells whether anybody is ever favoured here. Package release stores by atomic operations here, which are in one order with the loads.
func Pays() bool { return true }

// fence is not needed by processors. An emulator may let a load go before a store all the same: qemu's of arm64 does.
func fence() { membarrier.Private.Fence() }
