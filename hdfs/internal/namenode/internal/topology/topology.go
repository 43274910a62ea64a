// Package topology tells on which rack a host is, as Hadoop does: by a table
// (net.topology.table.file.name) or a script (net.topology.script.file.name). A
// rack is a path such as "/dc1/rack4"; hosts that nobody knows are on [DefaultRack].
//
// It knows nothing of DataNodes or blocks.
package topology

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// DefaultRack is where everything is unless a table or a script says otherwise.
const DefaultRack = "/default-rack"

const (
	scriptTime = 10 * time.Second // for one run
	maxCached  = 1 << 16          // hosts of which the rack is remembered
	// unknownFor is how long a host is taken to be on the default rack after the
	// script has failed for it.
	unknownFor = time.Minute
)

// Config says where racks come from. With neither a table nor a script all is
// on DefaultRack.
type Config struct {
	// Table is a file of lines "host /rack", the host being an IP address or a
	// name; "#" begins a comment.
	Table string
	// Script is run with up to ScriptArgs addresses and prints a rack for each.
	// It comes after the table.
	Script     string
	ScriptArgs int          // default 100
	Logger     *slog.Logger // default: slog.Default()
}

// Map answers from the table, or from what the script has said. Its methods may be
// called concurrently.
type Map struct {
	cfg Config

	mu     sync.Mutex
	table  map[string]string
	cached map[string]answer
}

type answer struct {
	rack  string
	until time.Time // zero: it stays
}

// New reads the table.
func New(cfg Config) (*Map, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.ScriptArgs <= 0 {
		cfg.ScriptArgs = 100
	}
	m := &Map{cfg: cfg}
	return m, m.Reload()
}

// Reload reads the table again and forgets what the script has said. After an
// error everything stays as it was.
func (m *Map) Reload() error {
	var table map[string]string
	if m.cfg.Table != "" {
		var err error
		if table, err = readTable(m.cfg.Table); err != nil {
			return fmt.Errorf("the table of racks: %w", err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table, m.cached = table, make(map[string]answer)
	return nil
}

func readTable(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	table := make(map[string]string)
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		fields := strings.Fields(text)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("%s:%d: want a host and a rack, got %q", name, n, text)
		}
		rack, err := normal(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, n, err)
		}
		table[fields[0]] = rack
	}
	return table, lines.Err()
}

func normal(rack string) (string, error) {
	if !strings.HasPrefix(rack, "/") || strings.ContainsAny(rack, " \t") {
		return "", fmt.Errorf("the rack %q is not a path that begins with /", rack)
	}
	if rack = strings.TrimRight(rack, "/"); rack == "" {
		return "", errors.New("the rack / is the root of all racks")
	}
	return rack, nil
}

// Rack returns a host's rack. The address is what the script is asked for; the
// table may have the name instead. It may run the script, and never fails: what can't
// be found out is logged, and the host counts as on DefaultRack.
func (m *Map) Rack(ctx context.Context, address, name string) string {
	if rack, ok := m.known(address, name); ok {
		return rack
	}
	m.Resolve(ctx, []string{address})
	if rack, ok := m.known(address, name); ok {
		return rack
	}
	return DefaultRack
}

// Known tells whether Rack knows an address's rack, or that it has none, without asking the script.
func (m *Map) Known(address string) bool {
	_, ok := m.known(address, "")
	return ok
}

func (m *Map) known(address, name string) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range []string{address, name} {
		if rack, ok := m.table[key]; ok && key != "" {
			return rack, true
		}
	}
	if m.cfg.Script == "" || address == "" {
		return DefaultRack, true
	}
	a, ok := m.cached[address]
	return a.rack, ok && (a.until.IsZero() || time.Now().Before(a.until))
}

// Resolve asks the script for addresses that are not known yet, many at once.
func (m *Map) Resolve(ctx context.Context, addresses []string) {
	var ask []string
	for _, a := range addresses {
		if _, ok := m.known(a, ""); !ok && net.ParseIP(a) != nil {
			ask = append(ask, a)
		}
	}
	for len(ask) > 0 {
		n := min(len(ask), m.cfg.ScriptArgs)
		racks, err := m.run(ctx, ask[:n])
		if err != nil {
			m.cfg.Logger.Error("the script for racks failed; the hosts count as on the default rack", "script", m.cfg.Script, "hosts", ask[:n], "rack", DefaultRack, "for", unknownFor, "err", err)
		}
		m.mu.Lock()
		if len(m.cached) > maxCached {
			clear(m.cached)
		}
		for i, a := range ask[:n] {
			if err != nil {
				m.cached[a] = answer{DefaultRack, time.Now().Add(unknownFor)}
			} else {
				m.cached[a] = answer{rack: racks[i]}
			}
		}
		m.mu.Unlock()
		ask = ask[n:]
	}
}

func (m *Map) run(ctx context.Context, args []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, scriptTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, m.cfg.Script, args...)
	cmd.WaitDelay = time.Second // for children that keep the pipe open
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, err
	}
	racks := strings.Fields(string(out))
	if len(racks) != len(args) {
		return nil, fmt.Errorf("it printed %d racks for %d hosts", len(racks), len(args))
	}
	for i, r := range racks {
		if racks[i], err = normal(r); err != nil {
			return nil, err
		}
	}
	return racks, nil
}

// Distance tells how far two hosts are apart, as Hadoop counts: 0 for the same
// host, 2 on the same rack, and 2 more for each level up to what the racks share.
func Distance(rackA, hostA, rackB, hostB string) int {
	if rackA == rackB {
		if hostA == hostB {
			return 0
		}
		return 2
	}
	a, b := strings.Split(rackA, "/"), strings.Split(rackB, "/")
	common := 0
	for common < len(a) && common < len(b) && a[common] == b[common] {
		common++
	}
	return len(a) + len(b) - 2*common + 2
}
