package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cavaliergopher/cpio"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSplitPattern(t *testing.T) {
	for run, want := range map[string][2]string{
		"":                  {"", ""},
		"TestA":             {"TestA", ""},
		"TestA/b":           {"TestA", "/b"},
		"Test(A/x|B)/c/d":   {"Test(A/x|B)", "/c/d"},
		"Test[/]A/b":        {"Test[/]A", "/b"},
		"IWARP/serves/5000": {"IWARP", "/serves/5000"},
	} {
		top, below := splitPattern(run)
		if [2]string{top, below} != want {
			t.Errorf("%q: %q and %q", run, top, below)
		}
	}
}

func TestArchive(t *testing.T) {
	host := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(host, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	a := newArchive(&packed)
	for _, err := range []error{
		a.link("bin", "usr/bin"),
		a.bytes("/etc/passwd", 0o644, []byte("root\n")),
		a.program("/bin/tool", host),
		a.bytes("/usr/bin/tool", 0o755, []byte("comes too late")),
		a.close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := a.file("x", t.TempDir()); err == nil {
		t.Error("a directory is packed as a file")
	}
	var got []string
	for r := cpio.NewReader(&packed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.Name+" "+h.Mode.String()+" "+h.Linkname+string(content))
	}
	want := []string{
		"bin 0120777 usr/bin", "etc 040755 ", "etc/passwd 0100644 root\n",
		"usr 040755 ", "usr/bin 040755 ", "usr/bin/tool 0100755 #!/bin/sh\n",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the archive holds\n%q, not\n%q", got, want)
	}
}

// A fake dpkg-query knows some packages.
func TestMissingPackages(t *testing.T) {
	bin := t.TempDir()
	query := func(lines ...string) {
		t.Helper()
		script := "#!/bin/sh\ncat <<'E'\n" + strings.Join(lines, "\n") + "\nE\nexit 1\n"
		if err := os.WriteFile(filepath.Join(bin, "dpkg-query"), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	var all []string
	for _, p := range hostPackages {
		all = append(all, p+" installed 1.0")
	}
	query(all...)
	if v, err := installedVersions(t.Context()); err != nil || v["perftest"] != "1.0" {
		t.Errorf("with all packages: %v, %v", v, err)
	}
	query(append(all[2:], hostPackages[1]+" config-files 1.0")...)
	_, err := installedVersions(t.Context())
	if !errors.Is(err, errMissing) || !strings.HasSuffix(err.Error(), "apt-get install --no-install-recommends "+hostPackages[0]+" "+hostPackages[1]) {
		t.Errorf("without two packages: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := installedVersions(t.Context()); err == nil || !strings.Contains(err.Error(), "no Debian") {
		t.Errorf("without dpkg: %v", err)
	}
}

func TestKeyNamesEverything(t *testing.T) {
	k := kernelPackages{release: "6.1.0-1-amd64", debs: []deb{{"a_1.deb", "a", 5}}}
	v := map[string]string{"qemu": "1", "perftest": "2"}
	first := key(k, v)
	if key(k, map[string]string{"perftest": "2", "qemu": "1"}) != first {
		t.Error("the key depends on an order")
	}
	other := k
	other.debs = []deb{{"a_2.deb", "a", 5}}
	if key(other, v) == first || key(k, map[string]string{"qemu": "1", "perftest": "3"}) == first {
		t.Error("another version has the same key")
	}
}

func TestLockKeepsOthersWaiting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(t.Context(), path, func() { t.Error("nobody has the lock") })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := lock(ctx, path, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock: %v", err)
	}
	var waited atomic.Bool
	second := make(chan error)
	waiting := make(chan struct{})
	go func() {
		unlock, err := lock(t.Context(), path, func() { waited.Store(true); close(waiting) })
		if err == nil {
			unlock()
		}
		second <- err
	}()
	<-waiting
	unlock()
	if err := <-second; err != nil || !waited.Load() {
		t.Errorf("the second: %v, waited %v", err, waited.Load())
	}
}

func TestRingKeepsTheEnd(t *testing.T) {
	r := &ring{size: 4}
	for _, s := range []string{"ab", "cdefgh", "i"} {
		if _, err := r.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if r.String() != "fghi" {
		t.Errorf("the ring holds %q", r)
	}
}

// What a test binary prints, judged.
func TestReport(t *testing.T) {
	const output = "\x16=== RUN   TestGood\n\x16--- PASS: TestGood (0.00s)\n" +
		"\x16=== RUN   TestConformance\n\x16=== RUN   TestConformance/Atomics\n" +
		"    suite.go:119: ibverbs siw0 lacks atomics: the driver has none\n" +
		"\x16--- SKIP: TestConformance/Atomics (0.00s)\n" +
		"\x16=== RUN   TestConformance/Tool\n    no tool\n\x16--- SKIP: TestConformance/Tool (0.00s)\n" +
		"\x16--- PASS: TestConformance (0.00s)\n" +
		"\x16=== RUN   TestBad\n    bad luck\n\x16--- FAIL: TestBad (0.00s)\n\x16=== RUN   TestCut\n"
	var out bytes.Buffer
	r := &report{out: bufio.NewWriter(&out)}
	b := &bootResult{report: r, name: "m", output: map[string][]string{}}
	if err := convert(strings.NewReader(output), "m", b.event); err != nil {
		t.Fatal(err)
	}
	if want := []string{
		"m/TestConformance/Tool was skipped, which the table in lab/cases.go does not allow",
		"m/TestBad",
	}; !slices.Equal(b.failures[:min(2, len(b.failures))], want) {
		t.Errorf("failures %q, not %q", b.failures, want)
	}
	if len(b.passed) != 2 || len(b.skipped) != 1 {
		t.Errorf("%q passed, %q skipped", b.passed, b.skipped)
	}
	if !strings.Contains(out.String(), "bad luck") || !strings.Contains(out.String(), "no tool") || strings.Contains(out.String(), "lacks atomics") {
		t.Errorf("shown:\n%s", &out)
	}
	r.failures = b.failures
	if err := r.summary(time.Second); err == nil || !strings.Contains(err.Error(), "m/TestBad") {
		t.Errorf("summary: %v", err)
	}
}

// What failed runs again, and as little else as patterns allow.
func TestAgain(t *testing.T) {
	p := planned{boot: boot{below: "/^Some$"}, names: []string{"TestA", "TestB", "TestC"}}
	for _, c := range []struct {
		failed  []string
		pattern string
	}{
		{nil, "^(TestA|TestB|TestC)$/^Some$"}, // no case's fault
		{[]string{"TestA"}, "^(TestA)$/^Some$"},
		{[]string{"TestA/x/65535", "TestA/x", "TestA"}, "^(TestA)$/^(x)$/^(65535)$"},
		{[]string{"TestA/x", "TestA", "TestB/y+z", "TestB/x", "TestB"}, "^(TestA|TestB)$/^(x|y\\+z)$"},
		{[]string{"TestA/x", "TestA", "TestB"}, "^(TestA|TestB)$/^Some$"},
		{[]string{"TestA/x/1", "TestA/x", "TestA/xy", "TestA"}, "^(TestA)$/^(x|xy)$"},
	} {
		arguments := p.again(c.failed).arguments(time.Minute, false)
		if !slices.Contains(arguments, "-test.run="+c.pattern) {
			t.Errorf("after %q: %q, not %q", c.failed, arguments, c.pattern)
		}
	}
}

func TestTables(t *testing.T) {
	for _, a := range allowedSkips {
		if a.reason == "" {
			t.Errorf("no reason for %v", a.test)
		}
	}
	names := map[string]bool{}
	for _, b := range boots {
		if names[b.name] {
			t.Errorf("two machines are called %s", b.name)
		}
		names[b.name] = true
		if b.loss != 0 && b.world == "" {
			t.Errorf("%s loses packets of links that it does not have", b.name)
		}
	}
}

func TestGoTestsFlag(t *testing.T) {
	got := asGoTest([]string{"-run", "A/b", "-run=C", "--run", "-v", "exec", "--", "x", "-run"})
	want := []string{"--run", "A/b", "--run=C", "--run", "-v", "exec", "--", "x", "-run"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
