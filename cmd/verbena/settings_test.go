package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSettings has the settings come by all ways.
func TestSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "verbena.yaml")
	if err := os.WriteFile(file, []byte("shm:\n  socket-dir: /run/verbena\ntuning:\n  shm:\n    eager: 8K\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VERBENA_IWARP_PEER_TIMEOUT", "12s")
	out, err := run(t, "", "info", "--json", "--config", file, "--set", "shm.allow-uids=7,8", "--tune", "iwarp.spin=5us", "--remote-iwarp",
		"--rule", "bulk: size=1M.. only=tcp", "--rule", "peer=10.0.0.0/8 never=shm")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var info hostInfo
	if err := json.Unmarshal([]byte(out), &info); err != nil {
		t.Fatal(err, out)
	}
	got := map[string]settingInfo{}
	for _, s := range info.Settings {
		got[s.Name] = s
	}
	for name, want := range map[string][2]string{
		"shm.socket-dir":     {"/run/verbena", file + ":2"},
		"tuning.shm.eager":   {"8K", file + ":5"},
		"iwarp.peer-timeout": {"12s", "environment VERBENA_IWARP_PEER_TIMEOUT"},
		"shm.allow-uids":     {"7,8", "--set"},
		"tuning.iwarp.spin":  {"5us", "--tune"},
		"iwarp.remote":       {"true", "--remote-iwarp"},
		"iwarp.markers":      {"false", "default"},
		"rules.1":            {"bulk: size=1M.. only=tcp", "--rule"},
		"rules.2":            {"peer=10.0.0.0/8 never=shm", "--rule"},
	} {
		if s := got[name]; s.Value != want[0] || s.From != want[1] {
			t.Errorf("%s: %+v, want %v", name, s, want)
		}
	}
	if s := got["tuning.shm.eager"]; !strings.HasPrefix(s.Usage, "built in: ") {
		t.Errorf("what was measured of the built-in value is told of another: %+v", s)
	}
	for _, bad := range [][]string{
		{"--set", "shm.socket-dir"}, {"--set", "shm.nothing=1"}, {"--tune", "shm.eager=1"}, {"--config", "/nowhere"}, {"--rule", "only=ether"},
		{"--huge-pages", "--set", "shm.allow-uids=1"},
	} {
		if out, err := run(t, "", append([]string{"info"}, bad...)...); err == nil {
			t.Errorf("%v: %s", bad, out)
		}
	}
}
