package datanode

import "sync/atomic"

// sumsPage is how many bytes of a meta file are kept together, one of its pages: the
// checksums of 512 KiB of data, where chunks have 512 bytes.
const sumsPage = 4 << 10

// keptSums are pages of the meta file of a replica that stays open, so that a short read takes
// one system call and not two. A page is read when something of it is wanted first. It is right
// for as long as the replica is unchanged, which is looked at behind each read.
type keptSums struct {
	held  *atomic.Int64                            // of all replicas; nil: none is kept of this one
	most  int64                                    // of held, in bytes
	own   atomic.Int64                             // of this one
	pages atomic.Pointer[[]atomic.Pointer[[]byte]] // nil: none has been wanted
}

// forget gives back what is held. Nobody reads any more.
func (s *keptSums) forget() {
	if s.held != nil {
		s.held.Add(-s.own.Swap(0))
		s.pages.Store(nil)
	}
}

// sumsAt fills b with the checksums at off of those of all full chunks, if that takes no disk.
func (r *keptReplica) sumsAt(b []byte, off int64) bool {
	for off += r.files.SumsOffset; len(b) > 0; {
		page := r.pageOfSums(off / sumsPage)
		if page == nil {
			return r.at(r.files.Meta, b, off)
		}
		n := copy(b, page[off%sumsPage:])
		b, off = b[n:], off+int64(n)
	}
	return true
}

// pageOfSums returns a page as far as it has checksums of full chunks; nil if there is no room
// for it, or it is on disk.
func (r *keptReplica) pageOfSums(i int64) []byte {
	s := &r.sums
	if s.held == nil {
		return nil
	}
	if pages := s.pages.Load(); pages != nil {
		if page := (*pages)[i].Load(); page != nil {
			return *page
		}
	}
	return r.keepPage(i)
}

// keepPage is pageOfSums for a page that was not kept yet.
func (r *keptReplica) keepPage(i int64) []byte {
	s := &r.sums
	end := r.files.SumsOffset + r.Length/int64(r.Sum.BytesPerChunk)*4
	pages := s.pages.Load()
	if pages == nil {
		p := make([]atomic.Pointer[[]byte], (end+sumsPage-1)/sumsPage)
		s.pages.CompareAndSwap(nil, &p)
		pages = s.pages.Load()
	}
	size := min(sumsPage, end-i*sumsPage)
	if s.held.Add(size) > s.most {
		s.held.Add(-size)
		return nil
	}
	page := make([]byte, size)
	if !r.at(r.files.Meta, page, i*sumsPage) {
		s.held.Add(-size)
		return nil
	}
	if !(*pages)[i].CompareAndSwap(nil, &page) { // another read was first
		s.held.Add(-size)
		return page
	}
	s.own.Add(size)
	return page
}
