// Package conf reads Hadoop's configuration files: XML with a name and a value for
// each property, and what they include. Of what is in them it knows nothing but how Hadoop
// writes numbers, sizes, times and lists, and which names are older ones of others.
package conf

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxFile bounds a file, in bytes.
const maxFile = 16 << 20

// Files are what a directory of configuration has that concerns HDFS, in the order
// in which they are read.
var Files = []string{"core-site.xml", "hdfs-site.xml"}

// Properties are names with their values. A nil *Properties has none.
type Properties struct {
	values map[string]value
	paths  []string         // that were read
	set    map[string]value // by Set
}

type value struct {
	text, from string
	final      bool
}

// Read reads files, or directories with any of [Files] in them, each over the one
// before. A property that is final in one stays. Those of files that a file includes count
// as its own.
func Read(paths ...string) (*Properties, error) {
	p := &Properties{values: make(map[string]value), paths: paths}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("configuration of Hadoop: %w", err)
		}
		if !info.IsDir() {
			if err := p.add(path); err != nil {
				return nil, err
			}
			continue
		}
		found := false
		for _, name := range Files {
			err := p.add(filepath.Join(path, name))
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			found = found || err == nil
		}
		if !found {
			return nil, fmt.Errorf("configuration of Hadoop: the directory %s has none of %s", path, strings.Join(Files, ", "))
		}
	}
	return p, nil
}

// Set sets a property, whatever the files have; from says where that comes from.
func (p *Properties) Set(name, text, from string) {
	if p.values == nil {
		p.values = make(map[string]value)
	}
	name = Current(name)
	v := value{strings.TrimSpace(text), from, true}
	p.values[name] = v
	if p.set == nil {
		p.set = make(map[string]value)
	}
	p.set[name] = v
}

// Again reads the same files again. What was [Properties.Set] stays.
func (p *Properties) Again() (*Properties, error) {
	if p == nil {
		return nil, nil
	}
	again, err := Read(p.paths...)
	if err != nil {
		return nil, err
	}
	maps.Copy(again.values, p.set)
	again.set = p.set
	return again, nil
}

// Names are those of all properties, sorted.
func (p *Properties) Names() []string {
	if p == nil {
		return nil
	}
	var out []string
	for name := range p.values {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// String returns a property's text, with ${other.property}, ${env.NAME}, and
// ${env.NAME:-default} and ${env.NAME-default}, which are those of shells, in it replaced as
// Hadoop does. It stops at what is not set. An empty value counts as none.
func (p *Properties) String(name string) (text string, ok bool) {
	if p == nil {
		return "", false
	}
	v, ok := p.values[Current(name)]
	if !ok {
		return "", false
	}
	text = p.expand(v.text)
	return text, text != ""
}

// maxReplaced is how many references are replaced in a text; Hadoop refuses more.
const maxReplaced = 20

// reference is one without another inside.
var reference = regexp.MustCompile(`\$\{([^}$ ]+)\}`)

// expand replaces references, those inside others first. A text that is not done with after
// maxReplaced of them, as one that refers to itself, stays as it is.
func (p *Properties) expand(text string) string {
	before := text
	for range maxReplaced {
		at := reference.FindStringSubmatchIndex(text)
		if at == nil {
			return text
		}
		with, ok := p.referred(text[at[2]:at[3]])
		if !ok {
			return text
		}
		text = text[:at[0]] + with + text[at[1]:]
	}
	if reference.MatchString(text) {
		return before
	}
	return text
}

// referred is what a reference stands for.
func (p *Properties) referred(name string) (text string, ok bool) {
	if env, is := strings.CutPrefix(name, "env."); is && env != "" {
		env, without, defaults := strings.Cut(env, "-")
		env, emptyToo := strings.CutSuffix(env, ":")
		emptyToo = emptyToo && defaults
		text, ok = os.LookupEnv(env)
		switch {
		case defaults && (!ok || emptyToo && text == ""):
			return without, true
		case ok:
			return text, true
		}
	}
	v, ok := p.values[Current(name)]
	return v.text, ok
}

// From tells where a property comes from: a file, or what Set was told.
func (p *Properties) From(name string) string {
	if p == nil {
		return ""
	}
	return p.values[Current(name)].from
}

func (p *Properties) bad(name, text, want string) error {
	return fmt.Errorf("%s (%s): %q is not %s", name, p.From(name), text, want)
}

// Number returns a whole number of at least low; ok says whether there is one.
func (p *Properties) Number(name string, low int64) (n int64, ok bool, err error) {
	text, ok := p.String(name)
	if !ok {
		return 0, false, nil
	}
	n, err = strconv.ParseInt(text, 0, 64)
	if err != nil || n < low {
		return 0, false, p.bad(name, text, fmt.Sprintf("a whole number of at least %d", low))
	}
	return n, true, nil
}

// Fraction returns a number from 0 up.
func (p *Properties) Fraction(name string) (x float64, ok bool, err error) {
	text, ok := p.String(name)
	if !ok {
		return 0, false, nil
	}
	x, err = strconv.ParseFloat(text, 64)
	if err != nil || x < 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return 0, false, p.bad(name, text, "a number from 0 up")
	}
	return x, true, nil
}

// Bytes returns a size in bytes, which may end in k, m, g, t, p or e.
func (p *Properties) Bytes(name string) (n uint64, ok bool, err error) {
	text, ok := p.String(name)
	if !ok {
		return 0, false, nil
	}
	number, shift := strings.ToLower(text), 0
	if i := strings.IndexByte("kmgtpe", number[len(number)-1]); i >= 0 {
		number, shift = number[:len(number)-1], 10*(i+1)
	}
	n, err = strconv.ParseUint(strings.TrimSpace(number), 10, 63)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, false, p.bad(name, text, "a size in bytes, such as 134217728 or 128m")
	}
	return n << shift, true, nil
}

var timeUnits = []struct {
	suffix string
	unit   time.Duration
}{
	// The longer ones first: all end in s.
	{"ns", time.Nanosecond}, {"us", time.Microsecond}, {"ms", time.Millisecond},
	{"s", time.Second}, {"m", time.Minute}, {"h", time.Hour}, {"d", 24 * time.Hour},
}

// Time returns a time from 0 up; a number without a suffix (ns, us, ms, s, m, h, d) counts
// units.
func (p *Properties) Time(name string, unit time.Duration) (d time.Duration, ok bool, err error) {
	text, ok := p.String(name)
	if !ok {
		return 0, false, nil
	}
	number := strings.ToLower(text)
	for _, u := range timeUnits {
		if before, cut := strings.CutSuffix(number, u.suffix); cut {
			number, unit = before, u.unit
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/int64(unit) {
		return 0, false, p.bad(name, text, "a time, such as 30s or 5m")
	}
	return time.Duration(n) * unit, true, nil
}

// Bool returns true or false.
func (p *Properties) Bool(name string) (b, ok bool, err error) {
	text, ok := p.String(name)
	if !ok {
		return false, false, nil
	}
	switch strings.ToLower(text) {
	case "true":
		return true, true, nil
	case "false":
		return false, true, nil
	}
	return false, false, p.bad(name, text, "true or false")
}

// List returns the parts between commas, without the empty ones.
func (p *Properties) List(name string) []string {
	text, _ := p.String(name)
	var out []string
	for _, part := range strings.Split(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
