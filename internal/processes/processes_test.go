package processes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStartWaitsForTheAddress(t *testing.T) {
	file := filepath.Join(t.TempDir(), "address")
	p, err := Start(t.Context(), "child", file, "/bin/sh", "-c",
		`trap 'exit 0' TERM; echo 127.0.0.1:1 > `+file+`.tmp; mv `+file+`.tmp `+file+`; while :; do sleep 0.01; done`)
	if err != nil {
		t.Fatal(err)
	}
	if p.Address != "127.0.0.1:1" {
		t.Errorf("address %q", p.Address)
	}
	if _, err := p.CPU(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func TestStartTellsWhyAChildEnded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "address")
	_, err := Start(t.Context(), "child", file, "/bin/sh", "-c", "echo no disk left; exit 3")
	if err == nil || !strings.Contains(err.Error(), "no disk left") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, "child", filepath.Join(t.TempDir(), "address"), "/bin/sh", "-c", "exec sleep 60"); err == nil {
		t.Error("no error")
	}
}

func TestKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "address")
	p, err := Start(t.Context(), "child", file, "/bin/sh", "-c", "echo x > "+file+"; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if _, err := os.Stat("/proc/self"); err == nil {
		if _, err := p.CPU(); err == nil {
			t.Error("a killed process is still there")
		}
	}
	if err := p.Stop(); err != nil {
		t.Errorf("stopping a killed process: %v", err)
	}
}
