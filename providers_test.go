package verbena_test

import (
	"context"
	"os"
	"strings"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs"
)

// The tests run over the real providers of this system as well as over fakes. In the
// lab's machine they run between two hosts, each with a device.
func init() {
	if device := os.Getenv("VERBENA_LAB_DEVICE"); device != "" {
		on := func(device string) func() rdma.Provider {
			return func() rdma.Provider { return ibverbs.New(ibverbs.Config{Device: device}) }
		}
		verbena.AddHosts("ibverbs", os.Getenv("VERBENA_LAB_LISTEN"), strings.HasPrefix(device, "siw"), on(device), on(os.Getenv("VERBENA_LAB_PEER_DEVICE")))
		return
	}
	settings := map[string]string{}
	if silence := os.Getenv("VERBENA_TEST_SILENCE"); silence != "" { // hosts that lose each other
		settings["iwarp.remote"], settings["iwarp.peer-timeout"] = "true", silence
	}
	list := func() []rdma.Provider {
		list, err := providers.New(providers.Config{Settings: settings})
		if err != nil {
			panic(err)
		}
		return list
	}
	for i, p := range list() {
		if _, err := p.Devices(context.Background()); err == nil {
			verbena.AddWorld(p.Name(), func() rdma.Provider { return list()[i] })
		}
	}
}
