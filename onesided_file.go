package verbena

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// FileConfig says which part of which file is exposed.
type FileConfig struct {
	// File is open for reading, and regular. It stays the caller's, who may close it at
	// once: the exposure has a descriptor of its own.
	File *os.File
	// Offset and Length, in bytes, are the part. Length 0 means up to the present end.
	Offset, Length int64
	// Until ends the exposure. Zero: it lasts until Revoke, Close, or the endpoint's
	// end.
	Until time.Time
}

// ExposeFile lets the peer read part of a file, by Get, as it reads memory: the token
// says nothing of the difference. The file is never mapped. Over shared memory the peer
// gets its descriptor, once, and reads by itself; before and after each read it looks
// whether the exposure has been revoked. On the other transports this side's runtime
// reads, into registered memory: see [Selection].Files.
//
// What the file holds may change meanwhile. A Get behind the end of a file that has
// become shorter fails with [ErrBounds]. One of a file that has been revoked fails with
// [ErrRevoked] on every transport; the endpoint lives on. A peer that means harm can keep
// the descriptor, and read all of the file, not the part alone: over shared memory expose
// whole files to peers that may read them.
func (e *Endpoint) ExposeFile(ctx context.Context, c FileConfig) (*Exposure, error) {
	x, err := e.exposeFile(ctx, c)
	if err != nil {
		return nil, e.failure("expose a file to", err)
	}
	return x, nil
}

func (e *Endpoint) exposeFile(ctx context.Context, c FileConfig) (*Exposure, error) {
	if c.File == nil {
		return nil, fmt.Errorf("%w: no file", ErrMemory)
	}
	info, err := c.File.Stat()
	if err != nil {
		return nil, err
	}
	if c.Length == 0 {
		c.Length = info.Size() - c.Offset
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: %s is no regular file", ErrMemory, c.File.Name())
	case c.Offset < 0 || c.Length <= 0 || c.Length > maxExposure || c.Offset > info.Size() || c.Length > info.Size()-c.Offset:
		return nil, fmt.Errorf("%w: %d bytes at %d of a file of %d", ErrBounds, c.Length, c.Offset, info.Size())
	}
	return e.exposeAs(ctx, ExposeConfig{Rights: MayRead, Until: c.Until}, int(c.Length), func() (exposable, error) {
		f, err := duplicate(c.File)
		if err != nil {
			return nil, err
		}
		exposed := &exposedFile{file: f, offset: c.Offset}
		if err := e.carrier.exposeFile(exposed); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return exposed, nil
	})
}

// An exposedFile is a file that a peer may read.
type exposedFile struct {
	file   *os.File
	offset int64
	shared rdma.SharedFile // nil: the runtime reads it
}

// read reads for the peer, on the other transports.
func (f *exposedFile) read(into []byte, offset int) verdictCode {
	if n, _ := f.file.ReadAt(into, f.offset+int64(offset)); n < len(into) {
		return verdictBounds
	}
	return verdictDone
}

func (f *exposedFile) bytes() []byte { return nil }

func (f *exposedFile) remote() (rdma.Remote, tokenWays) {
	if f.shared == nil {
		return rdma.Remote{}, 0
	}
	return rdma.Remote{Address: uint64(f.offset), Key: f.shared.Key()}, byDescriptor
}

func (f *exposedFile) withdraw() error {
	if f.shared == nil {
		return nil
	}
	return f.shared.Close()
}

func (f *exposedFile) free() error { return f.file.Close() }

func (s *stream) exposeFile(*exposedFile) error { return nil }

func (s *operator) exposeFile(f *exposedFile) (err error) {
	if !s.servesOperations() {
		return ErrUnsupported
	}
	if q := s.reader(); q != nil {
		// Without it, such as where /proc is missing, the runtime reads.
		f.shared, err = q.ShareFile(int(f.file.Fd()))
		if err != nil {
			s.n.log.Debug("a file is not handed over", "peer", s.e.remote, "error", err)
			f.shared = nil
		}
	}
	return nil
}
