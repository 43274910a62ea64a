package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// srunCommand runs sorts under Slurm's srun.
func srunCommand(c *common) *cobra.Command {
	var records int64
	cmd := &cobra.Command{
		Use:   "srun",
		Short: "Sort under Slurm's srun, on a Slurm of its own with two nodes on this host, with processes that fail, too (root; apt-get install slurm-wlm munge)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.run(cmd, func(ctx context.Context, dir string) error { return c.srun(ctx, dir, records) })
		},
	}
	cmd.Flags().Int64Var(&records, "records", 2_000_000, "records of 100 bytes")
	return cmd
}

// slurm is a Slurm with two nodes on this host, which lasts as long as its daemons.
type slurm struct {
	dir     string
	daemons []*exec.Cmd
}

// slurmConf is its configuration: a format of the host's name, the directory and the ports of the controller and of the nodes.
const slurmConf = `ClusterName=soak
SlurmctldHost=%[1]s(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=%[3]d
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket=%[2]s/munge.socket
StateSaveLocation=%[2]s/state
SlurmdSpoolDir=%[2]s/spool.%%n
SlurmctldPidFile=%[2]s/slurmctld.pid
SlurmdPidFile=%[2]s/slurmd.%%n.pid
SlurmctldLogFile=%[2]s/slurmctld.log
SlurmdLogFile=%[2]s/slurmd.%%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SwitchType=switch/none
NodeName=node0 NodeHostname=%[1]s NodeAddr=127.0.0.1 Port=%[4]d CPUs=2 State=UNKNOWN
NodeName=node1 NodeHostname=%[1]s NodeAddr=127.0.0.2 Port=%[5]d CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
`

// slurmHosts are the nodes' names, which only what runs on them sees.
const slurmHosts = "127.0.0.1 localhost node0\n127.0.0.2 node1\n"

// startSlurm starts it in a directory. stop ends it also after an error.
func startSlurm(ctx context.Context, dir string) (_ *slurm, err error) {
	s := &slurm{dir: dir}
	for _, program := range []string{"munged", "slurmctld", "slurmd", "srun", "sbatch", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			return s, fmt.Errorf("%w: apt-get install slurm-wlm munge", err)
		}
	}
	if os.Geteuid() != 0 {
		return s, errors.New("the nodes need root, to have names of their own")
	}
	host, err := os.Hostname()
	if err != nil {
		return s, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return s, err
	}
	key := make([]byte, 1024)
	_, _ = rand.Read(key) // never fails
	err = errors.Join(
		os.Mkdir(filepath.Join(dir, "state"), 0o700),
		os.WriteFile(filepath.Join(dir, "key"), key, 0o400),
		os.WriteFile(filepath.Join(dir, "hosts"), []byte(slurmHosts), 0o644),
		os.WriteFile(filepath.Join(dir, "slurm.conf"), fmt.Appendf(nil, slurmConf, host, dir, ports[0], ports[1], ports[2]), 0o644),
	)
	if err != nil {
		return s, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	node := `mount --bind "$1" /etc/hosts && exec slurmd -D -N "$2"`
	for _, daemon := range [][]string{
		{"munged", "--foreground", "--force", "--key-file=" + in("key"), "--socket=" + in("munge.socket"), "--pid-file=" + in("munged.pid"), "--log-file=" + in("munged.log"), "--seed-file=" + in("seed")},
		{"slurmctld", "-D", "-c"},
		{"unshare", "--mount", "sh", "-c", node, "sh", in("hosts"), "node0"},
		{"unshare", "--mount", "sh", "-c", node, "sh", in("hosts"), "node1"},
	} {
		cmd := s.command(context.WithoutCancel(ctx), daemon[0], daemon[1:]...)
		if err := cmd.Start(); err != nil {
			return s, err
		}
		s.daemons = append(s.daemons, cmd)
	}
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	for {
		idle, err := s.command(ctx, "sinfo", "-h", "-t", "idle", "-o", "%D").Output()
		if err == nil && strings.TrimSpace(string(idle)) == "2" {
			return s, nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return s, fmt.Errorf("the nodes are not idle after a minute: %w", context.Cause(ctx))
		}
	}
}

// freePorts are ports that nobody had a moment ago.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func (s *slurm) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "SLURM_CONF="+filepath.Join(s.dir, "slurm.conf"))
	return cmd
}

func (s *slurm) stop() {
	for i := len(s.daemons) - 1; i >= 0; i-- {
		_ = s.daemons[i].Process.Signal(syscall.SIGTERM) // it may have ended
		late := time.AfterFunc(10*time.Second, func() { _ = s.daemons[i].Process.Kill() })
		_ = s.daemons[i].Wait()
		late.Stop()
	}
}

