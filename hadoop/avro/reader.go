// Package avro reads Avro's object container files, and tells their records as JSON.
//
// The format is that of the Apache Avro specification 1.11, sections "Object Container
// Files", "Binary Encoding" and "JSON Encoding". JSON is written as the JsonEncoder of Avro
// for Java does, which is what Hadoop's shell shows: fields in the schema's order, bytes as
// the characters U+0000 to U+00FF, unions with the name of their branch.
//
// Files may be anybody's: lengths are checked, memory is taken as bytes arrive, no block has
// more than MaxBlock bytes, and no record's JSON goes on behind so many. The package imports
// nothing of the project but hadoop/internal.
package avro

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// ErrMalformed is wrapped by every error about bytes that are no Avro file. A file that ends
// in the middle of something wraps io.ErrUnexpectedEOF.
var ErrMalformed = errors.New("malformed Avro file")

// Magic begins every object container file.
const Magic = "Obj\x01"

const (
	// MaxBlock is the most bytes of a block, packed or not. Writers make blocks of 64 KB, or
	// of one record.
	MaxBlock = 256 << 20
	// maxMetadata is the most bytes of the metadata's keys and values, the schema among them.
	maxMetadata = 16 << 20
	syncLen     = 16
)

// Reader reads the records of a file, from its beginning to its end. It is for one goroutine
// at a time.
type Reader struct {
	r      *bufio.Reader
	schema *schema
	codec  string
	sync   [syncLen]byte
	left   int64 // records of the block that have not been read
	block  decoder
	err    error // of the last Next, for ever
}

// NewReader reads a file's header.
func NewReader(r io.Reader) (*Reader, error) {
	q := &Reader{r: bufio.NewReader(r), block: decoder{most: MaxBlock}}
	var magic [len(Magic)]byte
	if _, err := io.ReadFull(q.r, magic[:]); err != nil {
		return nil, cut("header", err)
	}
	if string(magic[:]) != Magic {
		return nil, fmt.Errorf("%w: it begins with %q, want %q", ErrMalformed, magic[:], Magic)
	}
	metadata, err := q.metadata()
	if err != nil {
		return nil, err
	}
	q.codec = string(metadata["avro.codec"])
	if !known(q.codec) {
		return nil, fmt.Errorf("%w: codec %q, want null, deflate, snappy, bzip2 or zstandard", errors.ErrUnsupported, q.codec)
	}
	if q.schema, err = parseSchema(metadata["avro.schema"]); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(q.r, q.sync[:]); err != nil {
		return nil, cut("header", err)
	}
	return q, nil
}

// Next returns the JSON of the next record, without a newline. It is valid until the next
// call. After the last record the error is io.EOF.
func (q *Reader) Next() ([]byte, error) {
	for q.err == nil && q.left == 0 {
		q.err = q.nextBlock()
	}
	if q.err != nil {
		return nil, q.err
	}
	q.left--
	d := &q.block
	d.out = d.out[:0]
	if err := d.value(q.schema, 0); err != nil {
		q.err = err
	} else if q.left == 0 && len(d.in) > 0 {
		q.err = fmt.Errorf("%w: %d bytes behind the last record of a block", ErrMalformed, len(d.in))
	}
	if q.err != nil {
		return nil, q.err
	}
	return d.out, nil
}

// metadata reads the pairs of the header.
func (q *Reader) metadata() (map[string][]byte, error) {
	pairs, room := map[string][]byte{}, int64(maxMetadata)
	text := func() ([]byte, error) {
		n, err := q.long("header")
		if err != nil {
			return nil, err
		}
		if n < 0 || n > room {
			return nil, fmt.Errorf("%w: %d bytes of metadata, at most %d", ErrMalformed, n, room)
		}
		room -= n
		return q.bytes(n, "header")
	}
	for {
		n, err := q.long("header")
		if err != nil || n == 0 {
			return pairs, err
		}
		if n < 0 { // the bytes of this part follow, for who wants to skip them
			n = -n
			if _, err := q.long("header"); err != nil {
				return nil, err
			}
		}
		for ; n != 0; n-- {
			key, err := text()
			if err != nil {
				return nil, err
			}
			if room--; room < 0 { // so that empty pairs come to an end, too
				return nil, fmt.Errorf("%w: more than %d bytes of metadata", ErrMalformed, maxMetadata)
			}
			if pairs[string(key)], err = text(); err != nil {
				return nil, err
			}
		}
	}
}

