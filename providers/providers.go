// Package providers is the default set of providers, each in a file of its own
// that a build tag leaves out: noshm, noibverbs (which static binaries need) and
// noiwarp. Programs that want another set import the providers themselves;
// nothing else lives here.
package providers

import (
	"log/slog"
	"slices"

	"github.com/verbena-data/verbena/rdma"
)

// made is filled by the files of the package. The rank orders it: the runtime
// prefers what comes first.
var made []ranked

type ranked struct {
	rank int
	make func(Config) rdma.Provider
}

// Config says what the set may use, and do beyond this host.
type Config struct {
	// RemoteIWARP lets iWARP connect this host with others. Nothing authenticates
	// the peers, so it is for trusted networks; a warning is logged.
	RemoteIWARP bool
	// HugePages takes large regions from the pages that the host has reserved
	// (vm.nr_hugepages), as long as there are any free.
	HugePages bool
	Logger    *slog.Logger // default: slog.Default()
}

// Default returns a new set of providers, the preferred ones first, with the
// zero [Config].
func Default() []rdma.Provider { return New(Config{}) }

// Names are those of the providers in the set, the preferred ones first.
func Names() []string {
	var names []string
	for _, p := range Default() {
		names = append(names, p.Name())
	}
	return names
}

// New returns a new set of providers, the preferred ones first.
func New(cfg Config) []rdma.Provider {
	sorted := slices.SortedFunc(slices.Values(made), func(a, b ranked) int { return a.rank - b.rank })
	var list []rdma.Provider
	for _, m := range sorted {
		list = append(list, m.make(cfg))
	}
	return list
}
