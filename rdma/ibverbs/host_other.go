//go:build !linux || (!amd64 && !arm64) || noibverbs

package ibverbs

import (
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// host has no devices in this build.
type host struct{}

func (*host) devices(*Provider) ([]rdma.Device, error) {
	_, err := verbs.Load()
	return nil, err
}

func (*host) adapters(*Provider) ([]Adapter, error) {
	_, err := verbs.Load()
	return nil, err
}
