//go:build !linux

package shm

import (
	"context"
	"fmt"
	"runtime"

	"github.com/verbena-data/verbena/rdma"
)

type device struct{ config *Config }

// Devices implements rdma.Provider.
func (p *Provider) Devices(context.Context) ([]rdma.Device, error) {
	if p.invalid != nil {
		return nil, p.invalid
	}
	return nil, fmt.Errorf("%w: shm needs sealed memfds and futexes, which only Linux has, and this is %s: use another provider", rdma.ErrUnavailable, runtime.GOOS)
}
