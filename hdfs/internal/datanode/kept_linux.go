package datanode

import "golang.org/x/sys/unix"

// advise has the kernel read a part of the replica from its disk, without waiting for it.
func (r *keptReplica) advise(off, length int64) {
	if r.direct && !r.files.Memory {
		_ = unix.Fadvise(int(r.files.Data), off, length, unix.FADV_WILLNEED) // it is advice
	}
}

// readAtOnce fills b with what the page cache has of a file from off on. It is false if
// that is not all of it. Of a file in memory it takes no special call, which some kernels
// do not have there.
func readAtOnce(fd uintptr, b []byte, off int64, memory bool) bool {
	for {
		var n int
		var err error
		if memory {
			n, err = unix.Pread(int(fd), b, off)
		} else {
			n, err = unix.Preadv2(int(fd), [][]byte{b}, off, unix.RWF_NOWAIT)
		}
		if err != unix.EINTR {
			return err == nil && n == len(b)
		}
	}
}
