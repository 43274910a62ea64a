package pressure

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// unlimited is from where on a number is no limit: version 1 writes the greatest
// number of pages, in bytes.
const unlimited = 1 << 60

// parseBytes reads a number of bytes, or "max".
func parseBytes(b []byte) (n int64, ok bool) {
	text := string(bytes.TrimSpace(b))
	if text == "max" {
		return unlimited, true
	}
	u, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, false
	}
	return int64(min(u, unlimited)), true
}

// parseKeyed calls each with the lines "key number" of a file such as memory.stat
// or memory.events. Other lines are left out.
func parseKeyed(b []byte, each func(key []byte, value uint64)) {
	for line := range bytes.Lines(b) {
		key, rest, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(string(rest), 10, 64); err == nil {
			each(key, n)
		}
	}
}

// keyed is the value of one key of such a file.
func keyed(b []byte, key string) (value uint64) {
	parseKeyed(b, func(k []byte, v uint64) {
		if string(k) == key {
			value = v
		}
	})
	return value
}

// parseSizes calls each with the lines "key: number kB" of a file such as
// /proc/meminfo, in bytes. Other lines are left out.
func parseSizes(b []byte, each func(key []byte, n int64)) {
	for line := range bytes.Lines(b) {
		key, rest, ok := bytes.Cut(line, []byte(":"))
		number, isSize := bytes.CutSuffix(bytes.TrimSpace(rest), []byte(" kB"))
		if !ok || !isSize {
			continue
		}
		if kb, err := strconv.ParseUint(string(bytes.TrimSpace(number)), 10, 64); err == nil && kb <= unlimited>>10 {
			each(key, int64(kb)<<10)
		}
	}
}

// parseMeminfo reads /proc/meminfo. Kernels before 3.14 do not tell what is
// available; then what is free and the page cache stand for it.
func parseMeminfo(b []byte) (total, available int64) {
	var free, buffers, cached int64
	known := false
	parseSizes(b, func(key []byte, n int64) {
		switch string(key) {
		case "MemTotal":
			total = n
		case "MemAvailable":
			available, known = n, true
		case "MemFree":
			free = n
		case "Buffers":
			buffers = n
		case "Cached":
			cached = n
		}
	})
	if !known {
		available = min(free+buffers+cached, unlimited)
	}
	return total, min(available, total)
}

// Stalls are the times in which tasks waited for memory, since the beginning: some
// of them, or all at once.
type Stalls struct {
	Some, Full time.Duration
}

// parseStalls reads a PSI file. It reports false if that is none.
func parseStalls(b []byte) (s Stalls, ok bool) {
	for line := range bytes.Lines(b) {
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			continue
		}
		for _, f := range fields[1:] {
			text, found := strings.CutPrefix(f, "total=")
			if !found {
				continue
			}
			us, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				continue
			}
			total := time.Duration(min(us, unlimited/1000)) * time.Microsecond
			switch fields[0] {
			case "some":
				s.Some, ok = total, true
			case "full":
				s.Full = total
			}
		}
	}
	return s, ok
}

// cgroupPaths reads /proc/self/cgroup: the path in the hierarchy of version 2 and
// in that of version 1 which has the memory controller. An empty one is not there.
func cgroupPaths(b []byte) (v2, v1 string) {
	for line := range bytes.Lines(b) {
		// hierarchy:controllers:path; a path may have colons.
		parts := strings.SplitN(strings.TrimSuffix(string(line), "\n"), ":", 3)
		if len(parts) != 3 || !strings.HasPrefix(parts[2], "/") {
			continue
		}
		if parts[0] == "0" && parts[1] == "" {
			v2 = parts[2]
		}
		for controller := range strings.SplitSeq(parts[1], ",") {
			if controller == "memory" {
				v1 = parts[2]
			}
		}
	}
	return v2, v1
}

// A mount is of a hierarchy of cgroups.
type mount struct {
	root, point string
	memory      bool // version 1 with the memory controller; otherwise version 2
}

// parseMounts reads the mounts of cgroups from /proc/self/mountinfo. One that lies
// over another at the same place hides it.
func parseMounts(b []byte) []mount {
	var mounts []mount
	for line := range bytes.Lines(b) {
		before, after, ok := strings.Cut(string(line), " - ")
		fields, kind := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(kind) < 2 {
			continue
		}
		m := mount{root: unescape(fields[3]), point: unescape(fields[4])}
		for i := range mounts {
			if mounts[i].point == m.point {
				mounts = append(mounts[:i], mounts[i+1:]...)
				break
			}
		}
		switch kind[0] {
		case "cgroup2":
		case "cgroup":
			for option := range strings.SplitSeq(kind[len(kind)-1], ",") {
				m.memory = m.memory || option == "memory"
			}
			if !m.memory {
				continue
			}
		default:
			continue
		}
		if strings.HasPrefix(m.root, "/") && strings.HasPrefix(m.point, "/") {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// unescape undoes what the kernel does to blanks and backslashes: \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
