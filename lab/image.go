package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	_ "embed"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// The sources of the recipe: a change of them makes a new image.
var (
	//go:embed image.go
	recipeImage []byte
	//go:embed kernel.go
	recipeKernel []byte
	//go:embed archive.go
	recipeArchive []byte
)

// An image is what a virtual machine boots: built once, then only read.
type image struct {
	directory string
	kernel    string // an uncompressed ELF image
	base      string // the initial RAM file system without the job
}

// programs go into the image, from wherever the host has them.
var programs = []string{
	"dash", "timeout", "ip", "tc", "rdma", "ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "rping", "ucmatose", "udaddy",
	"ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw",
}

// libraries are loaded by name at run time, so that ldd does not tell of them:
// by providers, by pthread_exit, and by Go programs that open libibverbs.
var libraries = []string{
	"libibverbs.so.1", "librdmacm.so.1", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6", "libc.so.6",
}

const libraryDirectory = "/usr/lib/x86_64-linux-gnu"

// drivers are rdma-core's for the kernel's software devices.
var drivers = []string{"rxe", "siw"}

// cacheDirectory is where images and packages are kept.
func cacheDirectory() (string, error) {
	user, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep the virtual machine's image: %w (set XDG_CACHE_HOME)", err)
	}
	return filepath.Join(user, "verbena-lab"), nil
}

