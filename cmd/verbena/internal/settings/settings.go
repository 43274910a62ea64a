// Package settings reads what the binary may be told about its providers and its
// tuning: from a file in YAML, from the environment and from flags. A flag comes
// before the environment, the environment before the file. Whatever is unknown or
// out of range is refused, with the place where it stands.
package settings

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// FileVariable names the file in the environment, where no flag does.
const FileVariable = "VERBENA_CONFIG"

// tuningPrefix begins the names of tuning: "tuning.shm.eager".
const tuningPrefix = "tuning."

// memoryPrefix begins the names of the runtime's memory: "memory.receive".
const memoryPrefix = "memory."

// sections are those of a file.
func sections() []string { return append(providers.Names(), "memory", "tuning", rulesSection) }

// A Value is what was set, and where.
type Value struct {
	Text string
	// From is the place, as errors name it: "verbena.yaml:3", "environment
	// VERBENA_SHM_SOCKET_DIR", "--set".
	From string
}

// Settings are values by the name of the setting: those of providers.Settings and of
// Memory, "tuning.TRANSPORT.FIELD", and "rules.1" and so on.
type Settings map[string]Value

// A Flag is a setting by the command line. Those that are named "rules" are one rule
// each, and together replace the rules of other places.
type Flag struct{ Flag, Name, Text string }

// Load puts everything together. file is what a flag names, or empty; environment
// is as os.Environ returns it.
func Load(file string, environment []string, flags []Flag) (Settings, error) {
	all := Settings{}
	if file == "" {
		for _, each := range environment {
			if value, ok := strings.CutPrefix(each, FileVariable+"="); ok {
				file = value
			}
		}
	}
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("configuration file: %w", err)
		}
		defer f.Close()
		read, err := parse(file, f)
		if err != nil {
			return nil, err
		}
		maps.Copy(all, read)
	}
	for _, each := range environment {
		if text, ok := strings.CutPrefix(each, Variable(rulesSection)+"="); ok {
			if err := all.replaceRules(splitRules(text, "environment "+Variable(rulesSection))); err != nil {
				return nil, err
			}
		}
	}
	fromEnvironment, err := parseEnvironment(environment)
	if err != nil {
		return nil, err
	}
	maps.Copy(all, fromEnvironment)
	var rules []Value
	for _, f := range flags {
		if f.Name == rulesSection {
			rules = append(rules, splitRules(f.Text, f.Flag)...)
			continue
		}
		if err := all.set(f.Name, Value{f.Text, f.Flag}); err != nil {
			return nil, err
		}
	}
	if len(rules) > 0 {
		if err := all.replaceRules(rules); err != nil {
			return nil, err
		}
	}
	if _, err := providers.New(providers.Config{Settings: all.Providers()}); err != nil {
		return nil, fmt.Errorf("%w (set by %s)", err, all.places(""))
	}
	// Each value of the tuning is right by itself, perhaps not beside the others.
	if _, err := all.tuning(); err != nil {
		return nil, fmt.Errorf("%w (set by %s)", err, all.places(tuningPrefix))
	}
	return all, nil
}

// set checks a value and takes it.
func (s Settings) set(name string, v Value) error {
	var err error
	if tuned, ok := strings.CutPrefix(name, tuningPrefix); ok {
		if transport, _, _ := strings.Cut(tuned, "."); !slices.Contains(transports(), transport) {
			err = fmt.Errorf("tuning of %q: there are %s", transport, strings.Join(transports(), ", "))
		} else {
			err = verbena.TuningTable{}.Set(tuned, v.Text)
		}
	} else if strings.HasPrefix(name, memoryPrefix) {
		err = setMemory(new(verbena.Config), name, v.Text)
	} else if err = providers.Check(name, v.Text); err != nil && !slices.Contains(Names(), name) {
		err = unknown(name)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", v.From, err)
	}
	s[name] = v
	return nil
}

// unknown is the error about a setting that does not exist.
func unknown(name string) error {
	provider, _, _ := strings.Cut(name, ".")
	if why, ok := providers.Absent()[provider]; ok {
		return fmt.Errorf("there is no provider %s: %s", provider, why)
	}
	var near []string
	for _, each := range Names() {
		if strings.HasPrefix(each, provider+".") {
			near = append(near, each)
		}
	}
	if len(near) == 0 {
		near = sections()
	}
	return fmt.Errorf("there is no setting %q; there are %s", name, strings.Join(near, ", "))
}

// Names are those of all settings of providers, in the order of their table, and of
// the memory.
func Names() []string {
	var names []string
	for _, s := range slices.Concat(providers.Settings(), memorySettings) {
		names = append(names, s.Name)
	}
	return names
}

func transports() []string { return append(providers.Names(), verbena.TransportTCP) }

// TuningNames are those of all settings of the tuning.
func TuningNames() []string {
	var names []string
	for _, transport := range transports() {
		for _, field := range verbena.TuningNames() {
			names = append(names, tuningPrefix+transport+"."+field)
		}
	}
	return names
}

// Variable is the name of a setting in the environment: VERBENA_SHM_SOCKET_DIR.
func Variable(name string) string {
	return "VERBENA_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(name))
}

