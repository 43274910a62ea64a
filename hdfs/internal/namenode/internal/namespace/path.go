package namespace

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// intent is what an operation will do at the path that it resolves.
type intent uint8

const (
	reading intent = iota
	writing
	creating
)

const (
	reservedName = ".reserved"
	rawName      = "raw"
	inodesName   = ".inodes"
	snapshotName = ".snapshot"

	// ReservedPath is the directory of what is no name of a file.
	ReservedPath = "/" + reservedName
)

// components splits an absolute path. Slashes that follow others count for
// nothing. The root has none.
func components(path string) ([]string, error) {
	if !strings.HasPrefix(path, "/") {
		return nil, exception.New(exception.Assertion, "Absolute path required, but got '%s'", printable(path))
	}
	comps := make([]string, 0, strings.Count(path, "/"))
	for rest := path; rest != ""; {
		var name string
		if name, rest, _ = strings.Cut(rest, "/"); name != "" {
			comps = append(comps, name)
		}
	}
	return comps, nil
}

// validName tells whether HDFS lets something be made at path.
func validName(path string) bool {
	if !strings.HasPrefix(path, "/") || !utf8.ValidString(path) || strings.IndexByte(path, 0) >= 0 {
		return false
	}
	rest := strings.TrimRight(path[1:], "/")
	const byID = reservedName + "/" + inodesName + "/"
	upwards := strings.HasPrefix(rest, byID) && strings.Contains(rest[len(byID):], "/")
	for more := rest != ""; more; {
		var c string
		c, rest, more = strings.Cut(rest, "/")
		if c == "" || c == "." || c == ".." && !upwards || strings.IndexByte(c, ':') >= 0 {
			return false
		}
	}
	return true
}

// checkLength refuses what HDFS refuses of a new path before it looks any further.
func checkLength(what, path string) error {
	if path == "" {
		return exception.New(exception.JavaIllegalArgument, "Can not create a Path from an empty string")
	}
	// Java takes what comes before a colon in the first name for a scheme.
	if scheme, rest, ok := strings.Cut(path, ":"); ok && !strings.Contains(scheme, "/") && !strings.HasPrefix(rest, "/") {
		return exception.New(exception.JavaIllegalArgument, "%s: Relative path in absolute URI: %s", exception.URISyntax, printable(path))
	}
	if len(path) > MaxPathLength || strings.Count(path, "/") > MaxPathDepth {
		return exception.New(exception.IO, "%s: Pathname too long.  Limit %d characters, %d levels.", what, MaxPathLength, MaxPathDepth)
	}
	return nil
}

// printable bounds what a hostile path puts into a message.
func printable(path string) string {
	if len(path) > 256 {
		path = path[:256] + "..."
	}
	return strings.ToValidUTF8(strings.ReplaceAll(path, "\x00", `\0`), "?")
}

// resolved is a path with the inodes that exist along it: nodes[0] is the root,
// nodes[i] is comps[i-1].
type resolved struct {
	comps []string
	nodes []*Inode
	// snapshot: it leads to the root's snapshots, of which there are none.
	snapshot bool
}

// resolve finds what a path names. The caller must be allowed to search every
// directory on the way; what is no directory there has the exception that suits
// the intent.
func (ns *Namespace) resolve(c *caller, path string, intent intent) (resolved, error) {
	if intent == creating && !validName(path) {
		return resolved{}, exception.New(exception.InvalidPath, "Invalid file name: %s", printable(path))
	}
	comps, err := components(path)
	if err != nil {
		return resolved{}, err
	}
	raw := len(comps) > 1 && comps[0] == reservedName && comps[1] == rawName
	if comps, err = ns.expand(comps); err != nil {
		return resolved{}, err
	}
	r := ns.walk(comps)
	if raw && intent != reading {
		if err := needSuperuser(c); err != nil {
			return r, err
		}
	}
	file, err := ns.traverse(c, r)
	switch {
	case err != nil:
		return r, err
	case file != nil && intent == creating:
		return r, exception.New(exception.ParentNotDirectory, "%s (is not a directory)", ns.path(file))
	case file != nil:
		return r, exception.New(exception.AccessControl, "%s (is not a directory)", ns.path(file))
	case r.snapshot && intent != reading:
		return r, exception.New(exception.SnapshotAccessControl, "Modification on a read-only snapshot is disallowed")
	}
	return r, nil
}

