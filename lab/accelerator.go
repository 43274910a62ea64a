package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// What a machine runs on.
const (
	kvm = "kvm"
	tcg = "tcg" // QEMU's emulation
)

// probeLimit is ten times what a boot takes where KVM works.
const probeLimit = 10 * time.Second

// chooseAccelerator is kvm where a machine like m boots with it, and tcg
// elsewhere. Some hosts have a /dev/kvm whose machines die or hang, so that
// nothing less than a boot tells; the answer is kept until the host boots again.
func chooseAccelerator(ctx context.Context, m machine, say *progress) (string, error) {
	device, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil { // not there, or not for this user
		return tcg, nil
	}
	if err := device.Close(); err != nil {
		return "", err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	cache, err := cacheDirectory()
	if err != nil {
		return "", err
	}
	known := filepath.Join(cache, "accelerator")
	question := strings.TrimSpace(string(boot)) + " " + filepath.Base(m.image.directory)
	if answer, err := os.ReadFile(known); err == nil {
		if found, ok := strings.CutPrefix(strings.TrimSpace(string(answer)), question+" "); ok && (found == kvm || found == tcg) {
			return found, nil
		}
	}
	m.accelerator, m.limit = kvm, probeLimit
	m.job.Argv, m.stdout, m.stderr = []string{"/bin/true"}, io.Discard, io.Discard
	result := kvm
	if _, err := m.run(ctx); err != nil {
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		say.line("/dev/kvm is there but no machine boots with it: emulating")
		result = tcg
	}
	// Written aside: another run may read it now.
	f, err := os.CreateTemp(cache, "accelerator-")
	if err != nil {
		return "", err
	}
	defer remove(f.Name())
	if _, err := fmt.Fprintln(f, question, result); err != nil {
		f.Close()
		return "", err
	}
	if err := f.Close(); err != nil {
		return "", err
	}
	return result, os.Rename(f.Name(), known)
}
