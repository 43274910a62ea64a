package verbena_test

import (
	"context"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
)

// The tests run over the real providers of this system as well as over fakes.
func init() {
	for i, p := range providers.Default() {
		if _, err := p.Devices(context.Background()); err == nil {
			verbena.AddWorld(p.Name(), func() rdma.Provider { return providers.Default()[i] })
		}
	}
}