func parseEnvironment(environment []string) (Settings, error) {
	byVariable := map[string]string{}
	for _, name := range slices.Concat(Names(), TuningNames()) {
		byVariable[Variable(name)] = name
	}
	var prefixes []string
	for _, section := range sections() {
		prefixes = append(prefixes, Variable(section)+"_")
	}
	read := Settings{}
	for _, each := range environment {
		variable, value, _ := strings.Cut(each, "=")
		name, ok := byVariable[variable]
		if !ok {
			for _, prefix := range prefixes {
				if strings.HasPrefix(variable, prefix) {
					return nil, fmt.Errorf("environment: %s is no setting: `verbena info --settings` lists them", variable)
				}
			}
			continue
		}
		if err := read.set(name, Value{value, "environment " + variable}); err != nil {
			return nil, err
		}
	}
	return read, nil
}

// parse reads a file. Its keys are sections of settings; a setting's value is a
// scalar, or a list of scalars.
func parse(file string, from io.Reader) (Settings, error) {
	decoder := yaml.NewDecoder(from)
	var document, more yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return Settings{}, nil // empty, or comments alone
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s:%d: one document is wanted, there are more", file, max(more.Line, 1))
	}
	read := Settings{}
	if len(document.Content) != 1 || document.Content[0].Tag == "!!null" {
		return read, nil
	}
	return read, read.walk(file, "", document.Content[0], 0)
}

// deepest is how deep a setting stands: tuning, its transport, its field.
const deepest = 3

func (s Settings) walk(file, prefix string, node *yaml.Node, depth int) error {
	fail := func(n *yaml.Node, format string, args ...any) error {
		return fmt.Errorf("%s:%d: "+format, append([]any{file, n.Line}, args...)...)
	}
	switch node.Kind {
	case yaml.MappingNode:
		if depth == deepest {
			return fail(node, "%s is a setting and wants a value, not a section", strings.TrimSuffix(prefix, "."))
		}
		seen := map[string]bool{}
		for i := 0; i < len(node.Content); i += 2 {
			key, value := node.Content[i], node.Content[i+1]
			if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
				return fail(key, "a key is a word")
			}
			if seen[key.Value] {
				return fail(key, "%s%s is there twice", prefix, key.Value)
			}
			seen[key.Value] = true
			name := prefix + key.Value
			if depth == 0 && key.Value == rulesSection {
				if err := s.readRules(file, value); err != nil {
					return err
				}
				continue
			}
			if depth == 0 && value.Kind != yaml.MappingNode {
				if value.Tag == "!!null" {
					continue // a section with nothing in it
				}
				return fail(key, "%w", unknown(name))
			}
			if err := s.walk(file, name+".", value, depth+1); err != nil {
				return err
			}
		}
		return nil
	case yaml.ScalarNode, yaml.SequenceNode:
		name := strings.TrimSuffix(prefix, ".")
		text := node.Value
		if node.Kind == yaml.SequenceNode {
			var list []string
			for _, each := range node.Content {
				if each.Kind != yaml.ScalarNode || strings.Contains(each.Value, ",") {
					return fail(each, "%s wants a list of plain values", name)
				}
				list = append(list, each.Value)
			}
			text = strings.Join(list, ",")
		}
		if name == "" {
			return fail(node, "sections are wanted: %s", strings.Join(sections(), ", "))
		}
		return s.set(name, Value{text, fmt.Sprintf("%s:%d", file, node.Line)})
	default:
		return fail(node, "%s: aliases are not taken: write the value", strings.TrimSuffix(prefix, "."))
	}
}

// readRules reads the list of rules.
func (s Settings) readRules(file string, node *yaml.Node) error {
	if node.Tag == "!!null" {
		return nil
	}
	if node.Kind != yaml.SequenceNode {
		return fmt.Errorf("%s:%d: rules want a list, each rule a line: \"bulk: size=1M.. only=tcp\"", file, node.Line)
	}
	var lines []Value
	for _, each := range node.Content {
		if each.Kind != yaml.ScalarNode {
			return fmt.Errorf("%s:%d: a rule is a line of text in quotes: \"bulk: size=1M.. only=tcp\"", file, each.Line)
		}
		lines = append(lines, Value{each.Value, fmt.Sprintf("%s:%d", file, each.Line)})
	}
	return s.replaceRules(lines)
}

// Providers are the values for providers.Config.
func (s Settings) Providers() map[string]string {
	values := map[string]string{}
	for name, v := range s {
		if !strings.HasPrefix(name, tuningPrefix) && !strings.HasPrefix(name, memoryPrefix) && !strings.HasPrefix(name, rulesPrefix) {
			values[name] = v.Text
		}
	}
	return values
}

// Tuning is the table for verbena.Config. Load has checked it.
func (s Settings) Tuning() verbena.TuningTable {
	table, err := s.tuning()
	if err != nil {
		return nil // Load would have failed
	}
	return table
}

func (s Settings) tuning() (verbena.TuningTable, error) {
	table := verbena.TuningTable{}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if tuned, ok := strings.CutPrefix(name, tuningPrefix); ok {
			if err := table.Set(tuned, s[name].Text); err != nil {
				return nil, err
			}
		}
	}
	return table, nil
}

// places lists where the settings come from whose names begin with the prefix; for
// none, all but the tuning.
func (s Settings) places(prefix string) string {
	var places []string
	for _, name := range slices.Sorted(maps.Keys(s)) {
		if strings.HasPrefix(name, tuningPrefix) == (prefix == tuningPrefix) && !strings.HasPrefix(name, rulesPrefix) {
			places = append(places, name+" by "+s[name].From)
		}
	}
	return strings.Join(places, ", ")
}
