package memfd

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Share returns another descriptor of a memfd, without a mapping. fd stays the
// caller's.
func Share(fd int) (*File, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("memfd: duplicate: %w", err)
	}
	return Own(own), nil
}

// Own takes over a descriptor, of any file, that is to be handed to others.
func Own(fd int) *File { return &File{fd: fd} }

// Seals that every memfd carries: its size is final, and so are the seals.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

const hugePage = 2 << 20

// Kind is how a memfd is made. The zero value is reserved memory.
type Kind uint8

const (
	// Reserved allocates all pages at once.
	Reserved Kind = iota
	// Sparse allocates pages when they are touched, for tables and rings of which
	// little is used. Where the host accounts for each page strictly it is Reserved,
	// because a page that is refused when it is touched raises SIGBUS.
	Sparse
	// Huge is Reserved of 2 MiB pages; the size is rounded up to them.
	Huge
)

// A File is a memfd and this process's mapping of it.
type File struct {
	fd     int
	memory []byte
}

// Create makes a zeroed memfd of size bytes, maps it for reading and writing and
// seals it. The name appears in /proc only.
func Create(name string, size int, kind Kind) (*File, error) {
	return create(name, size, kind, Seals)
}

// CreatePublished is Create, except that nobody else, whoever holds the
// descriptor, can write to the memory or map it for writing.
func CreatePublished(name string, size int, kind Kind) (*File, error) {
	return create(name, size, kind, Seals|unix.F_SEAL_FUTURE_WRITE)
}

func create(name string, size int, kind Kind, seals int) (*File, error) {
	if size <= 0 {
		return nil, fmt.Errorf("memfd %s: size %d is not positive", name, size)
	}
	if kind == Sparse && strict() {
		kind = Reserved
	}
	if kind == Reserved && size >= checkedSize {
		if err := checkAvailable(size); err != nil {
			return nil, fmt.Errorf("memfd %s: %w", name, err)
		}
	}
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	if kind == Huge {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
		size = (size + hugePage - 1) &^ (hugePage - 1)
	}
	fd, err := unix.MemfdCreate(name, flags)
	if err != nil {
		return nil, fmt.Errorf("memfd_create %s: %w", name, err)
	}
	f := &File{fd: fd}
	// A memfd starts out with rights for everybody: whoever gets a descriptor for
	// reading only could open it again for writing, through /proc.
	if err := unix.Fchmod(fd, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("memfd %s: rights: %w", name, err), f.Close())
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, errors.Join(fmt.Errorf("memfd %s: size of %d bytes: %w", name, size, err), f.Close())
	}
	if kind != Sparse {
		if err := retry(func() error { return unix.Fallocate(fd, 0, 0, int64(size)) }); err != nil {
			return nil, errors.Join(fmt.Errorf("memfd %s: allocate %d bytes: %w", name, size, err), f.Close())
		}
	}
	if f.memory, err = mapFile(fd, size, true, kind != Sparse); err != nil {
		return nil, errors.Join(fmt.Errorf("memfd %s: map %d bytes: %w", name, size, err), f.Close())
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("memfd %s: seal: %w", name, err), f.Close())
	}
	return f, nil
}

// Reservations of this size and more are compared with what the host has left:
// the kernel would begin them, and kill processes when it runs out.
const checkedSize = 64 << 20

func checkAvailable(size int) error {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil // not known, so the kernel will decide
	}
	defer f.Close()
	left, known := 0, false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &kib); err == nil {
			left, known = left+kib<<10, true
		} else if _, err := fmt.Sscanf(lines.Text(), "SwapFree: %d kB", &kib); err == nil {
			left += kib << 10
		}
	}
	if known && size > left {
		return fmt.Errorf("%d bytes do not fit into the %d that the host has available: %w", size, left, unix.ENOMEM)
	}
	return nil
}

// Check tells whether fd is a memfd of exactly size bytes whose size is sealed.
// A size of zero accepts any.
func Check(fd int, size int64) error {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("descriptor is no memfd: %w", err)
	}
	if seals&Seals != Seals {
		return fmt.Errorf("memfd lacks seals: has %#x, needs %#x", seals, Seals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("memfd: %w", err)
	}
	if stat.Size <= 0 || size != 0 && stat.Size != size {
		return fmt.Errorf("memfd has %d bytes, expected %d", stat.Size, size)
	}
	return nil
}

// Terms say how Adopt maps memory.
type Terms struct {
	Writable bool // for writing, too
	// Foreign says that the maker may be malicious. Memory that could raise SIGBUS
	// in its hands is refused.
	Foreign bool
}

