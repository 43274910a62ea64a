package verbena

import (
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// AddWorld has the tests of endpoints run over another provider, too.
func AddWorld(name string, provider func() rdma.Provider) {
	AddHosts(name, "127.0.0.1", false, provider, provider)
}

// AddHosts is AddWorld for a server that listens at an address of its own. Taciturn
// devices do not say that the peer has refused an access.
func AddHosts(name, address string, taciturn bool, client, server func() rdma.Provider) {
	worlds = append(worlds, world{name: name, transport: name, address: address, taciturn: taciturn, providers: func(testing.TB) (_, _ []rdma.Provider) {
		return []rdma.Provider{client()}, []rdma.Provider{server()}
	}})
}
