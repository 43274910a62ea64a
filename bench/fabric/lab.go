package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
)

// labPatience bounds the virtual machine.
const labPatience = 20 * time.Minute

// lab measures rdma/ibverbs beside perftest, both on the kernel's Soft-RoCE in one
// boot of the lab's virtual machine, where this program does what labCommand tells.
func (b *bench) lab(ctx context.Context) ([]verdict, error) {
	fmt.Fprintln(os.Stderr, "lab: ibverbs on rxe beside ib_send_lat")
	fabric := filepath.Join(b.temporary, "fabric")
	if err := host.Build(ctx, filepath.Join(b.root, "bench"), fabric, []string{"build"}, "./fabric", "CGO_ENABLED=0"); err != nil {
		return nil, err
	}
	share := filepath.Join(b.temporary, "share")
	if err := os.MkdirAll(share, 0o755); err != nil {
		return nil, err
	}
	rounds, count := 10, 2000
	if b.short {
		rounds, count = 2, 300
	}
	ctx, cancel := context.WithTimeout(ctx, labPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "run", "./lab", "exec", "--world", "rxe", "--timeout", labPatience.String(),
		"--file", b.verbena+":/lab/files/verbena", "--share", share, "--",
		fabric, "lab", "--verbena", "/lab/files/verbena", "--rounds", strconv.Itoa(rounds), "--iterations", strconv.Itoa(count), "--out", "/host/lab.json")
	cmd.Dir = b.root
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("go run ./lab exec: %w", err)
	}
	raw, err := os.ReadFile(filepath.Join(share, "lab.json"))
	if err != nil {
		return nil, err
	}
	var verdicts []verdict
	if err := json.Unmarshal(raw, &verdicts); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	return verdicts, nil
}

// labCommand is the part that runs inside of the virtual machine.
func labCommand() *cobra.Command {
	l := &inside{}
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "Inside of the lab: ibverbs beside ib_send_lat on two rxe devices",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return l.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&l.verbena, "verbena", "verbena", "the verbena binary")
	flags.StringVar(&l.out, "out", "lab.json", "where the results go")
	flags.IntVar(&l.rounds, "rounds", 10, "rounds")
	flags.IntVar(&l.iterations, "iterations", 2000, "messages of a measurement")
	flags.StringVar(&l.server, "server", "10.9.0.1/rxe0", "`address/device` of the passive end")
	flags.StringVar(&l.client, "client", "10.9.0.2/rxe1", "`address/device` of the active end")
	flags.IntVar(&l.inline, "inline", 64, "inline bytes of both")
	return cmd
}

type inside struct {
	verbena, out, server, client string
	rounds, iterations, inline   int

	from, to address
}

// An address is one end of the link.
type address struct {
	ip, device string
	index      int    // of the address in the device's table of GIDs
	link       string // the device's network interface
}

// findAddress looks "IP/DEVICE" up in the kernel's table of GIDs.
func findAddress(arg string) (a address, err error) {
	a.ip, a.device, _ = strings.Cut(arg, "/")
	ip := net.ParseIP(a.ip)
	if ip == nil {
		return a, fmt.Errorf("%q is not IP/DEVICE", arg)
	}
	port := filepath.Join("/sys/class/infiniband", a.device, "ports/1")
	for ; ; a.index++ {
		n := strconv.Itoa(a.index)
		gid, err := os.ReadFile(filepath.Join(port, "gids", n))
		if err != nil {
			return a, fmt.Errorf("device %s has no GID of %s: %w", a.device, a.ip, err)
		}
		if !ip.Equal(net.ParseIP(strings.TrimSpace(string(gid)))) {
			continue
		}
		link, err := os.ReadFile(filepath.Join(port, "gid_attrs/ndevs", n))
		a.link = strings.TrimSpace(string(link))
		return a, err
	}
}

