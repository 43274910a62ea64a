// Package hosts reads the lists by which operators of HDFS admit DataNodes and take
// them out of service: two files of names (dfs.hosts, dfs.hosts.exclude), or one in
// JSON (Hadoop's CombinedHostFileManager).
//
// It knows nothing of DataNodes but their addresses and names.
package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// State is what an operator wants of a DataNode.
type State int

// The states.
const (
	InService      State = iota
	Decommissioned       // its replicas are to be elsewhere, too, then it may go
	Maintenance          // it will be away for a while
	Refused              // it may not register
)

// Rule is what a list says of one DataNode.
type Rule struct {
	State State
	Until time.Time // the end of a maintenance; zero: none
}

// Config names the files. An empty name is an empty list, and with an empty Include
// all DataNodes are admitted.
type Config struct {
	Include string
	Exclude string
	// Combined says that Include is a JSON file that stands for both.
	Combined bool
	Logger   *slog.Logger // default: slog.Default()
}

// List is what the files said when they were read. It does not change.
type List struct {
	included []entry
	rules    []entry
	admitAll bool
}

type entry struct {
	names []string // as written, and the addresses that it has
	port  uint32   // 0: any
	rule  Rule
}

// maxFile bounds each file, in bytes.
const maxFile = 16 << 20

// Read reads the files, and looks up the names in them; a name that can't be
// looked up is compared as it is.
func Read(ctx context.Context, cfg Config) (*List, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	l := &List{admitAll: true}
	var err error
	switch {
	case cfg.Combined && cfg.Include != "":
		err = l.readCombined(cfg.Include)
	case cfg.Combined:
	default:
		if cfg.Include != "" {
			l.included, err = readNames(cfg.Include)
			l.admitAll = len(l.included) == 0
		}
		if cfg.Exclude != "" && err == nil {
			l.rules, err = readNames(cfg.Exclude)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("the list of hosts: %w", err)
	}
	for _, list := range [][]entry{l.included, l.rules} {
		for i := range list {
			list[i].lookUp(ctx, cfg.Logger)
		}
	}
	return l, nil
}

func readAll(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s is longer than %d bytes", name, maxFile)
	}
	return data, err
}

// readNames reads names between white space; # begins a comment.
func readNames(name string) ([]entry, error) {
	data, err := readAll(name)
	if err != nil {
		return nil, err
	}
	var out []entry
	for i, line := range strings.Split(string(data), "\n") {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			e, err := parse(word)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", name, i+1, err)
			}
			e.rule.State = Decommissioned
			out = append(out, e)
		}
	}
	return out, nil
}

func parse(word string) (entry, error) {
	if net.ParseIP(word) != nil {
		return entry{names: []string{word}}, nil
	}
	host, text, err := net.SplitHostPort(word)
	if err != nil {
		if strings.ContainsAny(word, ":[]") {
			return entry{}, fmt.Errorf("%q is neither a host nor host:port", word)
		}
		return entry{names: []string{word}}, nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || host == "" {
		return entry{}, fmt.Errorf("%q is neither a host nor host:port", word)
	}
	return entry{names: []string{host}, port: uint32(port)}, nil
}

// readCombined reads an array of objects, or, as older versions of Hadoop wrote
// it, objects one after the other.
func (l *List) readCombined(name string) error {
	data, err := readAll(name)
	if err != nil {
		return err
	}
	type host struct {
		HostName    string          `json:"hostName"`
		Port        uint32          `json:"port"`
		AdminState  string          `json:"adminState"`
		Maintenance json.RawMessage `json:"maintenanceExpireTimeInMS"` // a number, or one in quotes
	}
	var all []host
	if err := json.Unmarshal(data, &all); err != nil {
		all = nil
		d := json.NewDecoder(strings.NewReader(string(data)))
		for {
			var h host
			next := d.Decode(&h)
			if errors.Is(next, io.EOF) {
				break
			}
			if next != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			all = append(all, h)
		}
	}
	l.admitAll = len(all) == 0
	for i, h := range all {
		if h.HostName == "" || h.Port > 65535 {
			return fmt.Errorf("%s: host %d has no hostName, or a wrong port", name, i+1)
		}
		e := entry{names: []string{h.HostName}, port: h.Port}
		l.included = append(l.included, e)
		switch h.AdminState {
		case "", "NORMAL":
			continue
		case "DECOMMISSIONED", "DECOMMISSION_INPROGRESS":
			e.rule.State = Decommissioned
		case "IN_MAINTENANCE", "ENTERING_MAINTENANCE":
			e.rule.State = Maintenance
			if text := strings.Trim(string(h.Maintenance), `"`); text != "" && text != "null" {
				ms, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return fmt.Errorf("%s: maintenanceExpireTimeInMS of %s: %q is not a number", name, h.HostName, text)
				}
				e.rule.Until = time.UnixMilli(ms)
			}
		default:
			return fmt.Errorf("%s: adminState %q of %s is none of NORMAL, DECOMMISSIONED, IN_MAINTENANCE", name, h.AdminState, h.HostName)
		}
		l.rules = append(l.rules, e)
	}
	return nil
}

func (e *entry) lookUp(ctx context.Context, logger *slog.Logger) {
	host := e.names[0]
	if net.ParseIP(host) != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupHost(ctx, host)
	if err != nil {
		logger.Warn("a name in the list of hosts can't be looked up and is compared as it is", "host", host, "err", err)
	}
	e.names = append(e.names, addrs...)
}

func (e *entry) matches(address, name string, port uint32) bool {
	if e.port != 0 && e.port != port {
		return false
	}
	for _, n := range e.names {
		if n == address || strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

// Rule tells what is wanted of the DataNode with that address, name and port. A nil
// list wants all in service. A maintenance that is over counts as none.
func (l *List) Rule(address, name string, port uint32, now time.Time) Rule {
	if l == nil {
		return Rule{}
	}
	admitted := l.admitAll
	for _, e := range l.included {
		admitted = admitted || e.matches(address, name, port)
	}
	if !admitted {
		return Rule{State: Refused}
	}
	for _, e := range l.rules {
		if e.matches(address, name, port) && (e.rule.Until.IsZero() || now.Before(e.rule.Until)) {
			return e.rule
		}
	}
	return Rule{}
}

// Names tells whether a list of admitted DataNodes is kept at all.
func (l *List) Names() bool { return l != nil && !l.admitAll }
