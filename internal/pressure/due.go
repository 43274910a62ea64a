package pressure

import "runtime/metrics"

// Own is the process's memory in bytes.
type Own struct {
	Resident int64 // without files and shared memory; part of what its cgroup uses
	Shared   int64 // shared memory that is resident, peers' memory that is mapped included
	Huge     int64 // pages that the system keeps apart, and does not count there
	Heap     int64 // Go's, once its heap has grown to where it is collected next
}

// expect adds what the process will use on top once it has touched all of the memory
// that it has registered. Nobody tells how much of that it has touched; so what is
// resident counts as what others do not use. Of shared memory no more counts than is
// registered: the rest is peers', whose cgroups it is part of.
func (s *Sample) expect(registered int64) {
	coming := max(registered-s.Own.Huge, 0)
	if coming == 0 {
		return
	}
	for i := range s.Scopes {
		scope := &s.Scopes[i]
		others := int64(0)
		if s.Own.Resident > 0 { // it is known
			others = max(scope.Used-s.Own.Resident-min(s.Own.Shared, coming), 0)
		}
		scope.Due = max(others+s.Own.Heap+coming-scope.Used, 0)
	}
}

// parseOwn reads /proc/self/status.
func parseOwn(b []byte) (own Own) {
	var anonymous, shared, all int64
	parseSizes(b, func(key []byte, n int64) {
		switch string(key) {
		case "VmRSS":
			all = n
		case "RssAnon":
			anonymous = n
		case "RssShmem":
			shared = n
		case "HugetlbPages":
			own.Huge = n
		}
	})
	own.Resident, own.Shared = anonymous, shared
	if anonymous+shared == 0 {
		own.Resident = all // an old kernel does not tell the parts
	}
	return own
}

// goMemory is what Go's runtime has of the system, and will have before it collects
// its heap again.
func goMemory() int64 {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/gc/heap/goal:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	mapped, heap := value(0)-value(1), value(2)+value(3)+value(4)
	return mapped - heap + max(heap, min(value(5), 2*heap))
}
