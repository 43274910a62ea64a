package verbena

import (
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// AddWorld has the tests of endpoints run over another provider, too.
func AddWorld(name string, provider func() rdma.Provider) {
	worlds = append(worlds, world{name: name, transport: name, providers: func(testing.TB) (client, server []rdma.Provider) {
		return []rdma.Provider{provider()}, []rdma.Provider{provider()}
	}})
}
