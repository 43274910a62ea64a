package store

import "github.com/cockroachdb/pebble/v2/vfs"

// Local is what somebody else needs to read a replica himself, and to verify what he
// reads: descriptors, which stay the reader's, and where the checksums are.
type Local struct {
	Data, Meta uintptr
	Memory     bool   // they lie in memory: a read waits for no disk
	SumsOffset int64  // of the full chunks' checksums in the meta file, four bytes each
	Tail       uint32 // checksum of the last chunk, if it is not full
}

// Local tells how this process reads the replica without the reader. It can't be done for a file
// system without descriptors.
func (rd *Reader) Local() (l Local, ok bool) {
	l = Local{Data: rd.data.Fd(), Meta: rd.meta.Fd(), Memory: rd.r.vol.memory, SumsOffset: headerSize, Tail: rd.tail}
	return l, l.Data != vfs.InvalidFd && l.Meta != vfs.InvalidFd
}

// HandOver is [Reader.Local] for another process, which keeps the descriptors for as long as it
// likes. It fails if the replica is not as [Reader.Current] asks for, or if its file has bytes
// behind the replica's, which may be those of another one, and can't be cut.
func (rd *Reader) HandOver() (l Local, ok bool) {
	if info, err := rd.data.Stat(); err != nil || info.Size() > rd.Length && !rd.r.cutSpare() || !rd.Current() {
		return l, false
	}
	return rd.Local()
}

// Current tells whether the replica is finalized and has not been changed since the
// reader was opened. Who registers with [Config].Changing's owner and asks then misses no
// change.
func (rd *Reader) Current() bool {
	r := rd.r
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.gone && r.state == Finalized && r.gen == rd.Info.Generation && r.epoch == rd.epoch && r.visible == rd.Length
}
