// Package conf reads Hadoop's configuration files: XML with a name and a value for
// each property. Of what is in them it knows nothing but how Hadoop writes
// numbers, sizes, times and lists.
package conf

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
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
// before. A property that is final in one stays.
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

func (p *Properties) add(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var doc struct {
		XMLName    xml.Name `xml:"configuration"`
		Properties []struct {
			Name  string `xml:"name"`
			Value string `xml:"value"`
			Final string `xml:"final"`
		} `xml:"property"`
	}
	if err := xml.NewDecoder(io.LimitReader(f, maxFile)).Decode(&doc); err != nil {
		return fmt.Errorf("configuration of Hadoop: %s: %w", path, err)
	}
	for _, each := range doc.Properties {
		name := strings.TrimSpace(each.Name)
		if name == "" || p.values[name].final {
			continue
		}
		p.values[name] = value{strings.TrimSpace(each.Value), path, strings.TrimSpace(each.Final) == "true"}
	}
	return nil
}

// Set sets a property, whatever the files have; from says where that comes from.
func (p *Properties) Set(name, text, from string) {
	if p.values == nil {
		p.values = make(map[string]value)
	}
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

// String returns a property's text, with ${other.property} and ${env.NAME} in it
// replaced as Hadoop does. An empty value counts as none.
func (p *Properties) String(name string) (text string, ok bool) {
	if p == nil {
		return "", false
	}
	v, ok := p.values[name]
	if !ok {
		return "", false
	}
	text = p.expand(v.text, 0)
	return text, text != ""
}

// maxDepth is how deep references may be nested; Hadoop has the same.
const maxDepth = 20

func (p *Properties) expand(text string, depth int) string {
	begin := strings.Index(text, "${")
	if begin < 0 || depth == maxDepth {
		return text
	}
	length := strings.IndexByte(text[begin:], '}')
	if length < 0 {
		return text
	}
	name, rest := text[begin+2:begin+length], p.expand(text[begin+length+1:], depth)
	var with string
	if env, ok := strings.CutPrefix(name, "env."); ok {
		with = os.Getenv(env)
	} else if v, ok := p.values[name]; ok {
		with = p.expand(v.text, depth+1)
	} else {
		with = "${" + name + "}"
	}
	return text[:begin] + with + rest
}

// From tells where a property comes from: a file, or what Set was told.
func (p *Properties) From(name string) string {
	if p == nil {
		return ""
	}
	return p.values[name].from
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
