package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
)

// A column of the papers' tables is a client on a system of ours.
type column struct {
	name, transport string
	flags           []string
}

const adapters = "ibverbs"

// columns are all that there may be; those that are measured are what [columnsHere] returns.
var columns = []column{
	{"shm", "shm", nil}, {"iwarp", "iwarp", nil}, {adapters, adapters, nil},
	{"TCP, native", verbena.TransportTCP, []string{"--native"}}, {"TCP, legacy", verbena.TransportTCP, nil},
}

// columnsHere are those that this host can measure: the one of adapters if there are any among
// the providers' devices. It says on log what is left out.
func columnsHere(ctx context.Context, from []rdma.Provider, log io.Writer) []column {
	for _, p := range from {
		if p.Name() != adapters {
			continue
		}
		devices, err := p.Devices(ctx)
		if len(devices) > 0 {
			return columns
		}
		if err == nil {
			err = errors.New("there is no adapter")
		}
		fmt.Fprintf(log, "%s is left out: %v\n", adapters, err)
		return columnsWith(func(name string) bool { return name != adapters })
	}
	fmt.Fprintf(log, "%s is left out: it was not built in\n", adapters)
	return columnsWith(func(name string) bool { return name != adapters })
}

// columnsWith are those whose names are wanted.
func columnsWith(wanted func(name string) bool) (out []column) {
	for _, c := range columns {
		if wanted(c.name) {
			out = append(out, c)
		}
	}
	return out
}

// theProviders are those of this program.
func theProviders() []rdma.Provider { return providers.Default() }

// suits is how many bytes of data a packet of a column has when nobody sets it: what its
// transport's tuning leaves beside a header of 64 bytes and a checksum of 4 for each 512.
func (c *column) suits() int {
	if c.transport == verbena.TransportTCP && len(c.flags) == 0 {
		return 256 << 10 // of HDFS's own protocol
	}
	rows := verbena.DefaultTuning()
	i := slices.IndexFunc(rows, func(r verbena.TuningRow) bool { return r.Transport == c.transport })
	return (rows[i].Tuning.Packet - 64) / 516 * 512
}

// start starts the system of a column.
func (c *column) start(ctx context.Context, b *bench) (*system, error) {
	return startOurs(ctx, b.binary, filepath.Join(b.work, c.transport+strings.Join(c.flags, "")), c.transport, b.user)
}

// client starts its client, with packets of so many bytes, 0 for the default.
func (c *column) client(ctx context.Context, b *bench, s *system, packet int) (*client, error) {
	return ourClient(ctx, b.self, c.name, s.nameNode, c.transport, b.user, packet, b.log, c.flags...)
}
