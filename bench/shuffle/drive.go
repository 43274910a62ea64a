package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/tally"
)

// A measurement is what an exchange has cost, all processes together.
type measurement struct {
	load
	Wall, CPU            float64 // seconds
	Registered, Resident int64   // bytes
	Stalled, Waited      float64 // seconds, of all threads
	Stalls, Waits        uint64
	Messages             uint64
	Calls                uint64 // of the system
}

const gib = 1 << 30

// perGiB is the communication cost: CPU seconds for each GiB of records.
func (m measurement) perGiB() float64 { return m.CPU / (m.bytes() / gib) }

// callsPerMiB is how many system calls a MiB of records takes.
func (m measurement) callsPerMiB() float64 { return float64(m.Calls) / (m.bytes() / (1 << 20)) }

// stalled is the share of their time that senders waited for room, in percent.
func (m measurement) stalled() float64 {
	return 100 * m.Stalled / (m.Wall * float64(m.partitions()))
}

// rate is in bytes a second.
func (m measurement) rate() float64 { return m.bytes() / m.Wall }

// A child is a worker.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	stray bytes.Buffer
}

// drive runs a load by processes of this program.
func drive(ctx context.Context, l load) (m measurement, err error) {
	if l.System == "memcpy" {
		return memoryCopy(l), nil
	}
	ctx, cancel := context.WithTimeout(ctx, host.Patience)
	defer cancel()
	var between *cable
	if l.Cable {
		if between, err = newCable(ctx); err != nil {
			return m, err
		}
		defer between.remove() // when the workers have ended
	}
	self, err := os.Executable()
	if err != nil {
		return m, err
	}
	text, err := json.Marshal(l)
	if err != nil {
		return m, err
	}
	w := workers{system: l.System}
	defer func() { err = w.end(err) }()
	for rank := range l.Size {
		args := []string{"worker", "--load", string(text), "--rank", fmt.Sprint(rank)}
		cmd := exec.CommandContext(ctx, self, args...)
		if between != nil {
			var address string
			cmd, address = between.command(ctx, rank%2, self, args...)
			cmd.Args = append(cmd.Args, "--address", address)
		}
		if err := w.start(cmd); err != nil {
			return m, err
		}
	}
	addresses, err := w.hear()
	if err != nil {
		return m, err
	}
	if err := w.tell(strings.Join(addresses, " ")); err != nil {
		return m, err
	}
	if _, err := w.hear(); err != nil { // ready
		return m, err
	}
	begin := time.Now()
	if err := w.tell("go"); err != nil {
		return m, err
	}
	if _, err := w.hear(); err != nil { // done
		return m, err
	}
	m.Wall = time.Since(begin).Seconds()
	if err := w.tell("tell"); err != nil {
		return m, err
	}
	results, err := w.hear()
	if err != nil {
		return m, err
	}
	if err := w.tell("end"); err != nil {
		return m, err
	}
	err = m.sum(l, results)
	return m, err
}

// workers are the processes of a load, by rank.
type workers struct {
	system   string
	children []*child
}

// start starts the next one.
func (w *workers) start(cmd *exec.Cmd) (err error) {
	c := &child{cmd: cmd}
	cmd.Stderr = &c.stray
	if c.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	c.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return err
	}
	w.children = append(w.children, c)
	return nil
}

// hear reads a line of each.
func (w *workers) hear() ([]string, error) {
	lines := make([]string, len(w.children))
	for i, c := range w.children {
		line, err := c.out.ReadString('\n')
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = c.cmd.Wait() // so that all of its output is there
			}
			return nil, fmt.Errorf("worker %d of %s: %w: %s", i, w.system, err, host.Tail(c.stray.String()))
		}
		lines[i] = strings.TrimSpace(line)
	}
	return lines, nil
}

// tell says a line to all.
func (w *workers) tell(line string) error {
	for i, c := range w.children {
		if _, err := fmt.Fprintln(c.in, line); err != nil {
			return fmt.Errorf("worker %d of %s: %w", i, w.system, err)
		}
	}
	return nil
}

// end waits until all have ended, after an error by killing them. It returns that error, or else one of theirs.
func (w *workers) end(err error) error {
	for _, c := range w.children {
		if err != nil {
			_ = c.cmd.Process.Kill()
		}
		_ = c.in.Close()
		if e := c.cmd.Wait(); err == nil && e != nil {
			err = fmt.Errorf("worker: %w: %s", e, host.Tail(c.stray.String()))
		}
	}
	return err
}

// sum takes the results of all workers of a load.
func (m *measurement) sum(l load, results []string) error {
	m.load = l
	var received, size uint64
	var sentTo, receivedBy []tally.Tally // by partition
	if l.Checked {
		sentTo = make([]tally.Tally, l.partitions())
	}
	for rank, text := range results {
		var r result
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return fmt.Errorf("worker %d of %s: %w", rank, l.System, err)
		}
		m.CPU += r.CPU
		m.Registered += r.Registered
		m.Resident += r.Resident
		m.Stalled += r.Stalled
		m.Waited += r.Waited
		m.Stalls += r.Stalls
		m.Waits += r.Waits
		m.Messages += r.Messages
		m.Calls += r.Calls
		received += r.Received
		size += r.Bytes
		receivedBy = append(receivedBy, r.ReceivedBy...)
		for to, t := range r.SentTo {
			sentTo[to].Merge(t)
		}
	}
	if want := uint64(l.Size) * uint64(l.Threads) * uint64(l.Records); received != want || size != want*uint64(l.Record) {
		return fmt.Errorf("%s: %d records of %d bytes have come, not %d", l.System, received, size, want)
	}
	if !slices.Equal(sentTo, receivedBy) {
		return fmt.Errorf("%s: partitions have received %v, and %v was sent to them", l.System, receivedBy, sentTo)
	}
	return nil
}
