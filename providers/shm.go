//go:build !noshm

package providers

import (
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/shm"
)

func init() {
	made = append(made, ranked{rank: 10, make: func(cfg Config) rdma.Provider { return shm.New(shm.Config{HugePages: cfg.HugePages}) }})
}
