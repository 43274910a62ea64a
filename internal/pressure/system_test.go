package pressure

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// unpack lays the files of an archive out in a directory. Lines "-- name --" begin
// them.
func unpack(t testing.TB, archive string) (root string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", archive+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	root = t.TempDir()
	var name string
	var content bytes.Buffer
	flush := func() {
		if name == "" {
			return
		}
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, content.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		content.Reset()
	}
	for line := range bytes.Lines(b) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "-- "); ok {
			flush()
			name = strings.TrimSuffix(rest, " --")
			continue
		}
		content.Write(line)
	}
	flush()
	return root
}

const mib = 1 << 20

// What real systems show, as they were: testdata/README.md tells of which.
func TestSystems(t *testing.T) {
	const v1, v2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
	for _, test := range []struct {
		archive string
		scopes  string // those of cgroups, from the inside out
		limit   int64
		of      string
		used    int64 // there
		own     bool  // the cgroup's own stalls
	}{
		{"v1-root", "", 24684092 << 10, "machine", (24684092 - 23955588) << 10, false},
		// The inner one's own limit is higher than that of the outer one.
		{"v1-nested", v1 + "/verbena-outer/verbena-inner " + v1 + "/verbena-outer", 256 * mib, v1 + "/verbena-outer/verbena-inner", 2408448 - 233472, false},
		// The outer one is not mounted, but holds all the same.
		{"v1-container", v1, 256 * mib, v1, 2789376 - 45056, false},
		{"v1-namespace", v1, 256 * mib, v1, 1867776 - 139264, false},
		// Where in the mount the namespace's root is nobody tells.
		{"v1-namespace-mount-above", "", 24684092 << 10, "machine", -1, false},
		{"v2-root", "", 1498056 << 10, "machine", (1498056 - 1350800) << 10, false},
		{"v2-nested", v2 + "/verbena-outer/verbena-inner " + v2 + "/verbena-outer", 192 * mib, v2 + "/verbena-outer/verbena-inner", -1, true},
		{"v2-bind", v2 + "/verbena-outer/verbena-inner " + v2 + "/verbena-outer", 192 * mib, v2 + "/verbena-outer/verbena-inner", 565248, true},
		{"v2-bind-only", "/mnt/verbena-inner /mnt", 192 * mib, "/mnt/verbena-inner", 446464, true},
		{"v2-namespace", v2, 192 * mib, v2, -1, true},
		{"v2-namespace-mount-above", "", 1498056 << 10, "machine", -1, false},
		{"v2-moved-out", "", 1498056 << 10, "machine", -1, false},
	} {
		t.Run(test.archive, func(t *testing.T) {
			s := At(unpack(t, test.archive)).Sample()
			var scopes []string
			for _, scope := range s.Scopes[1:] {
				scopes = append(scopes, scope.Name)
			}
			if got := strings.Join(scopes, " "); got != test.scopes {
				t.Errorf("the cgroups %s, want %s", got, test.scopes)
			}
			r := s.reading()
			if r.Limit != test.limit || r.LimitOf != test.of {
				t.Errorf("%d bytes by %s, want %d by %s", r.Limit, r.LimitOf, test.limit, test.of)
			}
			if test.used >= 0 && r.Used != test.used {
				t.Errorf("%d bytes are used, want %d", r.Used, test.used)
			}
			if !s.Stalled || s.Machine == test.own {
				t.Errorf("stalls known: %t, the machine's: %t", s.Stalled, s.Machine)
			}
			if level, why := judge(Sample{}, s, false); level != Calm {
				t.Errorf("%s: %s", level, why)
			}
		})
	}
}

// Whatever is missing limits nothing; what is there counts.
func TestMissingFiles(t *testing.T) {
	if s := At(t.TempDir()).Sample(); len(s.Scopes) != 0 || s.Stalled || s.reading().Limit != 0 {
		t.Errorf("nothing is there: %+v", s)
	}
	for _, missing := range []struct {
		file   string
		limit  int64
		stalls bool
	}{
		{"proc/meminfo", 192 * mib, true},
		{"proc/self/mountinfo", 1498056 << 10, true},
		{"proc/self/cgroup", 1498056 << 10, true},
		{"sys/fs/cgroup/verbena-outer/verbena-inner/memory.high", 256 * mib, true},
		{"sys/fs/cgroup/verbena-outer/verbena-inner/memory.current", 256 * mib, true},
		{"sys/fs/cgroup/verbena-outer/verbena-inner/memory.stat", 192 * mib, true},
		{"sys/fs/cgroup/verbena-outer/verbena-inner/memory.pressure", 192 * mib, true},
		{"proc/pressure/memory", 192 * mib, true},
	} {
		root := unpack(t, "v2-nested")
		if err := os.Remove(filepath.Join(root, missing.file)); err != nil {
			t.Fatal(err)
		}
		if s := At(root).Sample(); s.reading().Limit != missing.limit || s.Stalled != missing.stalls {
			t.Errorf("without %s: %d bytes, stalls %t", missing.file, s.reading().Limit, s.Stalled)
		}
	}
}

