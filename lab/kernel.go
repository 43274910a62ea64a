package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// modules go into the image with everything they need.
var modules = []string{
	"rdma_rxe", "siw", "rdma_ucm", "ib_uverbs", "crc32_generic", "crc32c_generic", "veth", "sch_netem",
	"virtio_pci", "virtio_console", "9pnet_virtio", "9p",
}

// siwSources is where Linux has Soft-iWARP, which Debian 12 does not build.
const siwSources = "drivers/infiniband/sw/siw"

// A deb is a package that apt can fetch.
type deb struct {
	file, name string
	size       int64
}

// kernelPackages are what the kernel is made of. It is part of the image's key.
type kernelPackages struct {
	release string // as uname -r tells it
	series  string // 6.1
	debs    []deb
}

// refresh is what to do when apt does not find what it should.
const refresh = "the package lists may be missing or old: run apt-get update"

// findKernel asks apt which kernel Debian has now. It needs no right.
func findKernel(ctx context.Context) (kernelPackages, error) {
	var k kernelPackages
	out, err := command(ctx, "", "apt-cache", "depends", "linux-image-amd64")
	if err != nil {
		return k, fmt.Errorf("find Debian's kernel: %w (%s)", err, refresh)
	}
	for _, line := range strings.Split(out, "\n") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: linux-image-"); ok {
			k.release = rest
			break
		}
	}
	abi, ok := strings.CutSuffix(k.release, "-amd64")
	numbers := strings.Split(abi, ".")
	if !ok || len(numbers) < 2 {
		return k, fmt.Errorf("find Debian's kernel: linux-image-amd64 depends on %q (%s)", k.release, refresh)
	}
	k.series = numbers[0] + "." + numbers[1]
	names := []string{
		"linux-image-" + k.release, "linux-headers-" + k.release, "linux-headers-" + abi + "-common",
		"linux-kbuild-" + k.series, "linux-source-" + k.series,
	}
	out, err = command(ctx, "", "apt-get", append([]string{"download", "--print-uris"}, names...)...)
	if err != nil {
		return k, fmt.Errorf("find Debian's kernel: %w (%s)", err, refresh)
	}
	for _, line := range strings.Split(out, "\n") {
		f := strings.Fields(line) // 'uri' file size hash
		if len(f) < 3 {
			continue
		}
		size, err := strconv.ParseInt(f[2], 10, 64)
		name, _, ok := strings.Cut(f[1], "_")
		if err != nil || !ok || f[1] != filepath.Base(f[1]) {
			return k, fmt.Errorf("find Debian's kernel: apt-get download --print-uris printed %q", line)
		}
		k.debs = append(k.debs, deb{f[1], name, size})
	}
	if len(k.debs) != len(names) {
		return k, fmt.Errorf("find Debian's kernel: apt knows %d of the packages %s (%s)", len(k.debs), strings.Join(names, " "), refresh)
	}
	return k, nil
}

// fetch brings the packages into a directory. apt checks what it fetches; a file
// gets its name there when it is whole.
func (k kernelPackages) fetch(ctx context.Context, directory, scratch string, say *progress) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	arriving := filepath.Join(scratch, "arriving")
	if err := os.Mkdir(arriving, 0o755); err != nil {
		return err
	}
	var missing []deb
	var names []string
	var total int64
	for _, d := range k.debs {
		if info, err := os.Stat(filepath.Join(directory, d.file)); err == nil && info.Size() == d.size {
			continue
		}
		missing = append(missing, d)
		names = append(names, d.name)
		total += d.size
	}
	if len(missing) == 0 {
		return nil
	}
	done := say.growing("fetching the kernel's packages", arriving, total)
	_, err := command(ctx, arriving, "apt-get", append([]string{"download", "-q"}, names...)...)
	done()
	if err != nil {
		return fmt.Errorf("fetch the kernel's packages: %w (%s)", err, refresh)
	}
	for _, d := range missing {
		if err := os.Rename(filepath.Join(arriving, d.file), filepath.Join(directory, d.file)); err != nil {
			return fmt.Errorf("fetch the kernel's packages: %w", err)
		}
	}
	return nil
}

