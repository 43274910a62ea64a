package acl

import (
	"fmt"
	"slices"
	"sort"
)

// Error tells why a list can't be.
type Error struct{ reason string }

func (e *Error) Error() string { return e.reason }

func invalid(format string, args ...any) error {
	return &Error{reason: fmt.Sprintf(format, args...)}
}

// change is a list that is being made. Masks stand apart until it is known
// whether they stay.
type change struct {
	entries []Entry
	masks   [2]*Entry // by scope: those given, or kept
	// touched are the scopes in which an entry was added or removed, remasked those in
	// which a mask was.
	touched, remasked [2]bool
}

func (c *change) keep(e Entry) {
	if e.Type == Mask {
		c.masks[e.Scope] = &e
		return
	}
	c.entries = append(c.entries, e)
}

func (c *change) give(e Entry) {
	c.touched[e.Scope] = true
	c.remasked[e.Scope] = c.remasked[e.Scope] || e.Type == Mask
	c.keep(e)
}

// Merge is modifyAclEntries: the entries of spec replace those for the same, or
// are added.
func Merge(full, spec []Entry) ([]Entry, error) {
	spec, err := sorted(spec)
	if err != nil {
		return nil, err
	}
	var (
		c     change
		found []Entry
	)
	for _, e := range full {
		if at, ok := search(spec, e); ok {
			found = append(found, spec[at])
			c.give(spec[at])
			continue
		}
		c.keep(e)
	}
	for _, e := range spec {
		if _, ok := search(found, e); !ok {
			c.give(e)
		}
	}
	return c.finish()
}

// Filter is removeAclEntries: it takes away the entries that spec names, whatever
// their permissions.
func Filter(full, spec []Entry) ([]Entry, error) {
	spec, err := sorted(spec)
	if err != nil {
		return nil, err
	}
	var c change
	for _, e := range full {
		if _, ok := search(spec, e); ok {
			c.touched[e.Scope] = true
			c.remasked[e.Scope] = c.remasked[e.Scope] || e.Type == Mask
			continue
		}
		c.keep(e)
	}
	return c.finish()
}

// FilterDefault is removeDefaultAcl.
func FilterDefault(full []Entry) ([]Entry, error) {
	return validate(slices.Clone(full[:defaults(full)]))
}

// Replace is setAcl: the entries of spec replace those of the scopes that it names.
func Replace(full, spec []Entry) ([]Entry, error) {
	spec, err := sorted(spec)
	if err != nil {
		return nil, err
	}
	var c change
	for _, e := range spec {
		c.give(e)
	}
	touched := c.touched
	for _, e := range full {
		if !touched[e.Scope] {
			c.keep(e)
		}
	}
	return c.finish()
}

// sorted checks and orders what a client has sent.
func sorted(spec []Entry) ([]Entry, error) {
	spec = slices.Clone(spec)
	slices.SortStableFunc(spec, compare)
	return spec, checkCount(spec)
}

func checkCount(entries []Entry) error {
	at := defaults(entries)
	if at > MaxEntries {
		return invalid("Invalid ACL: ACL has %d access entries, which exceeds maximum of %d.", at, MaxEntries)
	}
	if n := len(entries) - at; n > MaxEntries {
		return invalid("Invalid ACL: ACL has %d default entries, which exceeds maximum of %d.", n, MaxEntries)
	}
	return nil
}

// search finds an entry for the same. Of several it takes the one that Java's
// Collections.binarySearch takes: a client may send some twice.
func search(entries []Entry, key Entry) (int, bool) {
	low, high := 0, len(entries)-1
	for low <= high {
		mid := (low + high) / 2
		switch order := compare(entries[mid], key); {
		case order < 0:
			low = mid + 1
		case order > 0:
			high = mid - 1
		default:
			return mid, true
		}
	}
	return low, false
}

func (c *change) finish() ([]Entry, error) {
	c.copyDefaults()
	if err := c.addMasks(); err != nil {
		return nil, err
	}
	return validate(c.entries)
}

// base are those of whom every list has an entry.
var base = [...]Type{User, Group, Other}

// copyDefaults completes a default list with entries of the access list.
func (c *change) copyDefaults() {
	slices.SortStableFunc(c.entries, compare)
	at := defaults(c.entries)
	if at == len(c.entries) {
		return
	}
	var copied []Entry
	for _, typ := range base {
		if _, ok := search(c.entries, Entry{Scope: Default, Type: typ}); ok {
			continue
		}
		if i, ok := search(c.entries, Entry{Scope: Access, Type: typ}); ok {
			copied = append(copied, Entry{Scope: Default, Type: typ, Perm: c.entries[i].Perm})
		}
	}
	c.entries = append(c.entries, copied...)
}

// addMasks gives each list the mask that it was given, or else, if it had one or
// names somebody, all that its groups and those named may do.
func (c *change) addMasks() error {
	var (
		present, needed [2]bool
		union           [2]uint8
	)
	for _, e := range c.entries {
		present[e.Scope] = true
		if e.Type == Group || e.Name != "" {
			union[e.Scope] |= e.Perm
		}
		needed[e.Scope] = needed[e.Scope] || e.Name != ""
	}
	for _, scope := range []Scope{Access, Default} {
		mask := c.masks[scope]
		switch {
		case !present[scope]:
		case mask == nil && needed[scope] && c.remasked[scope]:
			return invalid("Invalid ACL: mask is required and cannot be deleted.")
		case mask != nil && (!c.touched[scope] || c.remasked[scope]):
			c.entries = append(c.entries, *mask)
		case needed[scope] || mask != nil:
			c.entries = append(c.entries, Entry{Scope: scope, Type: Mask, Perm: union[scope]})
		}
	}
	return nil
}

// validate orders a list and checks it.
func validate(entries []Entry) ([]Entry, error) {
	slices.SortStableFunc(entries, compare)
	for i, e := range entries {
		if i > 0 && compare(entries[i-1], e) == 0 {
			return nil, invalid("Invalid ACL: multiple entries with same scope, type and name.")
		}
		if e.Name != "" && (e.Type == Mask || e.Type == Other) {
			return nil, invalid("Invalid ACL: this entry type must not have a name: %s.", e)
		}
	}
	if err := checkCount(entries); err != nil {
		return nil, err
	}
	hasDefaults := defaults(entries) < len(entries)
	for _, typ := range base {
		if _, ok := search(entries, Entry{Scope: Access, Type: typ}); !ok {
			return nil, invalid("Invalid ACL: the user, group and other entries are required.")
		}
		if _, ok := search(entries, Entry{Scope: Default, Type: typ}); hasDefaults && !ok {
			return nil, invalid("Invalid default ACL: the user, group and other entries are required.")
		}
	}
	return entries, nil
}

// Check tells whether entries, which were read from disk, can be what is kept
// beside a mode.
func Check(kept []Entry) error {
	for _, e := range kept {
		if e.Scope > Default || e.Type > Other || e.Perm > 7 {
			return invalid("an entry of scope %d, type %d and permissions %o", e.Scope, e.Type, e.Perm)
		}
	}
	if !sort.SliceIsSorted(kept, func(i, j int) bool { return compare(kept[i], kept[j]) < 0 }) {
		return invalid("entries out of order")
	}
	_, err := validate(Full(0, kept))
	return err
}
