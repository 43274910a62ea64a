package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Machine is what figures were measured on.
type Machine struct {
	Date       string            `json:"date"`
	Commit     string            `json:"commit"`
	Changed    bool              `json:"changed"` // files that are not committed
	OS         string            `json:"os"`
	Processor  string            `json:"processor"`
	Processors int               `json:"processors"`
	Go         string            `json:"go"`
	Peers      map[string]string `json:"peers,omitempty"` // versions of packages
	Label      string            `json:"label,omitempty"`
	Short      bool              `json:"short,omitempty"`
	Load       float64           `json:"load"`     // average of the last minute, at the start
	Multiply   float64           `json:"multiply"` // see [Multiplication], at the start
}

// Describe tells of this machine, with the tree in dir and the versions of packages that
// stand for peers.
func Describe(ctx context.Context, dir string, packages map[string]string) Machine {
	m := Machine{
		Date: time.Now().UTC().Format("2006-01-02 15:04 UTC"), Processors: runtime.NumCPU(), Go: runtime.Version(),
		Peers: map[string]string{}, Multiply: Multiplication(),
	}
	// What cannot be told stays empty.
	line := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			return ""
		}
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return first
	}
	m.Commit = line("git", "rev-parse", "--short=12", "HEAD")
	m.Changed = line("git", "status", "--porcelain", "--untracked-files=no") != ""
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.OS = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:]) + " " + runtime.GOARCH
	}
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for l := range strings.Lines(string(raw)) {
			if name, value, ok := strings.Cut(l, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.Processor = strings.TrimSpace(value)
				break
			}
		}
	}
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(raw), &m.Load) // 0 says that it is not known
	}
	for name, pkg := range packages {
		m.Peers[name] = line("dpkg-query", "-W", "-f", "${Version}", pkg)
	}
	return m
}

// ModuleRoot is the folder above this module.
func ModuleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	file := strings.TrimSpace(string(out))
	dir := filepath.Dir(file)
	if filepath.Base(dir) != "bench" {
		return "", fmt.Errorf("run it in the module bench (go -C bench run), not in %s", dir)
	}
	return filepath.Dir(dir), nil
}

// Build runs go with args, such as build or test -c, and a package in the tree dir, and
// leaves the binary in out.
func Build(ctx context.Context, dir, out string, args []string, pkg string, env ...string) error {
	cmd := exec.CommandContext(ctx, "go", slices.Concat(args, []string{"-buildvcs=false", "-o", out, pkg})...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, Tail(string(text)))
	}
	return nil
}
