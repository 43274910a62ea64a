//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

func (p *queuePair) invalid(op rdma.Opcode, why string) error {
	return fmt.Errorf("ibverbs: post a %s to queue pair %d: %w: %s", op, p.number, rdma.ErrInvalid, why)
}

// entries translates a list of entries. It leaves empty ones out: some devices take a
// length of 0 for 2 GiB. It returns the length of all and how many are left.
func (p *queuePair) entries(to []verbs.SGE, from []rdma.SGE, written bool) (total, used int, wrong string) {
	return translateEntries(p.domain, to, from, written)
}

func translateEntries(m *domain, to []verbs.SGE, from []rdma.SGE, written bool) (total, used int, wrong string) {
	for i := range from {
		e := &from[i]
		r, ok := e.Region.(*region)
		if !ok || r == nil || r.domain != m {
			return 0, 0, "an entry has no region, or one of another domain"
		}
		if e.Length < 0 || e.Offset < 0 || e.Offset > len(r.bytes) || e.Length > len(r.bytes)-e.Offset {
			return 0, 0, "an entry is outside of its region"
		}
		if written && r.access&rdma.AccessLocalWrite == 0 {
			return 0, 0, "an entry's region has no right of local write"
		}
		if total += e.Length; total < 0 || e.Length > 1<<31-1 {
			return 0, 0, "it is too long"
		}
		if e.Length == 0 {
			continue
		}
		to[used] = verbs.SGE{Address: r.address + uint64(e.Offset), Length: uint32(e.Length), LKey: r.lkey}
		used++
	}
	return total, used, ""
}

// atLeastOne adds an empty entry where there is none. iWARP drivers may want one with
// a valid key for Reads and receives.
func (m *domain) atLeastOne(entries []verbs.SGE, used int) int {
	if used > 0 || m.empty == nil {
		return used
	}
	entries[0] = verbs.SGE{Address: m.empty.address, LKey: m.empty.lkey}
	return 1
}

// refused is the error of a post that the driver has refused.
func (p *queuePair) refused(what string, err, full error) error {
	if s := rdma.State(p.state.Load()); s >= rdma.StateError {
		return p.stateError(what)
	}
	var errno syscall.Errno
	if errors.As(err, &errno) && (errno == syscall.ENOMEM || errno == syscall.EAGAIN || errno == syscall.ENOSPC) {
		return full
	}
	if errors.As(err, &errno) && errno == syscall.ENOTCONN {
		p.suspect(errNoReason)
		return fmt.Errorf("ibverbs: %s queue pair %d: %w: %w", what, p.number, rdma.ErrState, err)
	}
	return fmt.Errorf("ibverbs: %s queue pair %d: %w: %w", what, p.number, rdma.ErrInvalid, err)
}
