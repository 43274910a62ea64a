package namespace

import (
	"strings"
	"unicode/utf8"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// components splits an absolute path as HDFS allows it. A slash at the end
// counts for nothing. The root has none.
func components(path string) ([]string, error) {
	if !strings.HasPrefix(path, "/") || !utf8.ValidString(path) || strings.IndexByte(path, 0) >= 0 {
		return nil, exception.New(exception.InvalidPath, "Invalid path name %s", printable(path))
	}
	if len(path) > MaxPathLength {
		return nil, exception.New(exception.IO, "Pathname too long.  Limit %d characters, %d levels.", MaxPathLength, MaxPathDepth)
	}
	path = strings.TrimSuffix(path[1:], "/")
	if path == "" {
		return nil, nil
	}
	comps := strings.Split(path, "/")
	if len(comps) > MaxPathDepth {
		return nil, exception.New(exception.IO, "Pathname too long.  Limit %d characters, %d levels.", MaxPathLength, MaxPathDepth)
	}
	for _, c := range comps {
		if c == "" || c == "." || c == ".." || strings.IndexByte(c, ':') >= 0 {
			return nil, exception.New(exception.InvalidPath, "Invalid path name /%s", printable(path))
		}
	}
	return comps, nil
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
}

func (ns *Namespace) resolve(path string) (resolved, error) {
	comps, err := components(path)
	if err != nil {
		return resolved{}, err
	}
	return ns.walk(comps), nil
}

func (ns *Namespace) walk(comps []string) resolved {
	r := resolved{comps: comps, nodes: make([]*Inode, 1, len(comps)+1)}
	r.nodes[0] = ns.root
	for _, c := range comps {
		last := r.nodes[len(r.nodes)-1]
		if last.dir == nil {
			break
		}
		n := last.dir.get(c)
		if n == nil {
			break
		}
		r.nodes = append(r.nodes, n)
	}
	return r
}

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

// Path returns the inode's full path.
func (n *Inode) Path() string {
	if n.parent == nil {
		return "/"
	}
	size := 0
	for at := n; at.parent != nil; at = at.parent {
		size += len(at.name) + 1
	}
	buf := make([]byte, size)
	for at := n; at.parent != nil; at = at.parent {
		size -= len(at.name)
		copy(buf[size:], at.name)
		size--
		buf[size] = '/'
	}
	return string(buf)
}

func checkNewName(parent *Inode, name string) error {
	if len(name) > MaxComponentLength {
		return exception.New(exception.PathComponentTooLong, "The maximum path component name limit of %s in directory %s is exceeded: limit=%d length=%d", printable(name), parent.Path(), MaxComponentLength, len(name))
	}
	if parent.dir.count >= MaxDirectoryItems {
		return exception.New(exception.MaxDirectoryItemsExceeded, "The directory item limit of %s is exceeded: limit=%d items=%d", parent.Path(), MaxDirectoryItems, parent.dir.count+1)
	}
	return nil
}