func (c *common) srun(ctx context.Context, dir string, records int64) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	place := filepath.Join(dir, "sorts")
	if err := os.Mkdir(place, 0o755); err != nil {
		return err
	}
	binary, err := filepath.Abs(c.binary)
	if err != nil {
		return err
	}
	in, out := filepath.Join(dir, "in"), filepath.Join(place, "out")
	sum, err := exec.CommandContext(ctx, binary, "gensort", "-c", fmt.Sprint(records), in).Output()
	if err != nil {
		return fmt.Errorf("gensort: %w", err)
	}
	s, err := startSlurm(ctx, dir)
	defer s.stop()
	if err != nil {
		return err
	}
	version, err := s.command(ctx, "srun", "--version").Output()
	if err != nil {
		return err
	}
	c.printf("# Sorts under Slurm's srun\n\n`go run ./soak srun`: %d records of 100 bytes, %s of Debian, two nodes on one host, with names and addresses of their own.\n\n"+
		"| command | what came of it | took |\n|---|---|---:|\n", records, bytes.TrimSpace(version))
	sort := binary + " sort --format gensort --memory 512MiB -o " + out + " " + in
	short := strings.NewReplacer(binary, "verbena", out, "OUT", in, "IN")
	// try runs a command that ends well or not, says want, and leaves what it should.
	try := func(shown string, ends bool, want string, command ...string) error {
		shown = short.Replace(shown)
		fmt.Fprintln(progress, shown)
		if err := os.Remove(out); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		limit, stop := context.WithTimeout(ctx, 2*endPatience)
		defer stop()
		began := time.Now()
		said, err := s.command(limit, command[0], command[1:]...).CombinedOutput()
		took := time.Since(began)
		if (err == nil) != ends || !strings.Contains(string(said), want) {
			return fmt.Errorf("%s: %w, and not %q: %s", shown, err, want, said)
		}
		entries, err := os.ReadDir(place)
		if err != nil || !ends && len(entries) > 0 {
			return fmt.Errorf("%s: %w: it has left %v", shown, err, entries)
		}
		if ends {
			report, err := exec.CommandContext(ctx, binary, "valsort", out).Output()
			if right := fmt.Sprintf("Records: %d\nChecksum: %s", records, sum); err != nil || !strings.HasPrefix(string(report), right) {
				return fmt.Errorf("valsort: %w: %s; gensort's checksum is %s", err, report, sum)
			}
		}
		c.printf("| `%s` | %s | %.1f s |\n", shown, want, took.Seconds())
		return nil
	}
	srun := func(flags, command string) []string {
		return append(append([]string{"srun"}, strings.Fields(flags)...), strings.Fields(command)...)
	}
	for _, transport := range sortTransports {
		command := srun("-N 2 -n 4", sort+" --transport "+transport)
		if err := try(strings.Join(command, " "), true, "by 4 processes over "+transport, command...); err != nil {
			return err
		}
	}
	alone := srun("-n 1", sort+" --workers 3")
	if err := try(strings.Join(alone, " "), true, "by 3 processes", alone...); err != nil {
		return err
	}
	// In a batch script the same variables are there before srun has made a step of it.
	script := filepath.Join(dir, "script")
	for _, b := range []struct{ command, want string }{{sort + " --workers 2", "by 2 processes"}, {"srun " + sort, "by 4 processes"}} {
		if err := os.WriteFile(script, []byte("#!/bin/sh\n"+b.command+"\n"), 0o700); err != nil {
			return err
		}
		if err := try("sbatch -N 2 -n 4, "+b.command, true, b.want, "sh", "-c", `sbatch --wait -N 2 -n 4 -o "$1.out" "$1"; ended=$?; cat "$1.out"; exit $ended`, "sh", script); err != nil {
			return err
		}
	}
	// Number 2 comes to its end as the wrapper says, the others sort.
	wrapped := func(instead string) string { return "[ $SLURM_PROCID = 2 ] || exec " + sort + "; " + instead }
	if err := try("srun -N 2 -n 4, number 2 killed at work", false, "process 2: shuffle: process lost", "srun", "-N", "2", "-n", "4", "sh", "-c",
		wrapped(sort+" & sleep 0.3; kill -9 $!; wait $!")); err != nil {
		return err
	}
	if err := try("srun --kill-on-bad-exit -N 2 -n 4, number 2 ends before it comes", false, "task 2: Exited with exit code 3", "srun", "--kill-on-bad-exit", "-N", "2", "-n", "4", "sh", "-c",
		wrapped("exit 3")); err != nil {
		return err
	}
	c.printf("\nOutputs are in order, with gensort's checksum; jobs that failed have left neither an output nor temporary files. `sbatch --wait` looks every ten seconds whether a job has ended.\n")
	return nil
}
