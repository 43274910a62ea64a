package avro

import (
	"encoding/json"
	"fmt"
	"strings"
)

type kind uint8

const (
	kindNull kind = iota
	kindBoolean
	kindInt
	kindLong
	kindFloat
	kindDouble
	kindBytes
	kindString
	kindRecord
	kindEnum
	kindArray
	kindMap
	kindUnion
	kindFixed
)

var primitives = map[string]kind{
	"null": kindNull, "boolean": kindBoolean, "int": kindInt, "long": kindLong,
	"float": kindFloat, "double": kindDouble, "bytes": kindBytes, "string": kindString,
}

// A schema tells what a value is. One that refers to itself is a cycle.
type schema struct {
	kind  kind
	name  string    // of its branch in a union
	of    []*schema // fields of a record, branches of a union, or what an array or map has
	names []string  // of fields, or symbols of an enum
	size  int       // bytes of a fixed
}

// scope is the names that a schema has defined so far.
type scope map[string]*schema

// parseSchema parses a schema in JSON. Logical types are what they are made of, and what
// does not bear on the bytes, such as defaults, is left aside.
func parseSchema(text []byte) (*schema, error) {
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, fmt.Errorf("%w: its schema: %w", ErrMalformed, err)
	}
	return scope{}.parse(v, "")
}

// parse parses a schema within a namespace.
func (s scope) parse(v any, namespace string) (*schema, error) {
	switch v := v.(type) {
	case string:
		if k, ok := primitives[v]; ok {
			return &schema{kind: k, name: v}, nil
		}
		if t := s[fullName(v, namespace)]; t != nil {
			return t, nil
		}
		return nil, fmt.Errorf("%w: its schema has no type %q", ErrMalformed, v)
	case []any:
		u := &schema{kind: kindUnion}
		for _, branch := range v {
			t, err := s.parse(branch, namespace)
			if err != nil {
				return nil, err
			}
			u.of = append(u.of, t)
		}
		return u, nil
	case map[string]any:
		return s.parseObject(v, namespace)
	}
	return nil, fmt.Errorf("%w: its schema has %v where a type is due", ErrMalformed, v)
}

func (s scope) parseObject(v map[string]any, namespace string) (*schema, error) {
	name, ok := v["type"].(string)
	if !ok {
		return s.parse(v["type"], namespace)
	}
	t := &schema{name: name}
	var inner string
	switch name {
	case "array":
		t.kind, inner = kindArray, "items"
	case "map":
		t.kind, inner = kindMap, "values"
	case "record", "error", "enum", "fixed":
		return s.parseNamed(v, namespace)
	default:
		return s.parse(name, namespace)
	}
	of, err := s.parse(v[inner], namespace)
	if err != nil {
		return nil, err
	}
	t.of = []*schema{of}
	return t, nil
}

func (s scope) parseNamed(v map[string]any, namespace string) (*schema, error) {
	name, _ := v["name"].(string)
	if name == "" {
		return nil, fmt.Errorf("%w: its schema has a %v without a name", ErrMalformed, v["type"])
	}
	if own, ok := v["namespace"].(string); ok {
		namespace = own
	}
	name = fullName(name, namespace)
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		namespace = name[:dot]
	}
	if s[name] != nil {
		return nil, fmt.Errorf("%w: its schema defines %s twice", ErrMalformed, name)
	}
	t := &schema{name: name}
	s[name] = t
	switch v["type"] {
	case "fixed":
		t.kind = kindFixed
		size, ok := v["size"].(float64)
		if !ok || size < 0 || size > MaxBlock || size != float64(int(size)) {
			return nil, fmt.Errorf("%w: its schema has %s of %v bytes", ErrMalformed, name, v["size"])
		}
		t.size = int(size)
	case "enum":
		t.kind = kindEnum
		symbols, _ := v["symbols"].([]any)
		for _, symbol := range symbols {
			text, ok := symbol.(string)
			if !ok {
				return nil, fmt.Errorf("%w: its schema has %v for a symbol of %s", ErrMalformed, symbol, name)
			}
			t.names = append(t.names, text)
		}
	default:
		t.kind = kindRecord
		fields, ok := v["fields"].([]any)
		if !ok {
			return nil, fmt.Errorf("%w: its schema has %s without fields", ErrMalformed, name)
		}
		for _, f := range fields {
			field, _ := f.(map[string]any)
			text, ok := field["name"].(string)
			if !ok {
				return nil, fmt.Errorf("%w: its schema has %v for a field of %s", ErrMalformed, f, name)
			}
			of, err := s.parse(field["type"], namespace)
			if err != nil {
				return nil, err
			}
			t.names, t.of = append(t.names, text), append(t.of, of)
		}
	}
	return t, nil
}

// fullName is a name with its namespace.
func fullName(name, namespace string) string {
	if namespace == "" || strings.Contains(name, ".") {
		return name
	}
	return namespace + "." + name
}
