package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-data/verbena/bench/internal/host"
)

// ucx runs ucx_perftest with a transport of UCX, each end on its processor, and
// returns its last line's columns: iterations; median, average and overall latency
// in microseconds; average and overall bandwidth in 2^20 bytes per second; average
// and overall messages per second.
func ucx(ctx context.Context, transport string, args ...string) ([]float64, error) {
	const attempts = 3 // a port may be taken
	var errs []error
	for range attempts {
		columns, err := ucxOnce(ctx, transport, args...)
		if err == nil || ctx.Err() != nil {
			return columns, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

func ucxOnce(ctx context.Context, transport string, args ...string) (columns []float64, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	env := []string{"UCX_TLS=" + transport + ",self", "UCX_WARN_UNUSED_ENV_VARS=n", "UCX_LOG_LEVEL=error"}
	server, err := host.Start(nil, "env", append(env, "ucx_perftest", "-p", port, "-c", strconv.Itoa(host.ServerCPU))...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = server.Kill() }() // it ends by itself when all is well
	if err := listens(ctx, port); err != nil {
		return nil, fmt.Errorf("%w: %s", err, server.Said())
	}
	out, err := host.Output(ctx, env, "ucx_perftest", append([]string{"127.0.0.1", "-p", port, "-c", strconv.Itoa(host.ClientCPU), "-f"}, args...)...)
	if err != nil {
		return nil, err
	}
	return parseUCX(out)
}

// parseUCX reads the last line that is eight numbers.
func parseUCX(out string) ([]float64, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(lines[i]), "Final:"))
		if len(fields) != 8 {
			continue
		}
		var columns []float64
		for _, f := range fields {
			v, err := strconv.ParseFloat(f, 64)
			if err != nil {
				break
			}
			columns = append(columns, v)
		}
		if len(columns) == 8 {
			return columns, nil
		}
	}
	return nil, fmt.Errorf("ucx_perftest printed no result: %s", host.Tail(out))
}

// Of UCX's columns, in our units.
func ucxMedian(c []float64) float64 { return c[1] * 1000 }
func ucxRate(c []float64) float64   { return c[7] }
func ucxBytes(c []float64) float64  { return c[5] * (1 << 20) }

// ucx makes a measurement of one of them.
func (b *bench) ucx(value func([]float64) float64, transport, test string, size, iterations int) measure {
	return func(ctx context.Context) (float64, error) {
		columns, err := ucx(ctx, transport, "-t", test, "-s", strconv.Itoa(size), "-n", b.iterations(iterations), "-w", "1000")
		if err != nil {
			return 0, err
		}
		return value(columns), nil
	}
}

// libfabric runs fi_pingpong and returns its mean one way, in nanoseconds.
func (b *bench) libfabric(provider, endpoint string, size, iterations int) measure {
	return func(ctx context.Context) (v float64, err error) {
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		common := []string{"-p", provider, "-e", endpoint, "-I", b.iterations(iterations), "-S", strconv.Itoa(size)}
		server, err := host.Start(nil, "taskset", append([]string{"-c", strconv.Itoa(host.ServerCPU), "fi_pingpong", "-B", port}, common...)...)
		if err != nil {
			return 0, err
		}
		defer func() { _ = server.Kill() }() // it ends by itself when all is well
		if err := listens(ctx, port); err != nil {
			return 0, fmt.Errorf("%w: %s", err, server.Said())
		}
		out, err := host.Output(ctx, nil, "taskset", append(append([]string{"-c", strconv.Itoa(host.ClientCPU), "fi_pingpong", "-P", port}, common...), "127.0.0.1")...)
		if err != nil {
			return 0, err
		}
		return parsePingpong(out)
	}
}

// parsePingpong reads the column usec/xfer, which is one way.
func parsePingpong(out string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	head, last := strings.Fields(lines[0]), strings.Fields(lines[len(lines)-1])
	for i, title := range head {
		if title == "usec/xfer" && i < len(last) && len(lines) > 1 {
			us, err := strconv.ParseFloat(last[i], 64)
			return us * 1000, err
		}
	}
	return 0, fmt.Errorf("fi_pingpong printed no result: %s", host.Tail(out))
}

func freePort() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	_, port, err := net.SplitHostPort(ln.Addr().String())
	return port, err
}

// listens waits until a port is listened on, without connecting to it: the
// peers take the first connection for their client.
func listens(ctx context.Context, port string) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		out, err := exec.CommandContext(ctx, "ss", "-ltnH", "sport = :"+port).Output()
		if err != nil {
			return fmt.Errorf("ss: %w: install iproute2", err)
		}
		if len(strings.TrimSpace(string(out))) > 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nobody listens on port %s", port)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
