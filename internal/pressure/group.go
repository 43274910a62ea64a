package pressure

import (
	"path"
	"strings"
)

// A group is where the files of the process's cgroup lie in a hierarchy.
type group struct {
	dir string // its own directory
	top string // that of the highest cgroup that is mounted, dir or above it
}

// levels are the directories from the process's own up.
func (g group) levels() []string {
	var dirs []string
	for dir := g.dir; ; dir = path.Dir(dir) {
		dirs = append(dirs, dir)
		if dir == g.top || len(dir) <= len(g.top) {
			return dirs
		}
	}
}

// locate finds a cgroup by its path. Several mounts may show it; those that reach
// higher come first. exists tells whether there is a directory.
func locate(mounts []mount, memory bool, cgroup string, exists func(dir string) bool) (best group, ok bool) {
	shortest := 0
	for _, m := range mounts {
		if m.memory != memory {
			continue
		}
		below, under := beneath(m.root, cgroup)
		if !under || ok && len(path.Clean(m.root)) >= shortest {
			continue
		}
		g := group{dir: path.Join(m.point, below), top: path.Clean(m.point)}
		if exists(g.dir) {
			best, ok, shortest = g, true, len(path.Clean(m.root))
		}
	}
	return best, ok
}

// beneath takes the root off a path that lies in it. Both count from the root of
// the process's namespace; what lies outside of that begins with "/..".
func beneath(root, cgroup string) (below string, ok bool) {
	up, root := climbs(root)
	cgroupUp, cgroup := climbs(cgroup)
	switch {
	case up != cgroupUp || strings.Contains("/"+cgroup+"/", "/../"):
		// Where the mount's root is above that of the namespace, nobody tells what the
		// latter is called there.
		return "", false
	case root == "" || cgroup == root:
		return strings.TrimPrefix(cgroup, root), true
	}
	return strings.CutPrefix(cgroup, root+"/")
}

// climbs counts how often a path goes up from the root, and returns the rest
// without a slash at its beginning or end.
func climbs(p string) (n int, rest string) {
	rest = strings.Trim(p, "/")
	for {
		switch {
		case rest == "..":
			return n + 1, ""
		case strings.HasPrefix(rest, "../"):
			n, rest = n+1, rest[3:]
		default:
			return n, rest
		}
	}
}
