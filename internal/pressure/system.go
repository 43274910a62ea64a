package pressure

import (
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"
)

// A System is where the kernel tells of memory. It may be used concurrently.
type System struct {
	root string

	mu    sync.Mutex
	found place  // the process's files
	by    string // /proc/self/cgroup, when they were found
	until time.Time
}

// placeLasts is how long found files are taken for the process's without a look at
// what is mounted where.
const placeLasts = time.Minute

// At is the system whose /proc and /sys lie under a directory: "/" for this one.
func At(root string) *System { return &System{root: root} }

// A Scope is a part of the system that has a limit.
type Scope struct {
	Name  string // "machine", or the directory of a cgroup
	Limit int64  // bytes
	High  int64  // memory.high in bytes: beyond it the kernel slows the cgroup down
	Used  int64  // bytes, without page cache that can be dropped at once
	Due   int64  // bytes on top that the process has registered and not touched yet
}

// room is how much may still be used.
func (s Scope) room() int64 { return max(s.least()-s.Used-s.Due, 0) }

// least is the lower one of both limits.
func (s Scope) least() int64 { return min(s.Limit, s.High) }

// A Sample is what the files say at one time.
type Sample struct {
	At     time.Time
	Scopes []Scope // the machine first, then cgroups from the process's own up
	// Stalls of the process's cgroup, or of the machine if Machine is set.
	Stalls  Stalls
	Stalled bool // they are known
	Machine bool
	Kills   uint64 // processes of the cgroup that the kernel killed for want of memory
	Own     Own
}

// Sample reads the files.
func (s *System) Sample() Sample {
	now := Sample{At: time.Now()}
	total, available := parseMeminfo(s.read("/proc/meminfo"))
	if total > 0 {
		now.Scopes = append(now.Scopes, Scope{Name: machine, Limit: total, High: unlimited, Used: total - available})
	}
	place := s.place()
	for _, dir := range place.memory.dirs() {
		scope, kills, ok := s.scope(dir, place.memory.one)
		if ok && scope.least() < unlimited {
			now.Scopes = append(now.Scopes, scope)
		}
		if dir == place.memory.dir {
			now.Kills = kills
		}
		if place.memory.one && !s.inherits(path.Dir(dir)) {
			break
		}
	}
	if place.stalls != "" {
		now.Stalls, now.Stalled = parseStalls(s.read(place.stalls))
	}
	if !now.Stalled {
		now.Stalls, now.Stalled = parseStalls(s.read(machineStalls))
		now.Machine = now.Stalled
	}
	now.Own = parseOwn(s.read("/proc/self/status"))
	now.Own.Heap = goMemory()
	return now
}

const machineStalls = "/proc/pressure/memory"

// A place is where the process's files are.
type place struct {
	memory memoryGroup
	stalls string // the PSI file of its cgroup, or empty
}

type memoryGroup struct {
	group
	one bool // of version 1
}

func (g memoryGroup) dirs() []string {
	if g.dir == "" {
		return nil
	}
	return g.levels()
}

// place is where the process's files are. A process may be moved to another cgroup.
func (s *System) place() place {
	cgroup := s.read("/proc/self/cgroup")
	s.mu.Lock()
	defer s.mu.Unlock()
	if string(cgroup) != s.by || !time.Now().Before(s.until) {
		s.found, s.by, s.until = s.find(cgroup), string(cgroup), time.Now().Add(placeLasts)
	}
	return s.found
}

func (s *System) find(cgroup []byte) (p place) {
	v2, v1 := cgroupPaths(cgroup)
	if v2 == "" && v1 == "" {
		return p
	}
	mounts := parseMounts(s.read("/proc/self/mountinfo"))
	if v2 != "" {
		if g, ok := locate(mounts, false, v2, s.isDir); ok {
			p.memory.group = g
			// At the root of all it would be the machine's.
			if file := path.Join(g.dir, "memory.pressure"); s.exists(path.Join(g.dir, "cgroup.type")) && s.exists(file) {
				p.stalls = file
			}
		}
	}
	if v1 != "" {
		// The controller is in one of both, so version 2 limits nothing.
		g, _ := locate(mounts, true, v1, s.isDir)
		p.memory = memoryGroup{group: g, one: true}
	}
	return p
}

// scope reads the limits of one cgroup.
func (s *System) scope(dir string, one bool) (scope Scope, kills uint64, ok bool) {
	names := [...]string{"memory.max", "memory.current", "inactive_file", "memory.events"}
	if one {
		names = [...]string{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "memory.oom_control"}
	}
	scope = Scope{Name: dir, High: unlimited}
	if scope.Limit, ok = parseBytes(s.read(path.Join(dir, names[0]))); !ok {
		return scope, 0, false // the root of version 2 has none
	}
	used, ok := parseBytes(s.read(path.Join(dir, names[1])))
	if !ok {
		return scope, 0, false
	}
	stat := s.read(path.Join(dir, "memory.stat"))
	scope.Used = max(used-int64(min(keyed(stat, names[2]), unlimited)), 0)
	if one {
		// It knows of parents that are not mounted.
		if n := keyed(stat, "hierarchical_memory_limit"); n > 0 {
			scope.Limit = min(scope.Limit, int64(min(n, unlimited)))
		}
	} else if high, ok := parseBytes(s.read(path.Join(dir, "memory.high"))); ok {
		scope.High = high
	}
	return scope, keyed(s.read(path.Join(dir, names[3])), "oom_kill"), true
}

// inherits tells whether the limit of a cgroup of version 1 holds for those in it.
func (s *System) inherits(dir string) bool {
	n, ok := parseBytes(s.read(path.Join(dir, "memory.use_hierarchy")))
	return ok && n == 1
}

// triggers opens PSI files for reports: the cgroup's if it has one, and the
// machine's. Other systems than the process's own report nothing.
func (s *System) triggers() (files []*os.File) {
	if s.root != "/" {
		return nil
	}
	for _, name := range []string{s.place().stalls, machineStalls} {
		if name == "" {
			continue
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if _, err := f.WriteString(trigger); err != nil {
			f.Close()
			continue // such as an old kernel, for a user without privileges
		}
		files = append(files, f)
	}
	return files
}

// trigger asks for a report when some tasks have been stalled for 0.2 s within 2 s.
// Users without privileges may have windows of 2 s alone.
const trigger = "some 200000 2000000\x00"

func (s *System) read(name string) []byte {
	b, err := os.ReadFile(filepath.Join(s.root, name))
	if err != nil {
		return nil
	}
	return b
}

func (s *System) exists(name string) bool {
	_, err := os.Stat(filepath.Join(s.root, name))
	return err == nil
}

func (s *System) isDir(name string) bool {
	info, err := os.Stat(filepath.Join(s.root, name))
	return err == nil && info.IsDir()
}