// nextBlock reads a block and unpacks it.
func (q *Reader) nextBlock() error {
	if _, err := q.r.Peek(1); err == io.EOF {
		return io.EOF
	}
	count, err := q.long("block")
	if err != nil {
		return err
	}
	size, err := q.long("block")
	if err != nil {
		return err
	}
	if count < 0 || size < 0 || size > MaxBlock {
		return fmt.Errorf("%w: a block of %d records and %d bytes, at most %d bytes", ErrMalformed, count, size, MaxBlock)
	}
	packed, err := q.bytes(size, "block")
	if err != nil {
		return err
	}
	var sync [syncLen]byte
	if _, err := io.ReadFull(q.r, sync[:]); err != nil {
		return cut("block", err)
	}
	if sync != q.sync {
		return fmt.Errorf("%w: a block ends with % x, the header says % x", ErrMalformed, sync, q.sync)
	}
	if q.block.in, err = unpack(q.codec, packed); err != nil {
		return err
	}
	if count == 0 && len(q.block.in) > 0 {
		return fmt.Errorf("%w: a block of no records has %d bytes", ErrMalformed, len(q.block.in))
	}
	q.left = count
	return nil
}

// long reads an integer of variable length.
func (q *Reader) long(of string) (int64, error) {
	n, err := binary.ReadVarint(q.r)
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return 0, cut(of, err)
	case err != nil:
		return 0, fmt.Errorf("%w: a number in a %s: %w", ErrMalformed, of, err)
	}
	return n, nil
}

// bytes reads n bytes, and takes memory for them as they arrive.
func (q *Reader) bytes(n int64, of string) ([]byte, error) {
	var b bytes.Buffer
	if _, err := io.CopyN(&b, q.r, n); err != nil {
		return nil, cut(of, err)
	}
	return b.Bytes(), nil
}

// cut is the error of a read within something.
func cut(of string, err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: it ends in the middle of a %s: %w", ErrMalformed, of, io.ErrUnexpectedEOF)
	}
	return err
}

func known(codec string) bool {
	switch codec {
	case "", "null", "deflate", "snappy", "bzip2", "zstandard":
		return true
	}
	return false
}

// unpack unpacks a block.
func unpack(codec string, packed []byte) ([]byte, error) {
	var (
		r io.Reader
		b = bytes.NewReader(packed)
	)
	switch codec {
	case "deflate": // RFC 1951
		r = flate.NewReader(b)
	case "bzip2":
		r = bzip2.NewReader(b)
	case "zstandard":
		d, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxBlock))
		if err != nil {
			return nil, err
		}
		defer d.Close()
		r = d
	case "snappy":
		return unpackSnappy(packed)
	default:
		return packed, nil
	}
	unpacked, err := io.ReadAll(io.LimitReader(r, MaxBlock+1))
	if err != nil {
		return nil, fmt.Errorf("%w: a block packed by %s: %w", ErrMalformed, codec, err)
	}
	if len(unpacked) > MaxBlock {
		return nil, fmt.Errorf("%w: a block unpacks to more than %d bytes", ErrMalformed, MaxBlock)
	}
	return unpacked, nil
}

// unpackSnappy unpacks a block behind which the CRC-32 of what was packed follows.
func unpackSnappy(packed []byte) ([]byte, error) {
	n := len(packed) - crc32.Size
	if n < 0 {
		return nil, fmt.Errorf("%w: a block packed by snappy has %d bytes", ErrMalformed, len(packed))
	}
	size, err := snappy.DecodedLen(packed[:n])
	// Nothing is packed to less than a 64th part: what a copy of 3 bytes can tell is 64.
	if err == nil && (size > MaxBlock || size > 64*n) {
		err = snappy.ErrCorrupt
	}
	var unpacked []byte
	if err == nil {
		unpacked, err = snappy.Decode(nil, packed[:n])
	}
	if err != nil {
		return nil, fmt.Errorf("%w: a block packed by snappy: %w", ErrMalformed, err)
	}
	if got, want := crc32.ChecksumIEEE(unpacked), binary.BigEndian.Uint32(packed[n:]); got != want {
		return nil, fmt.Errorf("%w: a block's checksum is %#x, it says %#x", ErrMalformed, got, want)
	}
	return unpacked, nil
}
