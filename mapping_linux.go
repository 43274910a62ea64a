package verbena

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
)

func mapNew(size int) (*Mapping, error) {
	f, err := memfd.Create("verbena-mapping", size, memfd.Sparse)
	if err != nil {
		return nil, err
	}
	fd, err := f.Duplicate()
	if err == nil {
		err = f.CloseDescriptor()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Mapping{bytes: f.Bytes()[:size:size], fd: fd, writable: true}, nil
}

func mapDescriptor(given uintptr) (m *Mapping, err error) {
	fd, err := unix.FcntlInt(given, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	seals, err := unix.FcntlInt(given, unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("it is no memfd, whose size could be sealed: %w", err)
	}
	if seals&memfd.Seals != memfd.Seals {
		if _, err := unix.FcntlInt(given, unix.F_ADD_SEALS, memfd.Seals); err != nil {
			return nil, fmt.Errorf("its size cannot be sealed (it wants MFD_ALLOW_SEALING): %w", err)
		}
	}
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	if stat.Size <= 0 || stat.Size > maxExposure {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLong, stat.Size)
	}
	rights, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	m = &Mapping{fd: fd, writable: rights&unix.O_ACCMODE == unix.O_RDWR && seals&(unix.F_SEAL_WRITE|unix.F_SEAL_FUTURE_WRITE) == 0}
	protection := unix.PROT_READ
	if m.writable {
		protection |= unix.PROT_WRITE
	}
	if m.bytes, err = unix.Mmap(fd, 0, int(stat.Size), protection, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *Mapping) unmap() error {
	if m.fd >= 0 {
		if err := unix.Close(m.fd); err != nil {
			return fmt.Errorf("verbena: close a mapping: %w", err)
		}
	}
	if err := memfd.Unmap(m.bytes[:cap(m.bytes)]); err != nil {
		return fmt.Errorf("verbena: close a mapping: %w", err)
	}
	return nil
}