// key names an image by everything that it is made of.
func key(k kernelPackages, versions map[string]string) string {
	h := sha256.New()
	for _, part := range [][]byte{recipeImage, recipeKernel, recipeArchive} {
		fmt.Fprintf(h, "%d\n", len(part))
		h.Write(part)
	}
	fmt.Fprintln(h, k)
	names := make([]string, 0, len(versions))
	for n := range versions {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		fmt.Fprintln(h, n, versions[n])
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func imageAt(directory string) image {
	return image{directory, filepath.Join(directory, "vmlinux"), filepath.Join(directory, "base.cpio")}
}

// ensureImage returns the image for this host's packages and builds it first if
// it is not there. Several may ask at once: one builds, the others wait.
func ensureImage(ctx context.Context, say *progress) (image, error) {
	versions, err := installedVersions(ctx)
	if err != nil {
		return image{}, err
	}
	k, err := findKernel(ctx)
	if err != nil {
		return image{}, err
	}
	cache, err := cacheDirectory()
	if err != nil {
		return image{}, err
	}
	directory := filepath.Join(cache, "image-"+key(k, versions))
	if ready(directory) {
		return imageAt(directory), nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return image{}, err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"), func() { say.line("another run builds the image; waiting for it") })
	if err != nil {
		return image{}, err
	}
	defer unlock()
	if ready(directory) {
		return imageAt(directory), nil
	}
	// What a run that was killed left; nobody builds while the lock is held.
	left, err := filepath.Glob(filepath.Join(cache, "building-*"))
	if err != nil {
		return image{}, err
	}
	for _, l := range left {
		if err := os.RemoveAll(l); err != nil {
			return image{}, err
		}
	}
	building, err := os.MkdirTemp(cache, "building-")
	if err != nil {
		return image{}, err
	}
	defer remove(building)
	began := time.Now()
	say.line("building the virtual machine's image, once (Linux %s, kept in %s)", k.release, cache)
	if err := build(ctx, building, cache, k, say); err != nil {
		return image{}, fmt.Errorf("build the virtual machine's image: %w", err)
	}
	// The name appears when everything is in it.
	if err := os.Rename(filepath.Join(building, "image"), directory); err != nil {
		return image{}, err
	}
	say.line("image ready after %.0f s", time.Since(began).Seconds())
	return imageAt(directory), prune(cache, directory, k)
}

func ready(directory string) bool {
	now := time.Now()
	return os.Chtimes(directory, now, now) == nil // used: see prune
}

// lock takes an exclusive lock on a file. waiting is called if it has to wait.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for told := false; ; told = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if !told {
			waiting()
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// prune removes images that nobody has used for a month, and packages of other
// kernels.
func prune(cache, keep string, k kernelPackages) error {
	images, err := filepath.Glob(filepath.Join(cache, "image-*"))
	if err != nil {
		return err
	}
	for _, i := range images {
		info, err := os.Stat(i)
		if i == keep || err != nil || time.Since(info.ModTime()) < 30*24*time.Hour {
			continue
		}
		if err := os.RemoveAll(i); err != nil {
			return err
		}
	}
	debs, err := filepath.Glob(filepath.Join(cache, "packages", "*.deb"))
	if err != nil {
		return err
	}
	for _, d := range debs {
		if slices.ContainsFunc(k.debs, func(p deb) bool { return p.file == filepath.Base(d) }) {
			continue
		}
		if err := os.Remove(d); err != nil {
			return err
		}
	}
	return nil
}

// build makes directory/image.
func build(ctx context.Context, directory, cache string, k kernelPackages, say *progress) error {
	out := filepath.Join(directory, "image")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	tree, err := buildKernel(ctx, directory, filepath.Join(cache, "packages"), filepath.Join(out, "vmlinux"), k, say)
	if err != nil {
		return err
	}
	defer say.step("packing the file system")()
	f, err := os.Create(filepath.Join(out, "base.cpio"))
	if err != nil {
		return err
	}
	defer f.Close()
	a := newArchive(f)
	if err := pack(ctx, a, tree, k); err != nil {
		return err
	}
	if err := a.close(); err != nil {
		return err
	}
	return f.Close()
}

func pack(ctx context.Context, a *archive, tree string, k kernelPackages) error {
	for _, d := range []string{"proc", "sys", "dev", "tmp", "run", "root", "mnt", "host", "etc", "var/run", "lab", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64"} {
		if err := a.directory(d); err != nil {
			return err
		}
	}
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := a.link(d, "usr/"+d); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
		"etc/group":  "root:x:0:\n",
		"etc/hosts":  "127.0.0.1 localhost\n::1 localhost\n10.9.0.1 host0\n10.9.0.2 host1\n",
	} {
		if err := a.bytes(name, 0o644, []byte(content)); err != nil {
			return err
		}
	}
	for _, name := range programs {
		p, err := lookPath(name)
		if err != nil {
			return err
		}
		if err := a.program("usr/bin/"+name, p); err != nil {
			return err
		}
	}
	// busybox's own shell would run its ip and timeout in place of those here.
	if err := a.link("usr/bin/sh", "dash"); err != nil {
		return err
	}
	busybox, err := lookPath("busybox")
	if err != nil {
		return err
	}
	if err := a.file("usr/bin/busybox", busybox); err != nil {
		return err
	}
	applets, err := command(ctx, "", busybox, "--list")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(applets) {
		if err := a.link("usr/bin/"+name, "busybox"); err != nil { // what is there stays
			return err
		}
	}
	// The kernel asks this very path for modules.
	if err := a.link("usr/sbin/modprobe", "../bin/busybox"); err != nil {
		return err
	}
	for _, l := range libraries {
		if err := a.program(filepath.Join(libraryDirectory, l), filepath.Join(libraryDirectory, l)); err != nil {
			return err
		}
	}
	for _, d := range drivers {
		found, err := filepath.Glob(filepath.Join(libraryDirectory, "libibverbs", "lib"+d+"-rdmav*.so"))
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("rdma-core's driver for %s is not in %s/libibverbs (package ibverbs-providers)", d, libraryDirectory)
		}
		for _, l := range found {
			if err := a.program(l, l); err != nil {
				return err
			}
		}
		if err := a.file("etc/libibverbs.d/"+d+".driver", "/etc/libibverbs.d/"+d+".driver"); err != nil {
			return err
		}
	}
	return packModules(ctx, a, tree, k)
}

// lookPath is exec.LookPath with the directories of system programs, which the
// PATH of ordinary users lacks.
func lookPath(name string) (string, error) {
	for _, d := range []string{"/usr/sbin", "/sbin"} {
		p := filepath.Join(d, name)
		if info, err := os.Stat(p); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return exec.LookPath(name)
}

// command runs a program and returns its standard output; a failure carries what
// it wrote to standard error.
func command(ctx context.Context, directory, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	var out, complaint bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = directory, &out, &complaint
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		text := strings.TrimSpace(complaint.String())
		if text == "" {
			text = strings.TrimSpace(tail(out.String(), 10))
		}
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(append([]string{name}, args...), " "), err, text)
	}
	return out.String(), nil
}

// tail returns the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func imageCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "image",
		Short: "Build the virtual machine's image, if it is not there, and say where it is",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := ensureImage(cmd.Context(), o.progress())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), i.directory)
			return err
		},
	}
}
