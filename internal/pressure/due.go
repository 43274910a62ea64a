package pressure

import "runtime/metrics"

// Own is the process's memory in bytes.
type Own struct {
	Resident int64 // without files; part of what its cgroup uses
	Huge     int64 // pages that the system keeps apart, and does not count there
	Heap     int64 // Go's
}

// expect adds what the process will use on top once it has touched all of the memory
// that it has registered. Nobody tells how much of that it has touched; so what is
// resident counts as what others do not use.
func (s *Sample) expect(registered int64) {
	coming := max(registered-s.Own.Huge, 0)
	if coming == 0 {
		return
	}
	for i := range s.Scopes {
		scope := &s.Scopes[i]
		others := int64(0)
		if s.Own.Resident > 0 { // it is known
			others = max(scope.Used-s.Own.Resident, 0)
		}
		scope.Due = max(others+s.Own.Heap+coming-scope.Used, 0)
	}
}

// parseOwn reads /proc/self/status.
func parseOwn(b []byte) (own Own) {
	var anonymous, shared, all int64
	parseSizes(b, func(key string, n int64) {
		switch key {
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
	if own.Resident = anonymous + shared; own.Resident == 0 {
		own.Resident = all // an old kernel does not tell the parts
	}
	return own
}

// goMemory is what Go's runtime has of the system.
func goMemory() int64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return int64(samples[0].Value.Uint64() - samples[1].Value.Uint64())
}
