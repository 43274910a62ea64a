package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/cmd/verbena/internal/settings"
)

func TestTune(t *testing.T) {
	t.Setenv(asVerbena, "1")
	file := filepath.Join(t.TempDir(), "tuning.yaml")
	args := []string{"tune", "--iterations", "20", "--warmup", "2", "--transport", "shm,tcp", "--output", file}
	out, err := run(t, "", append(args, "--json")...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	names := map[string]bool{}
	for d := json.NewDecoder(strings.NewReader(out[strings.Index(out, "{"):])); d.More(); {
		var v tuned
		if err := d.Decode(&v); err != nil {
			t.Fatal(err, out)
		}
		if v.Value == "" || v.Was == "" || v.MeasuredOn == "" {
			t.Errorf("%+v", v)
		}
		names[v.Name] = true
	}
	for _, name := range []string{"tuning.shm.eager", "tuning.shm.chunk", "tuning.shm.chunks", "tuning.shm.max-window", "tuning.shm.spin", "tuning.tcp.chunk"} {
		if !names[name] {
			t.Errorf("no %s in\n%s", name, out)
		}
	}
	// The file is one that the binary takes, and its values are in force.
	s, err := settings.Load(file, nil, nil)
	if err != nil || len(s) != 6 {
		text, _ := os.ReadFile(file)
		t.Fatalf("%v, %v of\n%s", s, err, text)
	}
	if out, err := run(t, "", "info", "--config", file); err != nil || !strings.Contains(out, file+":") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A file that is replaced stays what it was: a link, with its mode. One that somebody else writes meanwhile stays.
func TestTuneOutput(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "tuning.yaml"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("tuning.yaml", link); err != nil {
		t.Fatal(err)
	}
	all := []tuned{{Name: "tuning.shm.eager", Value: "4096", MeasuredOn: "a test"}}
	replace := tuneOptions{output: link, force: true}
	out, err := replace.create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := replace.save(t.Context(), out, all); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(text), "eager: 4096") {
		t.Errorf("%v, %s", err, text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if to, err := os.Readlink(link); err != nil || to != "tuning.yaml" {
		t.Errorf("%s, %v", to, err)
	}

	fresh := tuneOptions{output: filepath.Join(dir, "fresh")}
	if out, err = fresh.create(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fresh.output, []byte("somebody's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := fresh.save(t.Context(), out, all); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Error(err)
	}
	if err := out.Abort(t.Context()); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(fresh.output); err != nil || string(text) != "somebody's" {
		t.Errorf("%v, %s", err, text)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// What is wrong is told before anything is measured, and leaves no file.
func TestTuneSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, c := range []struct{ flag, value, want string }{
		{"--transport", "auto", `no transport "auto" to tune`},
		{"--duration", "-1s", "--duration -1s: want more than 0"},
		{"--iterations", "-1", "--iterations -1: want 0 or more"},
		{"--warmup", "-1", "--warmup -1: want 0 or more"},
		{"--set", "ibverbs.device=none", "tune ibverbs: "},
		{"--output", dir, "is a directory: name a file in it"},
		{"--output", socket, "is not a regular file"},
	} {
		args := []string{"tune", "--force", "--iterations", "1", "--output", filepath.Join(dir, "tuning.yaml"), c.flag, c.value}
		if c.flag == "--set" {
			t.Setenv(asVerbena, "1")
			args = append(args, "--transport", "ibverbs")
		}
		if out, err := run(t, "", args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v\n%s", c.flag, c.value, err, out)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestCrossover(t *testing.T) {
	fetched := []cost{{alone: 2, rate: 10}, {alone: 3, rate: 10}, {alone: 4, rate: 10}}
	for name, c := range map[string]struct {
		copied []cost
		want   int
	}{
		"always":                       {[]cost{{1, 10}, {2, 10}, {3, 10}}, 2},
		"faster in streams only":       {[]cost{{2, 20}, {3, 20}, {4, 20}}, 2},
		"the last is slower":           {[]cost{{1, 10}, {2, 10}, {5, 10}}, 1},
		"the last is not worth it":     {[]cost{{1, 10}, {2, 10}, {3.9, 10}}, 1},
		"the last slows streams":       {[]cost{{1, 10}, {2, 10}, {2, 9}}, 1},
		"never":                        {[]cost{{3, 10}, {2, 10}, {1, 10}}, 0},
		"what comes behind a slow one": {[]cost{{1, 10}, {4, 10}, {1, 10}}, 0},
	} {
		if got := crossover(c.copied, fetched); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	for want, rates := range [][]float64{{98, 99, 100}, {90, 99, 100}, {90, 91, 100}} {
		if got := knee(rates); got != want {
			t.Errorf("%v: %d, want %d", rates, got, want)
		}
	}
}