func (k kernelPackages) path(directory, prefix string) (string, error) {
	for _, d := range k.debs {
		if strings.HasPrefix(d.name, prefix) {
			return filepath.Join(directory, d.file), nil
		}
	}
	return "", fmt.Errorf("no package %s", prefix)
}

// buildKernel unpacks and builds in scratch, writes the kernel's image to
// vmlinux, and returns the directory that has lib/modules.
func buildKernel(ctx context.Context, scratch, packages, vmlinux string, k kernelPackages, say *progress) (tree string, err error) {
	if err := k.fetch(ctx, packages, scratch, say); err != nil {
		return "", err
	}
	tree, headers, source := filepath.Join(scratch, "kernel"), filepath.Join(scratch, "headers"), filepath.Join(scratch, "source")
	done := say.step("unpacking the kernel")
	for _, d := range k.debs {
		into := headers
		switch {
		case strings.HasPrefix(d.name, "linux-source-"):
			continue
		case strings.HasPrefix(d.name, "linux-image-"):
			into = tree
		}
		if _, err := command(ctx, "", "dpkg-deb", "-x", filepath.Join(packages, d.file), into); err != nil {
			return "", err
		}
	}
	if err := extractKernel(ctx, filepath.Join(tree, "boot", "vmlinuz-"+k.release), vmlinux); err != nil {
		return "", err
	}
	done()
	done = say.step("building siw.ko, which Debian leaves out")
	if err := k.unpackSource(ctx, packages, source); err != nil {
		return "", err
	}
	if err := k.buildSIW(ctx, source, headers, tree); err != nil {
		return "", err
	}
	done()
	// Of all modules only these go into the image; depmod tells their order.
	if _, err := command(ctx, "", mustLook("depmod"), "-b", tree, k.release); err != nil {
		return "", err
	}
	return tree, nil
}

func mustLook(name string) string {
	if p, err := lookPath(name); err == nil {
		return p
	}
	return name // running it says that it is not there
}

// extractKernel finds the compressed kernel inside a bzImage. Booted as an ELF
// image by its PVH note it needs neither firmware nor its own unpacking, which
// take most of the time under emulation.
func extractKernel(ctx context.Context, bzImage, vmlinux string) error {
	raw, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	magic := []byte("\xfd7zXZ\x00")
	for at := 0; ; {
		i := bytes.Index(raw[at:], magic)
		if i < 0 {
			return fmt.Errorf("%s holds no kernel compressed by xz", bzImage)
		}
		at += i
		cmd := exec.CommandContext(ctx, "xz", "--decompress", "--stdout", "--single-stream")
		cmd.Stdin = bytes.NewReader(raw[at:])
		var out bytes.Buffer
		cmd.Stdout = &out
		_ = cmd.Run() // it complains of what stands behind the stream: the content decides
		if bytes.HasPrefix(out.Bytes(), []byte("\x7fELF")) {
			return os.WriteFile(vmlinux, out.Bytes(), 0o644)
		}
		at += len(magic)
	}
}

// unpackSource unpacks siw's sources alone.
func (k kernelPackages) unpackSource(ctx context.Context, packages, into string) error {
	deb, err := k.path(packages, "linux-source-")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	name := "linux-source-" + k.series
	outer := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	tarball := exec.CommandContext(ctx, "tar", "-xO", "./usr/src/"+name+".tar.xz")
	inner := exec.CommandContext(ctx, "tar", "-xJ", "-C", into, "--strip-components=1", "--wildcards", name+"/"+siwSources+"/*")
	inner.Env = append(os.Environ(), "XZ_DEFAULTS=--threads="+strconv.Itoa(runtime.NumCPU()))
	return pipeline(outer, tarball, inner)
}

