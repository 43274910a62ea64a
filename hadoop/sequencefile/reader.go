// Package sequencefile reads Hadoop's sequence files of the versions 4 to 6: keys and values
// of records, packed singly, in blocks, or not at all, and what they look like as text.
//
// The format is told in the comment of org.apache.hadoop.io.SequenceFile, and where that says
// nothing, by its Reader (Hadoop 3.4.1); integers are big-endian, or of variable length as
// org.apache.hadoop.io.WritableUtils.writeVLong has them.
//
// Files may be anybody's: lengths are checked, memory is taken as bytes arrive, and no record,
// block or header has more than MaxRecord bytes. Package codec unpacks; the package imports
// nothing else of the project but hadoop/internal.
package sequencefile

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/verbena-data/verbena/hadoop/codec"
)

// ErrMalformed is wrapped by every error about bytes that are no sequence file. A file that
// ends in a record's middle wraps io.ErrUnexpectedEOF.
var ErrMalformed = errors.New("malformed sequence file")

// Magic begins every sequence file; a byte with the version follows.
const Magic = "SEQ"

const (
	// MaxRecord is the most bytes of one record, and of all keys or all values of a block,
	// unpacked.
	MaxRecord = 256 << 20
	// maxName bounds names of classes, maxMetadata the pairs of the metadata and maxText
	// their keys and values.
	maxName, maxMetadata, maxText = 4 << 10, 64 << 10, 1 << 20

	syncLen = 16
	escape  = -1 // where a length is due: a sync follows

	leastVersion, versionOfCodecs, versionOfMetadata = 4, 5, 6
)

// Header is what a file says of itself.
type Header struct {
	Version              int
	KeyClass, ValueClass string // of Java
	Codec                string // class of what it is packed by; empty if it is not packed
	Blocks               bool   // packed in blocks of many records
	Metadata             []Pair
}

// Pair is a key and a value of the metadata.
type Pair struct{ Key, Value string }

// Reader reads the records of a file, from its beginning to its end. It is for one goroutine
// at a time.
type Reader struct {
	r      *bufio.Reader
	header Header
	codec  *codec.Codec
	sync   [syncLen]byte

	record, value []byte // of files without blocks

	left                                int // records of the block
	keyLengths, keys, lengths, valuesOf part
	err                                 error
}

// part is one of the four that a block has, unpacked.
type part struct {
	all  []byte
	rest []byte // of all
}

// NewReader reads a header. The Reader may read more of r than it returns.
func NewReader(r io.Reader) (*Reader, error) {
	q := &Reader{r: bufio.NewReaderSize(r, 64<<10)}
	if err := q.readHeader(); err != nil {
		return nil, fmt.Errorf("header: %w", whole(err))
	}
	return q, nil
}

// Header returns what the file says of itself.
func (q *Reader) Header() Header { return q.header }