// packets is how many have come in on the interface.
func (a address) packets() (int, error) {
	raw, err := os.ReadFile(filepath.Join("/sys/class/net", a.link, "statistics/rx_packets"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}

// crossing measures and sees to it that the messages went over the link: rxe
// loops back what its own device sends to itself, for half the price, and
// rdma_resolve_addr takes one device for two addresses of one host unless the
// caller binds its end first, which perftest does not.
func (l *inside) crossing(ctx context.Context, measure func(context.Context) (float64, error)) (float64, error) {
	before, err := l.to.packets()
	if err != nil {
		return 0, err
	}
	ns, err := measure(ctx)
	if err != nil {
		return 0, err
	}
	after, err := l.to.packets()
	if err == nil && after-before < l.iterations {
		err = fmt.Errorf("%d messages were measured, and only %d packets came in on %s: they went another way", l.iterations, after-before, l.to.link)
	}
	return ns, err
}

func (l *inside) run(ctx context.Context) (err error) {
	if l.to, err = findAddress(l.server); err != nil {
		return err
	}
	if l.from, err = findAddress(l.client); err != nil {
		return err
	}
	var verdicts []verdict
	for _, event := range []bool{false, true} {
		for _, size := range []int{8, 4096} {
			v := verdict{
				Name: fmt.Sprintf("ibverbs on rxe, Send, %d B, spinning", size), Beside: "ib_send_lat", Unit: nanoseconds, Target: 1.5,
				AllCount: true, // emulated processors have no distance that would matter beside what they cost
			}
			if event {
				v.Name, v.Beside, v.Target = fmt.Sprintf("ibverbs on rxe, Send, %d B, event mode", size), "ib_send_lat -e", 2
			}
			for n := range l.rounds {
				r, err := beside.Pair(ctx,
					func(ctx context.Context) (float64, error) {
						return l.crossing(ctx, func(ctx context.Context) (float64, error) { return l.ours(ctx, size, event) })
					},
					func(ctx context.Context) (float64, error) {
						return l.crossing(ctx, func(ctx context.Context) (float64, error) { return l.theirs(ctx, size, event) })
					}, n%2 == 0)
				if err != nil {
					return fmt.Errorf("%s: %w", v.Name, err)
				}
				v.Rounds = append(v.Rounds, r)
				fmt.Printf("%s: ours %.1f us, theirs %.1f us\n", v.Name, r.Ours/1000, r.Theirs/1000)
			}
			v.judge()
			verdicts = append(verdicts, v)
		}
	}
	raw, err := json.MarshalIndent(verdicts, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(l.out, raw, 0o644)
}

func (l *inside) ours(ctx context.Context, size int, event bool) (v float64, err error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	server, err := host.Start(nil, l.verbena, "perf", "serve", "--listen", "127.0.0.1:"+port, "--device", l.to.device, "--until-eof")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	if err := dials(ctx, port); err != nil {
		return 0, fmt.Errorf("%w: %s", err, server.Said())
	}
	wait := "spin"
	if event {
		wait = "event"
	}
	out, err := host.Output(ctx, nil, l.verbena, "perf", "127.0.0.1:"+port, "--transport", "ibverbs", "--device", l.from.device, "--json", "--repost-first", "--wait", wait,
		"--size", strconv.Itoa(size), "--inline", strconv.Itoa(l.inline), "--iterations", strconv.Itoa(l.iterations), "--warmup", "100")
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, server.Said())
	}
	var r row
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		return 0, fmt.Errorf("verbena perf: %w: %s", err, host.Tail(out))
	}
	return r.P50, nil
}

func (l *inside) theirs(ctx context.Context, size int, event bool) (float64, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	common := []string{"-p", port, "-s", strconv.Itoa(size), "-n", strconv.Itoa(l.iterations), "-I", strconv.Itoa(l.inline), "-F"}
	if event {
		common = append(common, "-e")
	}
	on := func(a address, more ...string) []string {
		return slices.Concat(common, []string{"-d", a.device, "-x", strconv.Itoa(a.index)}, more)
	}
	server, err := host.Start(nil, "ib_send_lat", on(l.to)...)
	if err != nil {
		return 0, err
	}
	defer func() { _ = server.Kill() }() // it ends by itself when all is well
	var out string
	for attempt := range 20 {
		out, err = host.Output(ctx, nil, "ib_send_lat", on(l.from, "127.0.0.1")...)
		if err == nil || ctx.Err() != nil {
			break
		}
		// The server may not listen yet, and takes one connection alone.
		time.Sleep(time.Duration(attempt+1) * 50 * time.Millisecond)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, server.Said())
	}
	return parseSendLat(out)
}

// parseSendLat reads t_typical, the median one way, in microseconds.
func parseSendLat(out string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, l := range lines {
		if !strings.Contains(l, "t_typical") || i+1 >= len(lines) {
			continue
		}
		if fields := strings.Fields(lines[i+1]); len(fields) > 4 {
			us, err := strconv.ParseFloat(fields[4], 64)
			return us * 1000, err
		}
	}
	return 0, fmt.Errorf("ib_send_lat printed no result: %s", host.Tail(out))
}

// dials waits until a TCP port answers.
func dials(ctx context.Context, port string) error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
