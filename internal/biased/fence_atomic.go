//go:build !amd64 || race

package biased

// Pays tells whether anybody is ever favoured here. Package release stores by atomic operations here, which are in one order with the loads.
func Pays() bool { return true }

func fence() {}