// whole is an error of what must not end here.
func whole(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (q *Reader) readHeader() error {
	var start [4]byte
	if _, err := io.ReadFull(q.r, start[:]); err != nil {
		return err
	}
	h := &q.header
	h.Version = int(start[3])
	switch {
	case string(start[:3]) != Magic:
		return fmt.Errorf("%w: it begins with %q", ErrMalformed, start[:3])
	case h.Version < leastVersion || h.Version > versionOfMetadata:
		return fmt.Errorf("%w: version %d, this reads %d to %d", ErrMalformed, h.Version, leastVersion, versionOfMetadata)
	}
	var err error
	if h.KeyClass, err = q.text(maxName); err != nil {
		return err
	}
	if h.ValueClass, err = q.text(maxName); err != nil {
		return err
	}
	packed, err := q.boolean()
	if err != nil {
		return err
	}
	if h.Blocks, err = q.boolean(); err != nil {
		return err
	}
	if packed {
		h.Codec = "org.apache.hadoop.io.compress.DefaultCodec"
		if h.Version >= versionOfCodecs {
			if h.Codec, err = q.text(maxName); err != nil {
				return err
			}
		}
		if q.codec = codec.ByClass(h.Codec); q.codec == nil {
			return fmt.Errorf("it is packed by %q: %w", h.Codec, errors.ErrUnsupported)
		}
	}
	if h.Blocks && !packed {
		return fmt.Errorf("%w: blocks that are not packed", ErrMalformed)
	}
	if h.Version >= versionOfMetadata {
		if err := q.metadata(); err != nil {
			return err
		}
	}
	_, err = io.ReadFull(q.r, q.sync[:])
	return err
}

func (q *Reader) metadata() error {
	n, err := q.int32()
	if err != nil {
		return err
	}
	if n < 0 || n > maxMetadata {
		return fmt.Errorf("%w: metadata of %d pairs", ErrMalformed, n)
	}
	for range n {
		key, err := q.text(maxText)
		if err != nil {
			return err
		}
		value, err := q.text(maxText)
		if err != nil {
			return err
		}
		q.header.Metadata = append(q.header.Metadata, Pair{key, value})
	}
	return nil
}

func (q *Reader) boolean() (bool, error) {
	b, err := q.r.ReadByte()
	return b != 0, err
}

func (q *Reader) int32() (int32, error) {
	var four [4]byte
	_, err := io.ReadFull(q.r, four[:])
	return int32(binary.BigEndian.Uint32(four[:])), err
}

// text is an org.apache.hadoop.io.Text.
func (q *Reader) text(most int) (string, error) {
	n, err := readLong(q.r)
	if err != nil {
		return "", err
	}
	if n < 0 || n > int64(most) {
		return "", fmt.Errorf("%w: a name or text of %d bytes", ErrMalformed, n)
	}
	b, err := codec.ReadN(q.r, nil, int(n))
	return string(b), err
}

// readLong reads what WritableUtils.writeVLong has written: a byte of at least -112 is the
// number; another one tells how many follow, and whether the number is negative, which is
// then written as its complement.
func readLong(r io.ByteReader) (int64, error) {
	first, err := r.ReadByte()
	if err != nil {
		return 0, err
	}
	b := int8(first)
	if b >= -112 {
		return int64(b), nil
	}
	n, negative := -112-int(b), b < -120
	if negative {
		n = -120 - int(b)
	}
	var v uint64
	for range n {
		next, err := r.ReadByte()
		if err != nil {
			return 0, whole(err)
		}
		v = v<<8 | uint64(next)
	}
	if negative {
		v = ^v
	}
	return int64(v), nil
}

// Next returns the next key and value, as their Writables have written them; [Text] shows
// them. They are valid until the next call. At the end of the file the error is io.EOF.
func (q *Reader) Next() (key, value []byte, err error) {
	if q.err != nil {
		return nil, nil, q.err
	}
	if q.header.Blocks {
		key, value, err = q.fromBlock()
	} else {
		key, value, err = q.single()
	}
	q.err = err
	return key, value, err
}

// checkSync reads a sync.
func (q *Reader) checkSync() error {
	var got [syncLen]byte
	if _, err := io.ReadFull(q.r, got[:]); err != nil {
		return whole(err)
	}
	if got != q.sync {
		return fmt.Errorf("%w: a sync that is not the file's", ErrMalformed)
	}
	return nil
}

// single reads a record: its length, that of its key, key and value.
func (q *Reader) single() (key, value []byte, err error) {
	length, err := q.int32()
	if err != nil {
		return nil, nil, err // io.EOF: it is over
	}
	if length == escape {
		if err := q.checkSync(); err != nil {
			return nil, nil, err
		}
		if length, err = q.int32(); err != nil {
			return nil, nil, err // a sync may be the last of a file
		}
	}
	keyLength, err := q.int32()
	if err != nil {
		return nil, nil, whole(err)
	}
	if keyLength < 0 || length < keyLength || length > MaxRecord {
		return nil, nil, fmt.Errorf("%w: a record of %d bytes with a key of %d", ErrMalformed, length, keyLength)
	}
	if q.record, err = codec.ReadN(q.r, q.record[:0], int(length)); err != nil {
		return nil, nil, whole(err)
	}
	key, value = q.record[:keyLength:keyLength], q.record[keyLength:]
	if q.codec != nil {
		if q.value, err = q.unpack(q.value[:0], value); err != nil {
			return nil, nil, err
		}
		value = q.value
	}
	return key, value, nil
}

// unpack appends what b has packed.
func (q *Reader) unpack(dst, b []byte) ([]byte, error) {
	r, err := q.codec.Open(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("unpacking with %s: %w", q.header.Codec, whole(err))
	}
	out := bytes.NewBuffer(dst)
	n, err := io.Copy(out, io.LimitReader(r, MaxRecord+1))
	closed := r.Close()
	if err = cmp.Or(err, closed); err != nil {
		return nil, fmt.Errorf("unpacking with %s: %w", q.header.Codec, err)
	}
	if n > MaxRecord {
		return nil, fmt.Errorf("%w: %d bytes unpack to more than %d", ErrMalformed, len(b), MaxRecord)
	}
	return out.Bytes(), nil
}

// fromBlock reads a record of a block.
func (q *Reader) fromBlock() (key, value []byte, err error) {
	for q.left == 0 {
		if err := q.block(); err != nil {
			return nil, nil, err
		}
	}
	q.left--
	if key, err = q.keys.take(&q.keyLengths); err != nil {
		return nil, nil, fmt.Errorf("key: %w", err)
	}
	if value, err = q.valuesOf.take(&q.lengths); err != nil {
		return nil, nil, fmt.Errorf("value: %w", err)
	}
	return key, value, nil
}

// block reads a block: a sync, the number of records, lengths of keys, keys, lengths of
// values and values, each part packed by itself behind its length.
func (q *Reader) block() error {
	mark, err := q.int32()
	if err != nil {
		return err // io.EOF: it is over
	}
	if mark != escape {
		return fmt.Errorf("%w: %d where a block's sync is due", ErrMalformed, mark)
	}
	if err := q.checkSync(); err != nil {
		return err
	}
	n, err := readLong(q.r)
	if err == io.EOF {
		return io.EOF // a sync may be the last of a file
	}
	if err != nil {
		return err
	}
	for _, p := range []*part{&q.keyLengths, &q.keys, &q.lengths, &q.valuesOf} {
		length, err := readLong(q.r)
		if err != nil {
			return whole(err)
		}
		if length < 0 || length > MaxRecord {
			return fmt.Errorf("%w: a part of a block of %d bytes", ErrMalformed, length)
		}
		if q.record, err = codec.ReadN(q.r, q.record[:0], int(length)); err != nil {
			return whole(err)
		}
		if p.all, err = q.unpack(p.all[:0], q.record); err != nil {
			return err
		}
		p.rest = p.all
	}
	if n < 0 || n > int64(len(q.keyLengths.all)) || n > int64(len(q.lengths.all)) { // each has a byte at least
		return fmt.Errorf("%w: a block of %d records", ErrMalformed, n)
	}
	q.left = int(n)
	return nil
}

// take returns the next of p, whose length is the next of lengths.
func (p *part) take(lengths *part) ([]byte, error) {
	r := bytes.NewReader(lengths.rest)
	n, err := readLong(r)
	if err != nil {
		return nil, fmt.Errorf("%w: its length: %w", ErrMalformed, whole(err))
	}
	lengths.rest = lengths.rest[len(lengths.rest)-r.Len():]
	if n < 0 || n > int64(len(p.rest)) {
		return nil, fmt.Errorf("%w: %d bytes where %d are left of the block", ErrMalformed, n, len(p.rest))
	}
	out := p.rest[:n:n]
	p.rest = p.rest[n:]
	return out, nil
}