// pipeline runs programs with the output of each as the input of the next.
func pipeline(cmds ...*exec.Cmd) error {
	complaints := make([]bytes.Buffer, len(cmds))
	var ends []io.Closer
	for i, c := range cmds {
		c.Stderr = &complaints[i]
		if i+1 < len(cmds) {
			r, w, err := os.Pipe()
			if err != nil {
				return err
			}
			c.Stdout, cmds[i+1].Stdin = w, r
			ends = append(ends, r, w)
		}
	}
	var err error
	started := 0
	for _, c := range cmds {
		if err = c.Start(); err != nil {
			break
		}
		started++
	}
	for _, e := range ends {
		err = errors.Join(err, e.Close())
	}
	for i, c := range cmds[:started] {
		if e := c.Wait(); e != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), e, strings.TrimSpace(complaints[i].String())))
		}
	}
	return err
}

// buildSIW builds the driver against the unpacked headers and puts it among the
// modules, unless Debian's kernel has it.
func (k kernelPackages) buildSIW(ctx context.Context, source, headers, tree string) error {
	if _, err := os.Stat(filepath.Join(tree, "lib/modules", k.release, "kernel", siwSources, "siw.ko")); err == nil {
		return nil
	}
	directory := filepath.Join(source, siwSources)
	found, err := filepath.Glob(filepath.Join(directory, "*.c"))
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("linux-source-%s has no %s", k.series, siwSources)
	}
	objects := make([]string, len(found))
	for i, f := range found {
		objects[i] = strings.TrimSuffix(filepath.Base(f), ".c") + ".o"
	}
	kbuild := "obj-m := siw.o\nsiw-y := " + strings.Join(objects, " ") + "\n"
	if err := os.WriteFile(filepath.Join(directory, "Kbuild"), []byte(kbuild), 0o644); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(directory, "Makefile")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The headers' makefile names the common ones by their place on a host.
	makefile := filepath.Join(headers, "usr/src", "linux-headers-"+k.release, "Makefile")
	content, err := os.ReadFile(makefile)
	if err != nil {
		return err
	}
	content = bytes.ReplaceAll(content, []byte("include /usr/src/"), []byte("include "+headers+"/usr/src/"))
	if err := os.WriteFile(makefile, content, 0o644); err != nil {
		return err
	}
	if _, err := command(ctx, "", "make", "-s", "-j"+strconv.Itoa(runtime.NumCPU()), "-C", filepath.Dir(makefile), "M="+directory, "modules"); err != nil {
		return err
	}
	extra := filepath.Join(tree, "lib/modules", k.release, "extra")
	if err := os.MkdirAll(extra, 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(directory, "siw.ko"), filepath.Join(extra, "siw.ko"))
}

// packModules packs the modules and what they need, stripped, and the lists that
// modprobe reads.
func packModules(ctx context.Context, a *archive, tree string, k kernelPackages) error {
	small := filepath.Join(filepath.Dir(tree), "modules")
	root := filepath.Join(tree, "lib/modules", k.release)
	for _, m := range modules {
		out, err := command(ctx, "", mustLook("modprobe"), "-d", tree, "-S", k.release, "--show-depends", m)
		if err != nil {
			return err
		}
		for _, line := range strings.Split(out, "\n") {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "insmod" { // the kernel has it built in
				continue
			}
			relative, err := filepath.Rel(root, f[1])
			if err != nil || !filepath.IsLocal(relative) {
				return fmt.Errorf("modprobe --show-depends %s named %s, outside of %s", m, f[1], root)
			}
			to := filepath.Join(small, "lib/modules", k.release, relative)
			if _, err := os.Stat(to); err == nil {
				continue
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			if _, err := command(ctx, "", "strip", "--strip-debug", "-o", to, f[1]); err != nil {
				return err
			}
		}
	}
	for _, list := range []string{"modules.builtin", "modules.builtin.modinfo", "modules.order"} {
		content, err := os.ReadFile(filepath.Join(root, list))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(small, "lib/modules", k.release, list), content, 0o644); err != nil {
			return err
		}
	}
	if _, err := command(ctx, "", mustLook("depmod"), "-b", small, k.release); err != nil {
		return err
	}
	return filepath.WalkDir(small, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		relative, err := filepath.Rel(small, p)
		if err != nil {
			return err
		}
		return a.file(path.Join("/", filepath.ToSlash(relative)), p)
	})
}
