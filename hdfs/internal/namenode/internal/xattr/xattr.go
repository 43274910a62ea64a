// Package xattr holds the rules of HDFS's extended attributes: who sees and changes those of
// which namespace, how many an inode may have, and what a change makes of a list of them.
// It knows no files. Lists are never changed in place: callers may share them.
//
// Of the project it imports only the exceptions that clients know.
package xattr

import (
	"slices"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// Namespace says whose attribute it is.
type Namespace uint8

// The numbers are those of Hadoop's XAttrNamespaceProto.
const (
	User     Namespace = iota // of those who may read and write the file
	Trusted                   // of the superuser
	Security                  // of HDFS, with one exception
	System                    // of HDFS
	Raw                       // seen only below /.reserved/raw
	namespaces
)

var prefixes = [namespaces]string{"user.", "trusted.", "security.", "system.", "raw."}

// Names that mean something.
const (
	// UnreadableBySuperuser keeps the superuser from reading a file. It has no value, everybody may
	// set it, and nobody takes it away.
	UnreadableBySuperuser = "security.hdfs.unreadable.by.superuser"

	encryptionZone = "raw.hdfs.crypto.encryption.zone"
	encryptionInfo = "raw.hdfs.crypto.file.encryption.info"
)

// Limits.
const (
	// MaxPerInode is HDFS's default for the attributes of the user and the trusted namespace.
	MaxPerInode = 32
	// MaxSize is HDFS's default for the bytes of a name and its value; MaxSizeLimit is the most
	// that may be configured.
	MaxSize      = 16384
	MaxSizeLimit = 32768
	// maxInAll is a limit of ours, which also counts the other namespaces.
	maxInAll = 1024
	// small values come before others in a list.
	small = 1024
)

// Attr is an attribute. An empty value is the same as none.
type Attr struct {
	Namespace Namespace
	Name      string // without the namespace
	Value     []byte
}

// String is the name with its namespace.
func (a Attr) String() string { return prefixes[a.Namespace] + a.Name }

func (a Attr) same(b Attr) bool { return a.Namespace == b.Namespace && a.Name == b.Name }

// Check refuses what can be no attribute.
func (a Attr) Check() error {
	if a.Namespace >= namespaces {
		return exception.New(exception.IllegalArgument, "an extended attribute's namespace is a number below %d, not %d", namespaces, a.Namespace)
	}
	if size := len(a.Name) + len(a.Value); size > MaxSizeLimit {
		return CheckSize(a, MaxSizeLimit)
	}
	return nil
}

// CheckSize refuses an attribute of more than limit bytes.
func CheckSize(a Attr, limit int) error {
	if size := len(a.Name) + len(a.Value); size > limit {
		return exception.New(exception.IllegalArgument, "The XAttr is too big. The maximum combined size of the name and value is %d, but the total size is %d", limit, size)
	}
	return nil
}

// visible tells whether somebody is told of an attribute.
func visible(a Attr, superuser, raw bool) bool {
	switch a.Namespace {
	case User:
		return true
	case Trusted:
		return superuser
	case Raw:
		return raw
	default:
		return a.String() == UnreadableBySuperuser
	}
}

// Allowed tells why somebody may not even name an attribute. raw tells that the path
// is one below /.reserved/raw. Whether the file may be read or written is another matter.
func Allowed(a Attr, superuser, raw bool) error {
	switch {
	case !visible(a, superuser, raw):
		return exception.New(exception.AccessControl, "User doesn't have permission for xattr: %s", a)
	case a.String() == UnreadableBySuperuser && a.Value != nil:
		return exception.New(exception.AccessControl, "Attempt to set a value for '%s'. Values are not allowed for this xattr.", UnreadableBySuperuser)
	}
	return nil
}

// Visible are the attributes that somebody is told of.
func Visible(list []Attr, superuser, raw bool) []Attr {
	out := make([]Attr, 0, len(list))
	for _, a := range list {
		if visible(a, superuser, raw) {
			out = append(out, a)
		}
	}
	return out
}

// Find returns an attribute.
func Find(list []Attr, a Attr) (Attr, bool) {
	if i := slices.IndexFunc(list, a.same); i >= 0 {
		return list[i], true
	}
	return Attr{}, false
}

// Has tells whether one of the list has this whole name.
func Has(list []Attr, name string) bool {
	return slices.ContainsFunc(list, func(a Attr) bool { return a.String() == name })
}

// Flags say what may become of an attribute that is there, or is not.
type Flags struct{ Create, Replace bool }

// Set gives an inode an attribute. limit is how many of the user and the trusted namespace
// it may have.
func Set(list []Attr, a Attr, f Flags, limit int, file bool) ([]Attr, error) {
	_, exists := Find(list, a)
	switch {
	case !f.Create && !f.Replace:
		return nil, exception.New(exception.IllegalArgument, "A flag must be specified.")
	case exists && !f.Replace:
		return nil, exception.New(exception.IO, "XAttr: %s already exists. The REPLACE flag must be specified.", a.Name)
	case !exists && !f.Create:
		return nil, exception.New(exception.IO, "XAttr: %s does not exist. The CREATE flag must be specified.", a.Name)
	}
	if len(a.Value) == 0 {
		a.Value = nil
	}
	next := make([]Attr, 0, len(list)+1)
	next = append(next, a)
	for _, old := range list {
		if !old.same(a) {
			next = append(next, old)
		}
	}
	counted := 0
	for _, each := range next {
		if each.Namespace == User || each.Namespace == Trusted {
			counted++
		}
	}
	switch {
	case counted > limit:
		return nil, exception.New(exception.IO, "Cannot add additional XAttr to inode, would exceed limit of %d", limit)
	case len(next) > maxInAll:
		return nil, exception.New(exception.IO, "Cannot add additional XAttr to inode, would exceed limit of %d", maxInAll)
	}
	switch name := a.String(); {
	case name == encryptionInfo:
		return nil, exception.New(exception.IO, "Cannot add raw feInfo XAttr to a file in a non-encryption zone")
	case name == encryptionZone:
		return nil, exception.New(exception.UnsupportedOperation, "encryption zones are not supported")
	case name == UnreadableBySuperuser && !file:
		return nil, exception.New(exception.IO, "Can only set '%s' on a file.", UnreadableBySuperuser)
	}
	slices.SortStableFunc(next, func(a, b Attr) int { return large(a) - large(b) })
	return next, nil
}

func large(a Attr) int {
	if len(a.Value) > small {
		return 1
	}
	return 0
}

// Remove takes an attribute away. others tells that the inode has some that are not in
// the list: HDFS keeps a directory's storage policy as one.
func Remove(list []Attr, a Attr, others bool) ([]Attr, error) {
	some := others || len(list) > 0
	switch {
	case some && a.String() == UnreadableBySuperuser:
		return nil, exception.New(exception.AccessControl, "The xattr '%s' can not be deleted.", UnreadableBySuperuser)
	case some && a.String() == encryptionZone:
		return nil, exception.New(exception.JavaIllegalArgument, "The encryption zone xattr should never be deleted.")
	}
	at := slices.IndexFunc(list, a.same)
	if at < 0 {
		return nil, exception.New(exception.IO, "No matching attributes found for remove operation")
	}
	return slices.Concat(list[:at], list[at+1:]), nil
}

// CheckList tells whether what was read from disk can be an inode's attributes.
func CheckList(list []Attr) error {
	if len(list) > maxInAll {
		return exception.New(exception.IO, "%d extended attributes; the limit is %d", len(list), maxInAll)
	}
	for i, a := range list {
		if err := a.Check(); err != nil {
			return err
		}
		if _, twice := Find(list[:i], a); twice {
			return exception.New(exception.IO, "the extended attribute %s is there twice", a)
		}
	}
	return nil
}
