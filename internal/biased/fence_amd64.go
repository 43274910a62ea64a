//go:build !race

package biased

import "github.com/verbena-data/verbena/internal/membarrier"

// Pays tells whether anybody is ever favoured here: whether there are fences for others.
func Pays() bool { return membarrier.Private.Registered() }

func fence() { membarrier.Private.Fence() }
