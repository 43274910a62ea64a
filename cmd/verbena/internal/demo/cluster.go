package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/processes"
)

// cluster is a NameNode and its DataNodes, each a child process.
type cluster struct {
	nameNode  string
	processes []*processes.Process
}

func start(ctx context.Context, cfg Config, dir string) (*cluster, error) {
	c := &cluster{}
	run := func(name string, args ...string) (string, error) {
		address := filepath.Join(dir, name+".address")
		p, err := processes.Start(ctx, name, address, cfg.Executable,
			slices.Concat(args, []string{"--dir", filepath.Join(dir, name), "--cluster-secret", filepath.Join(dir, "cluster-secret"), "--listen", "127.0.0.1:0", "--address-file", address}, cfg.Flags)...)
		if err != nil {
			return "", errors.Join(err, c.stop())
		}
		c.processes = append(c.processes, p)
		return p.Address, nil
	}
	var err error
	if c.nameNode, err = run("namenode", "namenode", "--replication", fmt.Sprint(cfg.Replicas)); err != nil {
		return nil, err
	}
	for i := range cfg.DataNodes {
		if _, err := run(fmt.Sprintf("datanode-%d", i), "datanode", "--namenode", c.nameNode); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// stop ends the processes, DataNodes first.
func (c *cluster) stop() error {
	var errs []error
	for i := len(c.processes) - 1; i >= 0; i-- {
		errs = append(errs, c.processes[i].Stop())
	}
	c.processes = nil
	return errors.Join(errs...)
}

// watch returns a context that ends, and tells why, when a process does. The
// function must be called before stop.
func (c *cluster) watch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var wg sync.WaitGroup
	for _, p := range c.processes {
		wg.Go(func() {
			select {
			case <-p.Exited():
				cancel(fmt.Errorf("the %s process ended by itself", p.Name))
			case <-ctx.Done():
			}
		})
	}
	return ctx, func() {
		cancel(nil)
		wg.Wait()
	}
}

// cpu is what the cluster and this process, the client, have used so far.
func (c *cluster) cpu() (time.Duration, error) {
	total, err := processes.CPUTime(os.Getpid())
	for _, p := range c.processes {
		t, perr := p.CPU()
		if perr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", p.Name, perr))
		}
		total += t
	}
	return total, err
}
