package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/verbena-data/verbena/bench/internal/beside"
	"github.com/verbena-data/verbena/bench/internal/host"
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
	Runs     map[string]host.Machine `json:"runs"`
	Compare  []verdict               `json:"compare,omitempty"`
	Dispatch []dispatch              `json:"dispatch,omitempty"`
	Lab      []verdict               `json:"lab,omitempty"`
	Growth   *growth                 `json:"growth,omitempty"`
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
	if b.root, err = host.ModuleRoot(ctx); err != nil {
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
		if err := host.Build(ctx, b.root, b.verbena, []string{"build"}, "./cmd/verbena"); err != nil {
			return err
		}
	}
	r, err := b.load()
	if err != nil {
		return err
	}
	machine := host.Describe(ctx, b.root, map[string]string{"UCX": "ucx-utils", "libfabric": "libfabric-bin", "perftest": "perftest"})
	machine.Label, machine.Short = b.label, b.short
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
	r := &results{Runs: map[string]host.Machine{}}
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
