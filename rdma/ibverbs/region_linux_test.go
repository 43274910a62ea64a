//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// stubborn is a registration that the device gives up only when err is nil.
type stubborn struct {
	err   error
	calls int
}

func (s *stubborn) Deregister() error {
	s.calls++
	return s.err
}

// A region that could not be closed is closed by the next Close, once, and not after the
// device is gone.
func TestCloseOfARegionIsTriedAgain(t *testing.T) {
	m := &domain{device: &Device{provider: New(Config{})}, pd: &verbs.PD{}}
	add := func(mr registration) *region {
		r := &region{domain: m, bytes: make([]byte, 64), borrowed: true, mr: mr}
		m.members.Lock()
		m.members.Regions.Add(r)
		m.members.Unlock()
		return r
	}
	mr := &stubborn{err: syscall.EBUSY}
	r := add(mr)
	if err := r.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("error %v", err)
	}
	if !m.members.Regions.Has(r) {
		t.Error("the domain has forgotten it")
	}
	mr.err = nil
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if mr.calls != 2 || m.members.Regions.Has(r) {
		t.Errorf("%d calls; a member: %v", mr.calls, m.members.Regions.Has(r))
	}
	mr = &stubborn{}
	r = add(mr)
	m.pd = nil
	if err := r.Close(); !errors.Is(err, rdma.ErrClosed) || mr.calls != 0 {
		t.Errorf("after the device's end: error %v, %d calls", err, mr.calls)
	}
}
