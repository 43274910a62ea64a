package tmpfs

import (
	"bytes"
	"math"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// largePage is how many bytes a large page has, 0 if the kernel has none.
var largePage = sync.OnceValue(func() int64 {
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 || n&(n-1) != 0 {
		return 0
	}
	return n
})

// Enlarge has the kernel move the first size bytes of a file into large pages, 2 MiB each on
// amd64, whatever the option of its mount says (MADV_COLLAPSE, Linux 6.1). Bytes that don't fill a
// large page stay where they are. The file's bytes are the same before, meanwhile and after, and
// others may read and write them; large pages remain where they are written over.
//
// It copies the bytes that lie in small pages, which takes 0.3 s of processor time for a GiB. With an
// error some or all of them are in small pages still: the kernel can't do it (EINVAL; so it is where
// shmem_enabled is deny), or has no large page left (ENOMEM, EAGAIN).
func Enlarge(fd int, size int64) error {
	page := largePage()
	if page == 0 {
		return unix.EINVAL
	}
	if size -= size % page; size == 0 {
		return nil
	}
	m, err := mapLarge(fd, size, page)
	if err != nil {
		return err
	}
	defer m.close()
	return unix.Madvise(m.bytes, unix.MADV_COLLAPSE)
}

// A mapping of a file that can have large pages: these begin where both the file's offset and the
// address are their multiples.
type mapping struct {
	bytes    []byte
	reserved unsafe.Pointer
	size     uintptr
}

func mapLarge(fd int, size, page int64) (mapping, error) {
	m := mapping{size: uintptr(size + page)}
	var err error
	if m.reserved, err = unix.MmapPtr(-1, 0, nil, m.size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE); err != nil {
		return m, err
	}
	at := unsafe.Add(m.reserved, -uintptr(m.reserved)&uintptr(page-1))
	if _, err := unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_FIXED|unix.MAP_NORESERVE); err != nil {
		m.close()
		return m, err
	}
	m.bytes = unsafe.Slice((*byte)(at), size)
	return m, nil
}

func (m mapping) close() { _ = unix.MunmapPtr(m.reserved, m.size) }