// Adopt checks a descriptor that another process handed over and maps its first
// size bytes. It always takes fd over and closes it: a mapping needs none.
func Adopt(fd int, size int, terms Terms) (memory []byte, err error) {
	defer func() {
		if closeErr := unix.Close(fd); closeErr != nil && err == nil {
			err = errors.Join(fmt.Errorf("memfd: close: %w", closeErr), Unmap(memory))
			memory = nil
		}
	}()
	if size <= 0 {
		return nil, fmt.Errorf("memfd: size %d is not positive", size)
	}
	if err := Check(fd, 0); err != nil {
		return nil, err
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	// Huge pages and whole pages may make the file longer than what is used.
	if stat.Size < int64(size) || stat.Size > int64(size)+hugePage {
		return nil, fmt.Errorf("memfd has %d bytes, expected %d", stat.Size, size)
	}
	huge, err := onHugePages(fd)
	if err != nil {
		return nil, err
	}
	length := size
	if huge {
		if terms.Foreign {
			return nil, errors.New("memfd of huge pages, whose maker can take them away: the other user's process must allocate without huge pages")
		}
		length = int(stat.Size)
	}
	memory, err = mapFile(fd, length, terms.Writable, false) // it allocates nothing: that would be in this process's name
	if err != nil {
		return nil, fmt.Errorf("memfd: map %d bytes: %w", size, err)
	}
	return memory, nil
}

func onHugePages(fd int) (bool, error) {
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil {
		return false, fmt.Errorf("memfd: %w", err)
	}
	return system.Type == unix.HUGETLBFS_MAGIC, nil
}

// ErrStrictOvercommit says that this host refuses pages to processes that have
// mapped them already.
var ErrStrictOvercommit = errors.New("vm.overcommit_memory is 2, so a page of a memfd that its maker has freed again may be refused, which would end this process by SIGBUS: " +
	"set vm.overcommit_memory to 0 or 1")

// CheckForeign tells whether memory of a process that may be malicious is safe to
// map. Sealing does not keep the maker from freeing pages; what touches them then
// gets new ones, zeroed, unless the host accounts for each page strictly.
func CheckForeign() error {
	mode, err := overcommit()
	if err != nil {
		return fmt.Errorf("whether vm.overcommit_memory is 2, where a page that is mapped may be refused, is not known: %w", err)
	}
	if mode == never {
		return ErrStrictOvercommit
	}
	return nil
}

// never is the mode of vm.overcommit_memory in which pages that nobody has
// accounted for are refused.
const never = "2"

func overcommit() (string, error) {
	text, err := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return strings.TrimSpace(string(text)), err
}

// strict is not asked again: it decides what is best, and is rarely changed.
var strict = sync.OnceValue(func() bool {
	mode, err := overcommit()
	return err == nil && mode == never
})

// Identity is what tells one memfd of this host from another while it exists.
type Identity struct{ Device, Inode uint64 }

// Identify returns the identity of the file behind fd.
func Identify(fd int) (Identity, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return Identity{}, fmt.Errorf("memfd: %w", err)
	}
	return Identity{uint64(stat.Dev), stat.Ino}, nil //nolint:unconvert // the field's type differs between architectures
}

// Unmap releases a mapping that Adopt returned. Nil is accepted.
func Unmap(memory []byte) error {
	if memory == nil {
		return nil
	}
	if err := unix.Munmap(memory); err != nil {
		return fmt.Errorf("memfd: unmap: %w", err)
	}
	return nil
}

// FD is the descriptor, which stays the File's.
func (f *File) FD() int { return f.fd }

// Bytes is the mapping, until Close. Huge ones are longer than was asked for.
func (f *File) Bytes() []byte { return f.memory }

// OpenReadOnly opens the memory anew, so that whoever gets the descriptor can map
// it for reading only. The caller closes it.
func (f *File) OpenReadOnly() (int, error) {
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(f.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("memfd: open for reading only: %w", err)
	}
	return fd, nil
}

// Duplicate returns another descriptor of the memory, which the caller closes.
func (f *File) Duplicate() (int, error) {
	fd, err := unix.FcntlInt(uintptr(f.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("memfd: duplicate: %w", err)
	}
	return fd, nil
}

// CloseDescriptor closes the descriptor and keeps the mapping.
func (f *File) CloseDescriptor() error {
	if f.fd < 0 {
		return nil
	}
	fd := f.fd
	f.fd = -1
	if err := unix.Close(fd); err != nil {
		return fmt.Errorf("memfd: close: %w", err)
	}
	return nil
}

// Close unmaps the memory and closes the descriptor. Other processes keep what
// they have mapped; the pages go when the last of them lets go.
func (f *File) Close() error {
	memory := f.memory
	f.memory = nil
	return errors.Join(Unmap(memory), f.CloseDescriptor())
}

// Available tells whether this kernel has sealed memfds.
func Available() error {
	f, err := Create("verbena-probe", os.Getpagesize(), Reserved)
	if err != nil {
		return err
	}
	return f.Close()
}

func mapFile(fd, size int, writable, populate bool) ([]byte, error) {
	protection, flags := unix.PROT_READ, unix.MAP_SHARED
	if writable {
		protection |= unix.PROT_WRITE
	}
	if populate {
		flags |= unix.MAP_POPULATE
	}
	return unix.Mmap(fd, 0, size, protection, flags)
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
