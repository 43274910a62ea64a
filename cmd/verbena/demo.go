package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/bytesize"
	"github.com/verbena-data/verbena/cmd/verbena/internal/demo"
	"github.com/verbena-data/verbena/hdfs"
)

func demoCommand(o *options) *cobra.Command {
	var quick, asJSON bool
	large := bytesize.Size(1 << 30)
	cfg := demo.Config{JobWorkers: 2, JobMemory: "512MiB"}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Store and read back real files, count words and sort records over each transport, and measure",
		Long: `Bring up a cluster in processes of its own in a temporary directory, store a
directory tree and a file of 1 GiB with Verbena's HDFS client over TCP, then
through shared memory, iWARP and an RDMA adapter if there is one, read all of it
back, and compare SHA-256. Then count the words of the tree's texts, and of the
dictionary of Debian's package dict-gcide if it is installed, and sort 2 GiB of
records of 100 bytes, each as a job of several processes that exchange records over
each transport, and check the results. Print the tables and clean up.

Every byte goes over the transport of its row. Without such a choice a client reads
the blocks of its own host by descriptor, past all of them.

Write and read are the tree and the large file together; CPU seconds are those of
the client and the whole cluster while writing and reading; create is one small
file created, written (1 KiB) and closed, one after the other. The jobs' rates are bytes
of the input by the time of the whole command; their CPU seconds are those of all processes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg.Progress = cmd.ErrOrStderr()
			if asJSON {
				cfg.Progress = io.Discard
			}
			for _, transport := range cfg.Transports {
				if err := checkTransport(transport); err != nil {
					return err
				}
			}
			cfg.LargeFile = int64(large)
			if err := demoSizes(&cfg, quick); err != nil {
				return err
			}
			if cfg.Tree == "" {
				if cfg.Tree, err = toolchainSource(cmd); err != nil {
					return err
				}
			}
			if info, err := os.Stat(cfg.Tree); err != nil || !info.IsDir() {
				return fmt.Errorf("--tree %s is no directory that can be read: name one", cfg.Tree)
			}
			if cfg.Executable, err = os.Executable(); err != nil {
				return err
			}
			cfg.Flags = o.forChildren()
			if cfg.Replicas > cfg.DataNodes {
				return fmt.Errorf("%d replicas need as many DataNodes: there are to be %d", cfg.Replicas, cfg.DataNodes)
			}
			user, err := userName()
			if err != nil {
				return err
			}
			rt, err := o.runtime()
			if err != nil {
				return err
			}
			c := &connector{user: user, rt: rt, dialers: map[string]*hdfs.Dialer{}}
			defer closing(&err, c)
			cfg.Connect = c.connect
			if err := demoTransports(&cfg, usableTransports(rt)); err != nil {
				return err
			}
			result, err := demo.Run(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				err = result.JSON(out)
			} else {
				err = demoTables(out, cfg, result)
			}
			return cmp.Or(demoVerified(result), err)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&quick, "quick", false, "a tenth of the data")
	flags.BoolVar(&asJSON, "json", false, "the table as one JSON object")
	flags.StringVar(&cfg.Tree, "tree", "", "directory to store (default: the Go toolchain's source)")
	flags.Var(&large, "large-file", "bytes of the large file")
	flags.IntVar(&cfg.Creates, "creates", 2000, "small files to create, one after the other")
	flags.IntVar(&cfg.DataNodes, "datanodes", 3, "DataNodes to run")
	flags.IntVar(&cfg.Replicas, "replication", 3, "replicas of a block")
	flags.IntVar(&cfg.Workers, "clients", 4, "clients at work at once")
	flags.Int64Var(&cfg.Records, "records", 21_474_836, "records of 100 bytes to sort")
	flags.StringSliceVar(&cfg.Transports, "transports", nil, "what to measure, in this order (default: tcp, then what this host has)")
	return cmd
}

// demoTransports takes all usable transports if none is named, and checks those that are.
func demoTransports(cfg *demo.Config, usable []string) error {
	if len(cfg.Transports) == 0 {
		cfg.Transports = usable
	}
	for _, transport := range cfg.Transports {
		if transport == verbena.TransportAuto {
			return fmt.Errorf("--transports auto: each row is of one transport: choose of %s", strings.Join(usable, ", "))
		}
		if !slices.Contains(usable, transport) {
			return fmt.Errorf("--transports %s: this host has no device of it: verbena info says why", transport)
		}
	}
	return nil
}

// demoVerified is what came back wrong, if anything did.
func demoVerified(result *demo.Result) error {
	for _, row := range result.Rows {
		if !row.Verified {
			return fmt.Errorf("over %s other bytes came back than were stored", row.Transport)
		}
	}
	for _, row := range result.JobRows {
		if !row.Verified {
			return fmt.Errorf("over %s a job had a wrong result", row.Transport)
		}
	}
	return nil
}

// demoSizes checks how much there is to do, and makes a tenth of it if it is to be quick.
func demoSizes(cfg *demo.Config, quick bool) error {
	for _, n := range []struct {
		flag  string
		value int64
	}{
		{"--creates", int64(cfg.Creates)}, {"--clients", int64(cfg.Workers)}, {"--datanodes", int64(cfg.DataNodes)},
		{"--replication", int64(cfg.Replicas)}, {"--large-file", cfg.LargeFile}, {"--records", cfg.Records},
	} {
		if n.value < 1 {
			return fmt.Errorf("%s is %d: want 1 or more", n.flag, n.value)
		}
	}
	cfg.Share = 1
	if quick {
		cfg.Share = 10
		cfg.Creates = max(1, cfg.Creates/10)
		cfg.LargeFile = max(1, cfg.LargeFile/10)
		cfg.Records = max(1, cfg.Records/10)
	}
	return nil
}

// demoTables writes the tables for people.
func demoTables(out io.Writer, cfg demo.Config, result *demo.Result) error {
	fmt.Fprintf(out, "\n%d files, %.0f MB, %d replica(s) on %d DataNodes:\n\n", result.Files, float64(result.Bytes)/1e6, cfg.Replicas, cfg.DataNodes)
	if err := result.Table(out); err != nil {
		return err
	}
	jobs, also := result.Jobs, ""
	if jobs.Dictionary {
		also = " and of a dictionary"
	}
	fmt.Fprintf(out, "\n%d words of the tree's text%s (%.0f MB) counted, %d different ones, and %.0f MB of records of 100 bytes sorted, by %d processes with %s:\n\n",
		jobs.Words, also, float64(jobs.Text)/1e6, jobs.Different, float64(jobs.Records)/1e4, cfg.JobWorkers, cfg.JobMemory)
	return jobs.Table(out)
}

// toolchainSource is the source tree of the installed Go, a tree of thousands
// of real files that whoever builds this has.
func toolchainSource(cmd *cobra.Command) (string, error) {
	out, err := exec.CommandContext(cmd.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("no Go toolchain found whose source could be stored (%w): name a directory with --tree", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "src"), nil
}

// usableTransports are TCP and those of which this host has a device.
func usableTransports(rt *verbena.Runtime) []string {
	list := []string{verbena.TransportTCP}
	for _, d := range rt.Stats().Devices {
		if d.Gone == nil && !slices.Contains(list, d.Transport) {
			list = append(list, d.Transport)
		}
	}
	return list
}

// connector makes clients that share one runtime and a dialer for each
// transport.
type connector struct {
	user    string
	rt      *verbena.Runtime
	dialers map[string]*hdfs.Dialer
}

// connect returns a client over transport; over "tcp" it knows nothing of Verbena's
// endpoints. It reads no blocks by descriptor, which would carry them past the transport.
// One goroutine at a time.
func (c *connector) connect(_ context.Context, address, transport string) (*hdfs.Client, error) {
	cfg := hdfs.ClientConfig{NameNodes: []string{address}, User: c.user, NoLocalReads: true}
	if transport != verbena.TransportTCP {
		d := c.dialers[transport]
		if d == nil {
			d = hdfs.NewDialer(c.rt, transport)
			c.dialers[transport] = d
		}
		cfg.Dialer = d
	}
	return hdfs.NewClient(cfg)
}

func (c *connector) Close() error {
	var errs []error
	for _, d := range c.dialers {
		errs = append(errs, d.Close())
	}
	return errors.Join(append(errs, c.rt.Close())...)
}