func TestBeneath(t *testing.T) {
	for _, test := range []struct {
		root, cgroup, below string
		ok                  bool
	}{
		{"/", "/", "", true},
		{"/", "/a/b", "a/b", true},
		{"/a", "/a", "", true},
		{"/a", "/a/b", "b", true},
		{"/a", "/ab", "", false},
		{"/a/b", "/a", "", false},
		{"/..", "/../x", "x", true},
		{"/../..", "/", "", false},
		{"/", "/../x", "", false},
		{"/", "/a/../../../etc", "", false},
	} {
		below, ok := beneath(test.root, test.cgroup)
		if ok != test.ok || strings.Trim(below, "/") != test.below && ok {
			t.Errorf("%s in %s: %q, %t", test.cgroup, test.root, below, ok)
		}
	}
}

// Of several mounts the one that reaches highest counts, and not one that another
// hides.
func TestMounts(t *testing.T) {
	mounts := parseMounts([]byte(`30 23 0:27 / /old rw - cgroup2 none rw
31 23 0:27 /a /with\040blank rw shared:1 master:2 - cgroup2 none rw
32 23 0:28 / /old rw - tmpfs tmpfs rw
33 23 0:29 / /one rw - cgroup cgroup rw,cpu,cpuacct
34 23 0:30 / /two rw - cgroup cgroup rw,memory
nonsense - cgroup2
`))
	if len(mounts) != 2 || mounts[0].point != "/with blank" || !mounts[1].memory {
		t.Fatalf("%+v", mounts)
	}
	all := func(string) bool { return true }
	if g, ok := locate(mounts, false, "/a/b", all); !ok || g.dir != "/with blank/b" || len(g.levels()) != 2 {
		t.Errorf("%+v, %t", g, ok)
	}
	mounts = append(mounts, mount{root: "/", point: "/higher"})
	if g, _ := locate(mounts, false, "/a/b", all); g.dir != "/higher/a/b" || len(g.levels()) != 3 {
		t.Errorf("%+v", g)
	}
	hidden := func(dir string) bool { return !strings.HasPrefix(dir, "/higher") }
	if g, _ := locate(mounts, false, "/a/b", hidden); g.dir != "/with blank/b" {
		t.Errorf("%+v", g)
	}
}

func TestOldMeminfo(t *testing.T) {
	total, available := parseMeminfo([]byte("MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 30 kB\nHugePages_Total: 7\n"))
	if total != 1000<<10 || available != 150<<10 {
		t.Errorf("%d of %d", available, total)
	}
}

func TestStalls(t *testing.T) {
	s, ok := parseStalls([]byte("some avg10=1.00 avg60=0.10 avg300=0.00 total=1500\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=700\n"))
	if !ok || s.Some != 1500*time.Microsecond || s.Full != 700*time.Microsecond {
		t.Errorf("%+v, %t", s, ok)
	}
	if _, ok := parseStalls([]byte("full avg10=0.00\n")); ok {
		t.Error("no stalls, and yet some")
	}
}

// FuzzParsers finds nothing out of range, whatever files hold.
func FuzzParsers(f *testing.F) {
	for _, archive := range []string{"v1-nested", "v2-bind", "v1-namespace-mount-above"} {
		b, err := os.ReadFile(filepath.Join("testdata", archive+".txt"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("max\n"))
	f.Add([]byte("0::/../../a\n"))
	f.Add([]byte("31 23 0:27 /a\\04 /\\777 rw - cgroup2 none rw"))
	f.Add([]byte("some total=99999999999999999999\nsome total=18446744073709551615"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, ok := parseBytes(b); n < 0 || n > unlimited || !ok && n != 0 {
			t.Errorf("%d bytes, %t", n, ok)
		}
		if total, available := parseMeminfo(b); total < 0 || available < 0 || available > total {
			t.Errorf("%d of %d bytes", available, total)
		}
		if s, _ := parseStalls(b); s.Some < 0 || s.Full < 0 {
			t.Errorf("%+v", s)
		}
		parseKeyed(b, func([]byte, uint64) {})
		v2, v1 := cgroupPaths(b)
		mounts := parseMounts(b)
		for _, memory := range []bool{false, true} {
			for _, cgroup := range []string{v1, v2, "/", "/a/b"} {
				g, ok := locate(mounts, memory, cgroup, func(string) bool { return true })
				if !ok {
					continue
				}
				if g.dir != g.top && !strings.HasPrefix(g.dir, strings.TrimSuffix(g.top, "/")+"/") {
					t.Errorf("%s is not in %s", g.dir, g.top)
				}
				if levels := g.levels(); levels[len(levels)-1] != g.top {
					t.Errorf("from %s to %s: %v", g.dir, g.top, levels)
				}
			}
		}
	})
}

func BenchmarkSample(b *testing.B) {
	b.ReportAllocs()
	s := At("/")
	for b.Loop() {
		s.Sample()
	}
}
