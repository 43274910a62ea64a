package shortcircuit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
)

// Memory is a client's side of a segment: its slots, in memory that the DataNode made. It
// may be used concurrently until Close.
//
// Memory that is sealed is mapped. Any other could be made shorter, and whoever touched
// it then would die; it is read and written through its descriptor, at the price of a
// system call.
type Memory struct {
	mapped []byte
	fd     int // of memory that is not mapped, else -1
	slots  int
}

// Adopt takes over a descriptor that a DataNode has handed over.
func Adopt(fd int) (*Memory, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, errors.Join(fmt.Errorf("segment of slots: %w", err), unix.Close(fd))
	}
	const most = 1 << 20
	slots := int(min(stat.Size, most)) / SlotSize
	if slots <= 0 || stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.Join(fmt.Errorf("segment of %d bytes: want at least %d, in a file", stat.Size, SlotSize), unix.Close(fd))
	}
	if safe := memfd.CheckForeign() == nil && memfd.Check(fd, 0) == nil; !safe {
		return &Memory{fd: fd, slots: slots}, nil
	}
	mapped, err := memfd.Adopt(fd, slots*SlotSize, memfd.Terms{Writable: true, Foreign: true})
	if err != nil {
		return nil, fmt.Errorf("segment of slots: %w", err)
	}
	return &Memory{mapped: mapped, fd: -1, slots: slots}, nil
}

// Slots is how many there are.
func (m *Memory) Slots() int { return m.slots }

// Close gives the memory back. Nobody may use it any more.
func (m *Memory) Close() error {
	if m.fd >= 0 {
		return unix.Close(m.fd)
	}
	return memfd.Unmap(m.mapped)
}

// Valid tells whether the DataNode lets what it handed over for a slot be read.
func (m *Memory) Valid(slot int) bool {
	if m.fd < 0 {
		return word(m.mapped, slot).Load()&slotValid != 0
	}
	var b [8]byte
	n, err := unix.Pread(m.fd, b[:], int64(slot*SlotSize))
	return err == nil && n == len(b) && binary.NativeEndian.Uint64(b[:])&slotValid != 0
}

// Claim makes a slot valid, before the DataNode is asked for descriptors. Nothing else
// uses the slot.
func (m *Memory) Claim(slot int) error {
	if m.fd < 0 {
		word(m.mapped, slot).Store(slotValid)
		return nil
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], slotValid)
	if _, err := unix.Pwrite(m.fd, b[:], int64(slot*SlotSize)); err != nil {
		return fmt.Errorf("claim a slot: %w", err)
	}
	return nil
}

// word is the first word of a slot. Its address is a multiple of 64.
func word(memory []byte, slot int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&memory[slot*SlotSize : slot*SlotSize+8][0]))
}
