//go:build !noiwarp

package providers

import (
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp"
)

func init() {
	made = append(made, ranked{rank: 20, make: func(cfg Config) rdma.Provider {
		return iwarp.New(iwarp.Config{AllowRemote: cfg.RemoteIWARP, Logger: cfg.Logger})
	}})
}
