// Package codec unpacks what Hadoop's compression codecs have packed: whole files, and the
// parts of sequence files. It knows a codec by its Java class, or a file's by the end of the
// file's name, as org.apache.hadoop.io.compress.CompressionCodecFactory does.
//
// It imports nothing of the project. What it reads may be anybody's: lengths are checked
// before memory is taken for them. Readers are for one goroutine at a time.
package codec

import (
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// ErrMalformed is wrapped by errors about bytes that no codec of Hadoop has written. The
// libraries' own errors are returned, too.
var ErrMalformed = errors.New("malformed compressed data")

// MaxChunk is the most bytes that a chunk of Snappy's and LZ4's may have, packed or not.
// Hadoop's codecs have 256 KiB by default (io.compression.codec.snappy.buffersize and
// io.compression.codec.lz4.buffersize).
const MaxChunk = 64 << 20

// maxWindow is the most memory that a zstd frame may ask for, in bytes.
const maxWindow = 128 << 20

// A Codec unpacks.
type Codec struct {
	Class     string // of Java
	Extension string // of files, with the point
	open      func(io.Reader) (io.ReadCloser, error)
}

// Open returns what r has packed. Close frees what the codec holds
// and leaves r alone; it may repeat the error of a Read.
func (c *Codec) Open(r io.Reader) (io.ReadCloser, error) { return c.open(r) }

const classes = "org.apache.hadoop.io.compress."

// The names of GzipCodec and DefaultCodec tell RFC 1952 and RFC 1950, DeflateCodec is
// another name of the latter.
var all = []*Codec{
	{classes + "DefaultCodec", ".deflate", func(r io.Reader) (io.ReadCloser, error) { return zlib.NewReader(r) }},
	{classes + "DeflateCodec", ".deflate", func(r io.Reader) (io.ReadCloser, error) { return zlib.NewReader(r) }},
	{classes + "GzipCodec", ".gz", func(r io.Reader) (io.ReadCloser, error) { return gzip.NewReader(r) }},
	{classes + "BZip2Codec", ".bz2", func(r io.Reader) (io.ReadCloser, error) { return io.NopCloser(bzip2.NewReader(r)), nil }},
	{classes + "SnappyCodec", ".snappy", blocks(unpackSnappy)},
	{classes + "Lz4Codec", ".lz4", blocks(unpackLZ4)},
	{classes + "ZStandardCodec", ".zst", openZstandard},
}

// ByClass returns the codec of a Java class, nil for one that is not known.
func ByClass(name string) *Codec {
	for _, c := range all {
		if c.Class == name {
			return c
		}
	}
	return nil
}

// ByName returns the codec of a file by the end of its name, nil for others.
func ByName(file string) *Codec {
	for _, c := range all {
		if strings.HasSuffix(file, c.Extension) {
			return c
		}
	}
	return nil
}

func openZstandard(r io.Reader) (io.ReadCloser, error) {
	d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}

// blockReader reads what org.apache.hadoop.io.compress.BlockCompressorStream has written:
// blocks, each a u32 with its length unpacked, and chunks until that is reached, each a u32
// with its length packed, and the bytes. Integers are big-endian.
type blockReader struct {
	r      *bufio.Reader
	unpack func(dst, src []byte) ([]byte, error)
	left   uint32 // of the block, in chunks to come
	packed []byte
	room   []byte
	out    []byte // of room, not yet read
	err    error
}

func blocks(unpack func(dst, src []byte) ([]byte, error)) func(io.Reader) (io.ReadCloser, error) {
	return func(r io.Reader) (io.ReadCloser, error) {
		return &blockReader{r: bufio.NewReader(r), unpack: unpack}, nil
	}
}

func (b *blockReader) Close() error { return nil }

func (b *blockReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(b.out) == 0 && b.err == nil {
		b.err = b.chunk()
	}
	if len(b.out) == 0 {
		return 0, b.err
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	return n, nil
}

func (b *blockReader) number() (uint32, error) {
	var four [4]byte
	_, err := io.ReadFull(b.r, four[:])
	return binary.BigEndian.Uint32(four[:]), err
}

// chunk unpacks the next chunk.
func (b *blockReader) chunk() (err error) {
	if b.left == 0 {
		if b.left, err = b.number(); err != nil || b.left == 0 {
			return err // a block of nothing is where Hadoop's reader stops, or another one follows
		}
	}
	length, err := b.number()
	if err != nil {
		return cutOff(err)
	}
	if length > MaxChunk {
		return fmt.Errorf("%w: a chunk of %d bytes", ErrMalformed, length)
	}
	if b.packed, err = ReadN(b.r, b.packed[:0], int(length)); err != nil {
		return cutOff(err)
	}
	if b.room, err = b.unpack(b.room[:0], b.packed); err != nil {
		return err
	}
	if uint64(len(b.room)) > uint64(b.left) || len(b.room) == 0 {
		return fmt.Errorf("%w: %d bytes where %d are left of a block", ErrMalformed, len(b.room), b.left)
	}
	b.left -= uint32(len(b.room))
	b.out = b.room
	return nil
}

func cutOff(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReadN appends n bytes of r to dst. Memory is taken as bytes arrive, so that a length that
// is a lie takes none. An end before the first byte is io.EOF, a later one
// io.ErrUnexpectedEOF.
func ReadN(r io.Reader, dst []byte, n int) ([]byte, error) {
	const step = 1 << 20
	for first := true; n > 0; first = false {
		part := min(n, step)
		at := len(dst)
		dst = append(dst, make([]byte, part)...)
		m, err := io.ReadFull(r, dst[at:])
		if n -= m; err != nil {
			if !first {
				err = cutOff(err)
			}
			return dst[:at+m], err
		}
	}
	return dst, nil
}

// unpackSnappy unpacks a block of Snappy without framing.
func unpackSnappy(dst, src []byte) ([]byte, error) {
	n, err := snappy.DecodedLen(src)
	if err != nil {
		return nil, err
	}
	if n > MaxChunk || n > 64*len(src) { // an element of 3 bytes copies 64 at most
		return nil, fmt.Errorf("%w: %d bytes of Snappy say that they are %d", ErrMalformed, len(src), n)
	}
	return snappy.Decode(grow(dst, n), src)
}

func grow(dst []byte, n int) []byte {
	if cap(dst) < n {
		return make([]byte, n)
	}
	return dst[:cap(dst)]
}

// unpackLZ4 unpacks a block of LZ4 without a frame, which does not tell its length.
func unpackLZ4(dst, src []byte) ([]byte, error) {
	most := min(MaxChunk, 255*len(src)+64) // a byte of length adds 255 at most
	for size := max(4*len(src), 64<<10); ; size *= 4 {
		size = min(size, most)
		dst = grow(dst, size)
		n, err := lz4.UncompressBlock(src, dst)
		switch {
		case err == nil:
			return dst[:n], nil
		case size == most || !errors.Is(err, lz4.ErrInvalidSourceShortBuffer):
			return nil, err
		}
	}
}
