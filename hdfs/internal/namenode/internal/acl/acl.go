// Package acl computes access control lists as HDFS does, after POSIX.1e draft 17:
// what a change makes of a list, what a new file inherits, and whether a list
// lets somebody do something. It knows no files: an inode's list is its mode and a
// slice of what the mode can't say.
//
// The mode's bits for the owner and for others are the entries of these. Its bits for
// the group are the mask, if the list has one, and else the entry of the group.
// What is kept beside the mode is, in this order: if there is a mask the named
// users, the owning group and the named groups; and the whole default list.
//
// It imports nothing of the project. Nothing is changed in place: callers may
// share slices.
package acl

import (
	"slices"
	"sort"
	"strings"
)

// MaxEntries bounds each of the two lists, access and default.
const MaxEntries = 32

// Scope tells the list that decides about access from the one that is inherited.
type Scope uint8

// The numbers are those of Hadoop's AclEntryScopeProto.
const (
	Access Scope = iota
	Default
)

// Type is for whom an entry is.
type Type uint8

// The numbers are those of Hadoop's AclEntryTypeProto.
const (
	User Type = iota
	Group
	Mask
	Other
)

var typeNames = [...]string{"user", "group", "mask", "other"}

// Entry is one line of a list.
type Entry struct {
	Scope Scope
	Type  Type
	Name  string // empty: the owner, or the owning group
	Perm  uint8  // rwx, as an octal digit
}

// String is the entry as the shell shows it: default:user:alice:r-x.
func (e Entry) String() string {
	perm := []byte("rwx")
	for i := range perm {
		if e.Perm&(4>>i) == 0 {
			perm[i] = '-'
		}
	}
	s := typeNames[e.Type] + ":" + e.Name + ":" + string(perm)
	if e.Scope == Default {
		s = "default:" + s
	}
	return s
}

// compare orders entries: access before default, owner before named users, owning group
// before named groups, mask, others.
func compare(a, b Entry) int {
	switch {
	case a.Scope != b.Scope:
		return int(a.Scope) - int(b.Scope)
	case a.Type != b.Type:
		return int(a.Type) - int(b.Type)
	}
	return strings.Compare(a.Name, b.Name)
}

// defaults is where the default list begins.
func defaults(entries []Entry) int {
	return sort.Search(len(entries), func(i int) bool { return entries[i].Scope == Default })
}

// DefaultsOf returns the default list of what is kept beside a mode.
func DefaultsOf(kept []Entry) []Entry { return kept[defaults(kept):] }

// bits of one class of a mode.
func owner(mode uint16) uint8 { return uint8(mode >> 6 & 7) }
func group(mode uint16) uint8 { return uint8(mode >> 3 & 7) }
func other(mode uint16) uint8 { return uint8(mode & 7) }

const classes = 0o777

// Full is the whole list of an inode.
func Full(mode uint16, kept []Entry) []Entry {
	at := defaults(kept)
	full := make([]Entry, 0, len(kept)+3)
	full = append(full, Entry{Type: User, Perm: owner(mode)})
	if at > 0 {
		full = append(full, kept[:at]...)
		full = append(full, Entry{Type: Mask, Perm: group(mode)})
	} else {
		full = append(full, Entry{Type: Group, Perm: group(mode)})
	}
	full = append(full, Entry{Type: Other, Perm: other(mode)})
	return append(full, kept[at:]...)
}

// Split is the reverse of Full. Bits of mode that are not permissions stay.
func Split(mode uint16, full []Entry) (newMode uint16, kept []Entry) {
	at := defaults(full)
	access := full[:at]
	newMode = mode&^classes | uint16(access[0].Perm)<<6 | uint16(access[len(access)-2].Perm)<<3 | uint16(access[len(access)-1].Perm)
	if len(access) > 3 {
		kept = slices.Concat(access[1:len(access)-2], full[at:])
	} else {
		kept = slices.Clone(full[at:])
	}
	if len(kept) == 0 {
		return newMode, nil
	}
	return newMode, kept
}

// Remove takes away what is kept beside a mode: the mask makes way for the owning group.
func Remove(mode uint16, kept []Entry) uint16 {
	for _, e := range kept[:defaults(kept)] {
		if e.Type == Group && e.Name == "" {
			return mode&^0o070 | uint16(e.Perm)<<3
		}
	}
	return mode
}

// Inherit is what a new file or directory gets from the default list of its parent.
// mode is what was asked for. ok is false if the parent has none.
func Inherit(parent []Entry, mode uint16, directory bool) (newMode uint16, kept []Entry, ok bool) {
	inherited := DefaultsOf(parent)
	if len(inherited) == 0 {
		return mode, nil, false
	}
	full := make([]Entry, 0, 2*len(inherited))
	for _, e := range inherited {
		e.Scope = Access
		switch {
		case e.Type == User && e.Name == "":
			e.Perm &= owner(mode)
		case e.Type == Mask, e.Type == Group && len(inherited) == 3:
			e.Perm &= group(mode)
		case e.Type == Other:
			e.Perm &= other(mode)
		}
		full = append(full, e)
	}
	if directory {
		full = append(full, inherited...)
	}
	newMode, kept = Split(mode, full)
	return newMode, kept, true
}

// Allows tells whether a list with a mask lets somebody who is not the superuser do
// what want says. It must be asked only if HasAccess.
func Allows(mode uint16, kept []Entry, isOwner bool, user, owningGroup string, groups []string, want uint8) bool {
	if isOwner {
		return owner(mode)&want == want
	}
	found := false
	for _, e := range kept {
		if e.Scope == Default {
			break
		}
		switch e.Type {
		case User:
			if e.Name == user {
				return e.Perm&group(mode)&want == want
			}
		case Group:
			name := e.Name
			if name == "" {
				name = owningGroup
			}
			if slices.Contains(groups, name) {
				if e.Perm&group(mode)&want == want {
					return true
				}
				found = true
			}
		}
	}
	return !found && other(mode)&want == want
}

// HasAccess tells whether what is kept beside a mode decides about access.
func HasAccess(kept []Entry) bool { return len(kept) > 0 && kept[0].Scope == Access }
