//go:build !noibverbs

package providers

import (
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs"
)

func init() {
	made = append(made, ranked{rank: 15, make: func(cfg Config) rdma.Provider {
		return ibverbs.New(ibverbs.Config{HugePages: cfg.HugePages, Logger: cfg.Logger})
	}})
}
