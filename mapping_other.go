//go:build !linux

package verbena

import "errors"

func mapNew(size int) (*Mapping, error) {
	pages, err := takePages(size)
	if err != nil {
		return nil, err
	}
	return &Mapping{bytes: pages, fd: -1, writable: true}, nil
}

func mapDescriptor(uintptr) (*Mapping, error) { return nil, errors.ErrUnsupported }

func (m *Mapping) unmap() error {
	freePages(m.bytes)
	return nil
}
