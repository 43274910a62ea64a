package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/bench/internal/beside"
)

// A bench is a run of the command.
type bench struct {
	rounds         int
	short, quick   bool
	json           bool
	only, out      string
	parts          []string
	verbena, label string
	root           string // of the tree
	temporary      string
	skipped        []string
}

// results are the raw figures, docs/benchmarks/fabric.json.
type results struct {
	// Runs tells of each part when and on what it was measured.
	Runs     map[string]machine `json:"runs"`
	Compare  []verdict          `json:"compare,omitempty"`
	Dispatch []dispatch         `json:"dispatch,omitempty"`
	Lab      []verdict          `json:"lab,omitempty"`
	Growth   *growth            `json:"growth,omitempty"`
}

// machine is what the figures were measured on.
type machine struct {
	Date       string            `json:"date"`
	Commit     string            `json:"commit"`
	Changed    bool              `json:"changed"` // files that are not committed
	OS         string            `json:"os"`
	Processor  string            `json:"processor"`
	Processors int               `json:"processors"`
	Go         string            `json:"go"`
	Peers      map[string]string `json:"peers"`
	Label      string            `json:"label,omitempty"`
	Short      bool              `json:"short,omitempty"`
	Load       float64           `json:"load"` // average of the last minute, at the start
}

func (b *bench) run(ctx context.Context) (err error) {
	switch {
	case b.short:
		b.rounds = 2
	case b.quick:
		b.rounds, b.parts = 3, []string{"compare", "dispatch"}
	case b.rounds < 5:
		return errors.New("fewer than 5 rounds tell nothing: use --quick for a first look, --short to try the path")
	}
	if b.quick && !b.json && b.out == "" {
		return errors.New("--quick would replace figures of a whole run: add --json, or --out for a page elsewhere")
	}
	if runtime.NumCPU() < 2 {
		return errors.New("two processors are needed, one for each end")
	}
	if b.root, err = moduleRoot(ctx); err != nil {
		return err
	}
	if b.out == "" {
		b.out = filepath.Join(b.root, "docs", "benchmarks")
	}
	if !b.json {
		if err := os.MkdirAll(b.out, 0o755); err != nil {
			return err
		}
	}
	if b.temporary, err = os.MkdirTemp("", "verbena-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.temporary)) }()
	if b.verbena == "" {
		b.verbena = filepath.Join(b.temporary, "verbena")
		if err := b.build(ctx, b.root, b.verbena, "./cmd/verbena"); err != nil {
			return err
		}
	}
	r, err := b.load()
	if err != nil {
		return err
	}
	machine := b.machine(ctx)
	parts := []struct {
		name string
		run  func() error
	}{
		{"compare", func() (err error) { r.Compare, err = b.compare(ctx); return err }},
		{"dispatch", func() (err error) { r.Dispatch, err = b.dispatch(ctx); return err }},
		{"lab", func() (err error) { r.Lab, err = b.lab(ctx); return err }},
		{"growth", func() (err error) { r.Growth, err = b.grow(ctx); return err }},
	}
	for _, part := range b.parts {
		i := slices.IndexFunc(parts, func(p struct {
			name string
			run  func() error
		}) bool {
			return p.name == part
		})
		if i < 0 {
			return fmt.Errorf("--parts: there is no %q", part)
		}
	}
	var measured []string
	for _, part := range parts {
		if !slices.Contains(b.parts, part.name) {
			continue
		}
		before := *r
		if err := part.run(); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			*r = before // as it was
			b.skipped = append(b.skipped, fmt.Sprintf("%s: %v", part.name, err))
			fmt.Fprintf(os.Stderr, "%s is left as it was: %v\n", part.name, err)
			continue
		}
		measured = append(measured, part.name)
		r.Runs[part.name] = machine
	}
	if b.json {
		err = beside.Write(os.Stdout, r.rows(measured))
	} else {
		err = b.write(r)
	}
	if err != nil {
		return err
	}
	if len(b.skipped) > 0 {
		return fmt.Errorf("not everything could be measured: %s", strings.Join(b.skipped, "; "))
	}
	return nil
}

// load reads the results that are there, for the parts that are not measured
// again.
func (b *bench) load() (*results, error) {
	r := &results{Runs: map[string]machine{}}
	raw, err := os.ReadFile(filepath.Join(b.out, "fabric.json"))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, r)
	}
	if err != nil {
		return nil, fmt.Errorf("the results that are there: %w: remove the file to begin anew", err)
	}
	return r, nil
}

func (b *bench) build(ctx context.Context, dir, out, pkg string, env ...string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", out, pkg)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, tail(string(text)))
	}
	return nil
}

// moduleRoot is the folder above this module.
func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	file := strings.TrimSpace(string(out))
	dir := filepath.Dir(file)
	if filepath.Base(dir) != "bench" {
		return "", fmt.Errorf("run it in the module bench (go -C bench run ./fabric), not in %s", dir)
	}
	return filepath.Dir(dir), nil
}

func (b *bench) machine(ctx context.Context) machine {
	m := machine{
		Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), Processors: runtime.NumCPU(), Go: runtime.Version(),
		Label: b.label, Short: b.short, Peers: map[string]string{},
	}
	// What cannot be told stays empty.
	line := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = b.root
		out, err := cmd.Output()
		if err != nil {
			return ""
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return first
	}
	m.Commit = line("git", "rev-parse", "--short=12", "HEAD")
	m.Changed = line("git", "status", "--porcelain", "--untracked-files=no") != ""
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.OS = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + runtime.GOARCH
	}
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.Processor = strings.TrimSpace(value)
				break
			}
		}
	}
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(raw), &m.Load) // 0 says that it is not known
	}
	for name, pkg := range map[string]string{"UCX": "ucx-utils", "libfabric": "libfabric-bin", "perftest": "perftest"} {
		m.Peers[name] = line("dpkg-query", "-W", "-f", "${Version}", pkg)
	}
	return m
}
