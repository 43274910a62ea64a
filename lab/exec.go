package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/verbena-data/verbena/lab/internal/job"
)

// guestOptions are those of the commands that run what the user brings.
type guestOptions struct {
	world string
	files []string
	env   []string
	share string
}

func (g *guestOptions) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&g.world, "world", "rxe,siw", "RDMA links to bring up first, on both ends of a veth pair: rxe, siw, rxe,siw or nothing; with both on one interface rdma_cm takes rxe")
	f.StringArrayVar(&g.files, "file", nil, "HOST or HOST:GUEST: bring a file, with the libraries it is linked with; without GUEST it goes to "+job.Files)
	f.StringArrayVar(&g.env, "env", nil, "NAME=VALUE for the command")
	f.StringVar(&g.share, "share", "", "directory to mount at "+job.Share+", for results or large files")
}

// apply fills the machine in.
func (g *guestOptions) apply(m *machine) error {
	m.job.World, m.job.Env, m.job.Dir = g.world, g.env, "/root"
	for _, f := range g.files {
		host, guest, ok := strings.Cut(f, ":")
		if !ok {
			guest = path.Join(job.Files, filepath.Base(host))
		}
		if !path.IsAbs(guest) {
			return fmt.Errorf("--file %s: %s must begin with a slash", f, guest)
		}
		m.files = append(m.files, file{guest, host})
	}
	if g.share != "" {
		share, err := filepath.Abs(g.share)
		if err != nil {
			return err
		}
		if info, err := os.Stat(share); err != nil || !info.IsDir() {
			return fmt.Errorf("--share %s: no such directory", g.share)
		}
		if strings.Contains(share, ",") {
			return fmt.Errorf("--share %s: QEMU takes no comma there", share)
		}
		m.share, m.job.Share = share, true
	}
	return nil
}

func execCommand(o *options) *cobra.Command {
	g := &guestOptions{}
	cmd := &cobra.Command{
		Use:   "exec [flags] -- COMMAND [ARG]...",
		Short: "Run any program or script in a fresh virtual machine",
		Long: dedent(`
	Run a program in a fresh virtual machine, as root, and exit with its status.

	A COMMAND with a slash in it is a file of this host, which is brought in with the
	libraries it is linked with; another is looked up in the virtual machine, which
	has busybox, ip, tc, rdma, rping and perftest. Two hosts are up: 10.9.0.1 on v0
	(rxe0, siw0) and 10.9.0.2 on v1 (rxe1, siw1).`),
		Example: `  go run ./lab exec -- ibv_devinfo
  go run ./lab exec --world siw -- sh -c 'rping -s -a 10.9.0.2 -C 3 & sleep 1; rping -c -I 10.9.0.1 -a 10.9.0.2 -C 3 -v'
  go test -c -o /tmp/x.test ./rdma/iwarp && go run ./lab exec -- /tmp/x.test -test.short
  go run ./lab exec --share /tmp/results -- ./script.sh`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			scratch, err := os.MkdirTemp("", "verbena-lab-")
			if err != nil {
				return err
			}
			defer remove(scratch)
			m, _, err := o.newMachine(cmd.Context(), scratch)
			if err != nil {
				return err
			}
			if err := g.apply(m); err != nil {
				return err
			}
			m.job.Argv = args
			if strings.Contains(args[0], "/") {
				guest := path.Join(job.Files, filepath.Base(args[0]))
				m.files = append(m.files, file{guest, args[0]})
				m.job.Argv = append([]string{guest}, args[1:]...)
			}
			status, err := m.run(cmd.Context())
			if err != nil {
				return err
			}
			return exitError(status)
		},
	}
	g.flags(cmd)
	return cmd
}

func shellCommand(o *options) *cobra.Command {
	g := &guestOptions{}
	cmd := &cobra.Command{
		Use:   "shell [flags]",
		Short: "Open a shell in a fresh virtual machine",
		Long: dedent(`
	Open a shell, as root, on the console of a fresh virtual machine with two hosts
	up: 10.9.0.1 on v0 and 10.9.0.2 on v1. "exit" switches it off; --timeout holds
	here, too. Files brought with --file are on the PATH.`),
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !term.IsTerminal(int(os.Stdin.Fd())) {
				return errors.New("a shell needs a terminal; \"exec -- sh -c ...\" does not")
			}
			scratch, err := os.MkdirTemp("", "verbena-lab-")
			if err != nil {
				return err
			}
			defer remove(scratch)
			m, _, err := o.newMachine(cmd.Context(), scratch)
			if err != nil {
				return err
			}
			if err := g.apply(m); err != nil {
				return err
			}
			m.job.Argv, m.job.Console, m.terminal = []string{"/bin/sh"}, true, true
			status, err := m.run(cmd.Context())
			if err != nil {
				return err
			}
			return exitError(status)
		},
	}
	g.flags(cmd)
	return cmd
}
