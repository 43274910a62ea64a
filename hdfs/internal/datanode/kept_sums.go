package datanode

import "sync/atomic"

const (
	// sumsPage is how many bytes of a meta file are kept together: the checksums of 512 KiB
	// of data, where chunks have 512 bytes.
	sumsPage = 4 << 10
	// mostSums bounds the checksums that are kept of all replicas together, in bytes: those of
	// 4 GiB of data. Beyond it they are read from files.
	mostSums = 32 << 20
)

// keptSums are checksums of the full chunks of a replica that stays open, so that a short read
// takes one system call and not two. A page is read when something of it is wanted first. It is
// right for as long as the replica is unchanged, which is looked at behind each read.
type keptSums struct {
	length int64                    // of all, in bytes
	pages  []atomic.Pointer[[]byte] // nil: none is kept
	own    atomic.Int64             // bytes that are kept
	held   *atomic.Int64            // of all replicas
}

// keepSums has checksums kept from here on, until forgetSums.
func (r *keptReplica) keepSums(held *atomic.Int64) {
	length := r.Length / int64(r.Sum.BytesPerChunk) * 4
	r.sums = keptSums{length: length, pages: make([]atomic.Pointer[[]byte], (length+sumsPage-1)/sumsPage), held: held}
}

// forgetSums ends that. Nobody reads any more.
func (r *keptReplica) forgetSums() {
	if r.sums.held != nil {
		r.sums.held.Add(-r.sums.own.Swap(0))
		r.sums.pages = nil
	}
}

// sumsAt fills b with the checksums at off of those of all full chunks, if that takes no disk.
func (r *keptReplica) sumsAt(b []byte, off int64) bool {
	for len(b) > 0 {
		page := r.sumsPage(off / sumsPage)
		if page == nil {
			return r.at(r.files.Meta, b, r.files.SumsOffset+off)
		}
		n := copy(b, page[off%sumsPage:])
		b, off = b[n:], off+int64(n)
	}
	return true
}

// sumsPage returns a page; nil if there is no room for it, or it is on disk.
func (r *keptReplica) sumsPage(i int64) []byte {
	s := &r.sums
	if s.pages == nil {
		return nil
	}
	if page := s.pages[i].Load(); page != nil {
		return *page
	}
	size := min(sumsPage, s.length-i*sumsPage)
	if s.held.Add(size) > mostSums {
		s.held.Add(-size)
		return nil
	}
	page := make([]byte, size)
	if !r.at(r.files.Meta, page, r.files.SumsOffset+i*sumsPage) {
		s.held.Add(-size)
		return nil
	}
	if !s.pages[i].CompareAndSwap(nil, &page) { // another read was first
		s.held.Add(-size)
		return page
	}
	s.own.Add(size)
	return page
}
