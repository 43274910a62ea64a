package dataset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cespare/xxhash/v2"

	"github.com/verbena-data/verbena/hdfs"
)

// A version is what tells a file from the same one after a change.
type version struct {
	id, size, changed int64 // changed is in nanoseconds; the id is that of a file in HDFS
}

// fileVersion is a local file's. That of an open file is asked, so that a file which another one has replaced is as it was.
func fileVersion(f *os.File) func(context.Context) (version, error) {
	return func(context.Context) (version, error) {
		info, err := f.Stat()
		if err != nil {
			return version{}, err
		}
		return version{0, info.Size(), info.ModTime().UnixNano()}, nil
	}
}

// remoteVersion is that of a file in HDFS.
func remoteVersion(c *hdfs.Client, path string) func(context.Context) (version, error) {
	return func(ctx context.Context) (version, error) {
		info, err := c.Stat(ctx, path)
		if err != nil {
			return version{}, err
		}
		return version{int64(info.ID()), info.Size(), info.ModTime().UnixNano()}, nil
	}
}

// Unchanged fails if the file has been written since it was opened, as far as its length and the time of its last change tell; a file
// in HDFS also if it has gone, or another one has its name.
func (i *Input) Unchanged(ctx context.Context) error {
	now, err := i.version(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%s: has it been changed? %w", i.name, err)
	case now.id != i.opened.id:
		return fmt.Errorf("%s is another file than when the job began", i.name)
	case now != i.opened:
		return fmt.Errorf("%s has been written since the job began, nobody may: it had %d bytes and has %d", i.name, i.opened.size, now.size)
	}
	return nil
}

// IsInput tells whether the name is that of an input's file, under any spelling. Files in HDFS are the same if their
// numbers, lengths and times of the last change are, whatever address the NameNode is asked at.
func (f *Files) IsInput(ctx context.Context, i *Input, name string) (bool, error) {
	address, path, ok := remote(name)
	switch {
	case ok != Remote(i.name):
		return false, nil
	case !ok:
		return i.isLocal(name)
	}
	c, err := f.client(ctx, address)
	if err != nil {
		return false, fmt.Errorf("%s: %w", name, err)
	}
	there, err := remoteVersion(c, path)(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now, err := i.version(ctx)
	return now == there, err
}

func (i *Input) isLocal(name string) (bool, error) {
	other, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	file, ok := i.Closer.(*os.File)
	if !ok {
		return false, nil
	}
	info, err := file.Stat()
	return err == nil && os.SameFile(info, other), err
}

const sampleBlock = 4 << 10

// Sample is a checksum of the file's length and of so many blocks of 4 KiB, at least 2: the first, the last and others at even distances. A copy
// has the same, whenever it was written. For a file in HDFS it is one of its length, its number there and the time of its last
// change.
func (i *Input) Sample(blocks int) (uint64, error) {
	h := xxhash.New()
	var b [24]byte
	binary.BigEndian.PutUint64(b[:], uint64(i.size))
	if Remote(i.name) {
		binary.BigEndian.PutUint64(b[8:], uint64(i.opened.id))
		binary.BigEndian.PutUint64(b[16:], uint64(i.opened.changed))
		blocks = 0
	}
	_, _ = h.Write(b[:]) // it cannot fail
	distance := int64(0)
	if blocks > 0 {
		blocks = max(blocks, 2)
		if distance = (i.size - sampleBlock) / int64(blocks-1); distance < sampleBlock { // all of a short file
			blocks, distance = int((i.size+sampleBlock-1)/sampleBlock), sampleBlock
		}
	}
	block := make([]byte, sampleBlock)
	for k := range blocks {
		at := int64(k) * distance
		if k == blocks-1 {
			at = max(0, i.size-sampleBlock)
		}
		n, err := i.ReadAt(block[:min(sampleBlock, i.size-at)], at)
		if int64(n) < min(sampleBlock, i.size-at) {
			if err == nil || errors.Is(err, io.EOF) {
				err = fmt.Errorf("it has become shorter: %w", io.ErrUnexpectedEOF)
			}
			return 0, fmt.Errorf("%s: %w", i.name, err)
		}
		_, _ = h.Write(block[:n])
	}
	return h.Sum64(), nil
}
