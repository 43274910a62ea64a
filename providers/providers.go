// Package providers is the default set of providers, each in a file of its own
// that a build tag leaves out: noshm, noiwarp. Programs that want another set
// import the providers themselves; nothing else lives here.
package providers

import (
	"slices"

	"github.com/verbena-data/verbena/rdma"
)

// made is filled by the files of the package. The rank orders it: the runtime
// prefers what comes first.
var made []ranked

type ranked struct {
	rank int
	make func() rdma.Provider
}

// Default returns a new set of providers, the preferred ones first. It is empty
// on systems that none of them supports; the runtime then has TCP alone.
func Default() []rdma.Provider {
	sorted := slices.SortedFunc(slices.Values(made), func(a, b ranked) int { return a.rank - b.rank })
	var list []rdma.Provider
	for _, m := range sorted {
		list = append(list, m.make())
	}
	return list
}