// expand replaces /.reserved/raw and /.reserved/.inodes/ID by what they stand for.
func (ns *Namespace) expand(comps []string) ([]string, error) {
	if len(comps) < 2 || comps[0] != reservedName {
		return comps, nil
	}
	switch {
	case comps[1] == inodesName && len(comps) > 2:
		return ns.expandID(comps)
	case comps[1] == rawName && (len(comps) != 3 || comps[2] != reservedName):
		return comps[2:], nil
	}
	return comps, nil
}

func (ns *Namespace) expandID(comps []string) ([]string, error) {
	shown := "/" + strings.Join(comps, "/")
	id, err := strconv.ParseInt(comps[2], 10, 64)
	if err != nil {
		return nil, exception.New(exception.FileNotFound, "Invalid inode path: %s", printable(shown))
	}
	n := ns.byID(uint64(id))
	if n == nil {
		return nil, exception.New(exception.FileNotFound, "File for given inode path does not exist: %s", printable(shown))
	}
	rest := comps[3:]
	if len(rest) > 0 && rest[0] == ".." {
		if n.id != rootID {
			n = ns.inodes.Get(n.parent)
		}
		rest = nil
	}
	at, err := components(ns.path(n))
	return append(at, rest...), err
}

func (ns *Namespace) walk(comps []string) resolved {
	r := resolved{comps: comps, nodes: make([]*Inode, 1, len(comps)+1)}
	r.nodes[0] = ns.root()
	if len(comps) > 0 && comps[0] == snapshotName {
		r.snapshot = true
		if len(comps) > 1 { // the snapshot and its directory are one step
			r.comps = append([]string{comps[0] + "/" + comps[1]}, comps[2:]...)
		}
		return r
	}
	for _, c := range comps {
		last := r.nodes[len(r.nodes)-1]
		if last.dir == nil {
			break
		}
		id, ok := last.dir.names.Get(c)
		if !ok {
			break
		}
		r.nodes = append(r.nodes, ns.inodes.Get(id))
	}
	return r
}

// isReserved tells whether the path is /.reserved itself.
func (r resolved) isReserved() bool { return len(r.comps) == 1 && r.comps[0] == reservedName }

// last is the path's inode, nil if there is none.
func (r resolved) last() *Inode {
	if len(r.nodes) == len(r.comps)+1 {
		return r.nodes[len(r.nodes)-1]
	}
	return nil
}

// parent is the inode of the path's parent, nil if there is none; of the root too.
func (r resolved) parent() *Inode {
	if len(r.comps) > 0 && len(r.nodes) >= len(r.comps) {
		return r.nodes[len(r.comps)-1]
	}
	return nil
}

// ancestor is the last inode on the way that exists, before the last component.
func (r resolved) ancestor() *Inode {
	return r.nodes[max(0, min(len(r.nodes)-1, len(r.comps)-1))]
}

func (r resolved) base() string { return r.comps[len(r.comps)-1] }

func (r resolved) String() string { return "/" + strings.Join(r.comps, "/") }

func (r resolved) parentString() string {
	return "/" + strings.Join(r.comps[:max(0, len(r.comps)-1)], "/")
}

// within tells whether the path is below other's.
func (r resolved) within(other resolved) bool {
	if len(r.comps) <= len(other.comps) {
		return false
	}
	for i, c := range other.comps {
		if r.comps[i] != c {
			return false
		}
	}
	return true
}

func (t *txn) checkNewName(parent *Inode, name string) error {
	ns := t.ns
	if parent.id == rootID && name == reservedName {
		return exception.New(exception.IllegalArgument, "File name \"%s\" is reserved and cannot be created. If this is during upgrade change the name of the existing file or directory to another name before upgrading to the new release.", name)
	}
	if most := t.componentLength(); len(name) > most {
		return exception.New(exception.PathComponentTooLong, "The maximum path component name limit of %s in directory %s is exceeded: limit=%d length=%d", printable(name), ns.path(parent), most, len(name))
	}
	if most := t.directoryItems(); parent.dir.names.Len() >= most {
		return exception.New(exception.MaxDirectoryItemsExceeded, "The directory item limit of %s is exceeded: limit=%d items=%d", ns.path(parent), most, parent.dir.names.Len()+1)
	}
	return checkNoSnapshot(name)
}

func checkNoSnapshot(name string) error {
	if name == snapshotName {
		return exception.New(exception.IllegalArgument, "\"%s\" is a reserved name.", name)
	}
	return nil
}
