package providers

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// A field is a setting of a provider whose configuration is a C.
type field[C any] struct {
	name, usage, otherwise string
	set                    func(c *C, value string) error
}

// provider is the entry of a provider that has the fields. validate looks at all of
// a configuration.
func provider[C any](name string, fields []field[C], validate func(C) error, make func(C, Config) rdma.Provider) entry {
	e := entry{name: name}
	set := map[string]func(*C, string) error{}
	for _, f := range fields {
		full := name + "." + f.name
		set[full] = f.set
		e.settings = append(e.settings, Setting{Name: full, Usage: f.usage, Default: f.otherwise})
	}
	apply := func(c *C, setting, value string) error {
		if err := set[setting](c, value); err != nil {
			return fmt.Errorf("%s is %q: %w", setting, value, err)
		}
		return nil
	}
	e.try = func(setting, value string) (any, error) {
		var c C
		if err := apply(&c, setting, value); err != nil {
			return nil, err
		}
		if err := validate(c); err != nil {
			return nil, fmt.Errorf("%s is %q: %w", setting, value, err)
		}
		return c, nil
	}
	e.make = func(cfg Config) (rdma.Provider, error) {
		var c C
		for _, s := range e.settings {
			if value, ok := cfg.Settings[s.Name]; ok {
				if err := apply(&c, s.Name, value); err != nil {
					return nil, err
				}
			}
		}
		if err := validate(c); err != nil {
			return nil, err
		}
		return make(c, cfg), nil
	}
	return e
}

// What values look like.

func text(into *string, value string) error {
	*into = value
	return nil
}

func truth(into *bool, value string) error {
	switch value {
	case "true", "yes", "on", "1":
		*into = true
	case "false", "no", "off", "0":
		*into = false
	default:
		return fmt.Errorf("want true or false")
	}
	return nil
}

func number(into *int, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("want a number")
	}
	*into = n
	return nil
}

func duration(into *time.Duration, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("want a time with its unit, such as 5s")
	}
	if d <= 0 {
		return fmt.Errorf("want more than nothing")
	}
	*into = d
	return nil
}

func users(into *[]uint32, value string) error {
	var list []uint32
	for each := range strings.SplitSeq(value, ",") {
		uid, err := strconv.ParseUint(strings.TrimSpace(each), 10, 32)
		if err != nil {
			return fmt.Errorf("want users by number, as id -u prints them, with commas between")
		}
		list = append(list, uint32(uid))
	}
	*into = list
	return nil
}
