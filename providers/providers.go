// Package providers is the default set of providers: one table, in the order in
// which the runtime prefers them. Each has a file of its own, with its settings, and
// a build tag that leaves it out: noshm, noibverbs (which static binaries need) and
// noiwarp. Programs that want another set import the providers themselves;
// nothing else lives here.
package providers

import (
	"fmt"
	"log/slog"

	"github.com/verbena-data/verbena/rdma"
)

// table is all there is, the preferred ones first.
var table = []entry{shmEntry, ibverbsEntry, iwarpEntry}

// An entry is a provider, or tells why this binary has none of that name.
type entry struct {
	name     string
	absent   string // why it was left out; empty if it was not
	settings []Setting
	// try returns a configuration in which that one setting has the value.
	try  func(setting, value string) (any, error)
	make func(Config) (rdma.Provider, error)
}

// A Setting is what can be chosen about a provider, as text.
type Setting struct {
	// Name is the provider's, a dot and the setting's own: "shm.socket-dir".
	Name string
	// Usage says in a few words what it does and what it takes.
	Usage string
	// Default is what holds when it is not set.
	Default string
}

// Config says what the set may use, and do beyond this host.
type Config struct {
	// Settings are values by the name of their [Setting].
	Settings map[string]string
	Logger   *slog.Logger // default: slog.Default()
}

// Settings lists the settings of all providers of the set.
func Settings() []Setting {
	var all []Setting
	for _, e := range table {
		all = append(all, e.settings...)
	}
	return all
}

// Check tells what is wrong with a value by itself.
func Check(name, value string) error {
	for _, e := range table {
		for _, s := range e.settings {
			if s.Name == name {
				_, err := e.try(name, value)
				return err
			}
		}
	}
	return fmt.Errorf("there is no setting %q", name)
}

// Default returns a new set of providers, the preferred ones first, with the
// zero [Config].
func Default() []rdma.Provider {
	list, err := New(Config{})
	if err != nil {
		panic(err) // without settings there is nothing to be wrong
	}
	return list
}

// Names are those of the providers in the set, the preferred ones first.
func Names() []string {
	var names []string
	for _, e := range table {
		if e.absent == "" {
			names = append(names, e.name)
		}
	}
	return names
}

// Absent tells by name of the providers that this binary was built without, and why.
func Absent() map[string]string {
	absent := map[string]string{}
	for _, e := range table {
		if e.absent != "" {
			absent[e.name] = e.absent
		}
	}
	return absent
}

// New returns a new set of providers, the preferred ones first. It opens nothing.
// It fails if a setting is unknown, or a value is wrong by itself or beside others.
func New(cfg Config) ([]rdma.Provider, error) {
	for name, value := range cfg.Settings {
		if err := Check(name, value); err != nil {
			return nil, err
		}
	}
	var list []rdma.Provider
	for _, e := range table {
		if e.absent != "" {
			continue
		}
		p, err := e.make(cfg)
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, nil
}
