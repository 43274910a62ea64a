//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// What the explanations look at; tests put a directory of their own here.
var (
	sysClass = "/sys/class"
	devices  = "/dev/infiniband"
)

// explainScarcity tells that the process has run out of descriptors, if it has. The
// loader of libraries and libibverbs open files and do not always tell why they
// could not: then the host seems to lack what it has.
func explainScarcity(to string) error {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
		return nil
	}
	if err != unix.EMFILE && err != unix.ENFILE {
		return nil
	}
	return fmt.Errorf("verbs: %w: there is no descriptor left to %s (%w); close some, or raise the limit (ulimit -n, LimitNOFILE in a systemd unit)", ErrUnavailable, to, err)
}

// explainNoDevice tells why libibverbs found no device.
func explainNoDevice() error {
	if err := explainScarcity("look for RDMA devices"); err != nil {
		return err
	}
	kernel, _ := filepath.Glob(filepath.Join(sysClass, "infiniband", "*"))
	var names []string
	for _, k := range kernel {
		names = append(names, filepath.Base(k))
	}
	switch _, err := os.Stat(filepath.Join(sysClass, "infiniband_verbs")); {
	case len(names) == 0:
		return fmt.Errorf("verbs: %w: the kernel has no RDMA device (%s/infiniband is empty); load the adapter's driver, or make a software device: rdma link add rxe0 type rxe netdev INTERFACE",
			ErrUnavailable, sysClass)
	case err != nil:
		return fmt.Errorf("verbs: %w: the kernel has RDMA devices (%s) but no user-space access to them; run: modprobe ib_uverbs", ErrUnavailable, strings.Join(names, ", "))
	}
	return fmt.Errorf("verbs: %w: the kernel has RDMA devices (%s) that libibverbs has no driver for; install ibverbs-providers, and in a container pass %s through",
		ErrUnavailable, strings.Join(names, ", "), devices)
}

func explainDeviceList(errno syscall.Errno) error {
	if err := explainScarcity("look for RDMA devices"); err != nil {
		return err
	}
	switch errno {
	case unix.ENOSYS:
		return fmt.Errorf("verbs: %w: the kernel has no RDMA support for user space (%w); run: modprobe ib_uverbs", ErrUnavailable, errno)
	case unix.EPERM, unix.EACCES:
		return fmt.Errorf("verbs: %w: listing RDMA devices is not permitted (%w)", ErrUnavailable, errno)
	}
	return failure("ibv_get_device_list", errno)
}

// explainOpen tells why a device could not be opened.
func explainOpen(device, verbsName string, errno syscall.Errno) error {
	if err := explainScarcity("open the RDMA device " + device); err != nil {
		return err
	}
	if verbsName == "" {
		return fmt.Errorf("verbs: %w: there is no RDMA device %q", ErrUnavailable, device)
	}
	path := filepath.Join(devices, verbsName)
	// libibverbs does not always leave the reason in errno: ask for it.
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	} else {
		var e syscall.Errno
		if errors.As(err, &e) {
			errno = e
		}
	}
	switch errno {
	case unix.EACCES, unix.EPERM:
		return fmt.Errorf("verbs: %w: no permission to open %s (%w); give this user read and write access to it, usually by a udev rule or the group rdma", ErrUnavailable, path, errno)
	case unix.ENOENT, unix.ENXIO, unix.ENODEV:
		return fmt.Errorf("verbs: %w: %s of device %s is not there (%w); pass %s through to this container, or run: modprobe ib_uverbs", ErrUnavailable, path, device, errno, devices)
	}
	return fmt.Errorf("verbs: opening %s (%s): %w", device, path, failure("ibv_open_device", errno))
}

// explainMemory adds to the error of a call that locks memory, for a region or
// for a queue, what may have kept it from it.
func explainMemory(err error) error {
	var limit unix.Rlimit
	if errors.Is(err, unix.ENOMEM) && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) == nil && limit.Cur != unix.RLIM_INFINITY {
		return fmt.Errorf("%w: registered memory counts as locked, and the limit is %d bytes in all; raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, memlock in limits.conf)", err, limit.Cur)
	}
	return err
}

// explainChannel tells why the connection manager could not be reached.
func explainChannel(errno syscall.Errno) error {
	if err := explainScarcity("reach the connection manager"); err != nil {
		return err
	}
	path := filepath.Join(devices, "rdma_cm")
	switch errno {
	case unix.EACCES, unix.EPERM:
		return fmt.Errorf("verbs: %w: no permission to open %s (%w); give this user read and write access to it", ErrUnavailable, path, errno)
	case unix.ENOENT, unix.ENXIO, unix.ENODEV, unix.ENOSYS, 0:
		return fmt.Errorf("verbs: %w: the connection manager's device %s can't be used (%w); run: modprobe rdma_ucm, or pass the device through to this container", ErrUnavailable, path, errno)
	}
	return failure("rdma_create_event_channel", errno)
}
