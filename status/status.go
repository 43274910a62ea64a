// Package status holds what a process tells of itself as figures and tables, each with its unit,
// for people and for programs alike. Package page shows them to a browser and as JSON. What has
// something to tell implements [Source] and needs no more than this package, which imports
// nothing of the module.
package status

import (
	"encoding/json"
	"fmt"
	"time"
)

// A Source tells of one thing that a process has. It may be asked at any time, by several at
// once.
type Source interface{ Status() Section }

// A Section is what a source tells.
type Section struct {
	Name  string // its key in JSON, such as "runtime"; no other section of a page has it
	Title string // for people
	Note  string // a sentence on its state, if that is unusual
	Facts []Fact
	// Tables' names differ from each other and from the facts' keys.
	Tables []Table
}

// A Column says what a value is.
type Column struct {
	Key   string // in JSON; ends with the unit where there is one, such as "sent_bytes"
	Title string // for people
	Unit  string // of numbers, in the plural: [Bytes], "messages"; durations need none, nor do numbers that are names
}

// Bytes is the unit that people see as KiB, MiB and so on. JSON has bytes.
const Bytes = "bytes"

// A Fact is one value: a string, a bool, an integer, a [time.Duration], a [time.Time], several
// strings, or nil where there is none. Whatever else it is people see by its String method, or as
// fmt prints it.
type Fact struct {
	Column
	Value any
}

// A Table has rows, each with a value for each column, as those of a [Fact].
type Table struct {
	Name, Title string
	Columns     []Column
	Rows        [][]any
	Empty       string // is said if there is no row
}

// MarshalJSON implements [json.Marshaler]: an object with the facts, and an array of objects
// for each table. Durations are in seconds.
func (s Section) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	put := func(key string, v any) error {
		if _, twice := all[key]; twice {
			return fmt.Errorf("status: section %s has %q twice", s.Name, key)
		}
		all[key] = v
		return nil
	}
	if s.Note != "" {
		all["note"] = s.Note
	}
	for _, f := range s.Facts {
		if err := put(f.Key, plain(f.Value)); err != nil {
			return nil, err
		}
	}
	for _, t := range s.Tables {
		rows := make([]map[string]any, 0, len(t.Rows))
		for _, r := range t.Rows {
			if len(r) != len(t.Columns) {
				return nil, fmt.Errorf("status: table %s of section %s has %d columns, and a row of %d values", t.Name, s.Name, len(t.Columns), len(r))
			}
			row := make(map[string]any, len(r))
			for i, v := range r {
				row[t.Columns[i].Key] = plain(v)
			}
			rows = append(rows, row)
		}
		if err := put(t.Name, rows); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}

// plain is a value as JSON has it.
func plain(v any) any {
	switch v := v.(type) {
	case time.Duration:
		return v.Seconds()
	case error:
		return v.Error()
	case []string:
		if v == nil {
			return []string{}
		}
	}
	return v
}
