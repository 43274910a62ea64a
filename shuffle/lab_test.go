package shuffle_test

import (
	"os"

	"github.com/verbena-data/verbena/shuffle"
)

// A host is where a process listens, and what its providers are told.
type host struct {
	address  string
	settings map[string]string
}

// hosts have the processes in turn.
var hosts = []host{{address: "127.0.0.1"}}

func hostOf(rank int) host { return hosts[rank%len(hosts)] }

// In the lab's machine there are two hosts, each with an adapter, and the tests run over those alone.
func init() {
	if os.Getenv("VERBENA_LAB_DEVICE") == "" {
		return
	}
	hosts = []host{
		{os.Getenv("VERBENA_LAB_ADDRESS"), map[string]string{"ibverbs.device": os.Getenv("VERBENA_LAB_DEVICE")}},
		{os.Getenv("VERBENA_LAB_LISTEN"), map[string]string{"ibverbs.device": os.Getenv("VERBENA_LAB_PEER_DEVICE")}},
	}
	worlds = []world{{"ibverbs", "ibverbs", shuffle.Auto}, {"ibverbs two-sided", "ibverbs", shuffle.TwoSided}}
}
