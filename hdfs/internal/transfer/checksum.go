package transfer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/internal/crc32c"
)

// ErrChecksum says that bytes do not match their checksum.
var ErrChecksum = errors.New("checksum mismatch")

// MaxBytesPerChecksum bounds the chunk that one checksum covers.
const MaxBytesPerChecksum = 1 << 20

// Checksum tells how data is protected: one checksum for each chunk of
// BytesPerChunk bytes, the last chunk of a block may be shorter. The zero value
// is of no use; see [NewChecksum].
type Checksum struct {
	Type          hdfspb.ChecksumTypeProto
	BytesPerChunk int
	table         *crc32.Table
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// NewChecksum checks a type and chunk size that came from outside.
func NewChecksum(typ hdfspb.ChecksumTypeProto, bytesPerChunk uint32) (Checksum, error) {
	if bytesPerChunk == 0 || bytesPerChunk > MaxBytesPerChecksum {
		return Checksum{}, fmt.Errorf("%w: %d bytes per checksum, must be between 1 and %d", ErrMalformed, bytesPerChunk, MaxBytesPerChecksum)
	}
	c := Checksum{Type: typ, BytesPerChunk: int(bytesPerChunk)}
	switch typ {
	case hdfspb.ChecksumTypeProto_CHECKSUM_NULL:
	case hdfspb.ChecksumTypeProto_CHECKSUM_CRC32:
		c.table = crc32.IEEETable
	case hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C:
		c.table = castagnoli
	default:
		return Checksum{}, fmt.Errorf("%w: unknown checksum type %d", ErrMalformed, typ)
	}
	return c, nil
}

// CRC32C is the checksum that HDFS uses unless configured otherwise.
func CRC32C() Checksum {
	return Checksum{Type: hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C, BytesPerChunk: 512, table: castagnoli}
}

// Without is c for bytes that go without checksums: its chunks are those of c.
func (c Checksum) Without() Checksum {
	return Checksum{Type: hdfspb.ChecksumTypeProto_CHECKSUM_NULL, BytesPerChunk: c.BytesPerChunk}
}

// Proto is c as the protocol carries it.
func (c Checksum) Proto() *hdfspb.ChecksumProto {
	bpc := uint32(c.BytesPerChunk)
	return &hdfspb.ChecksumProto{Type: c.Type.Enum(), BytesPerChecksum: &bpc}
}

// Size is the size of one checksum in bytes: 0 or 4.
func (c Checksum) Size() int {
	if c.Type == hdfspb.ChecksumTypeProto_CHECKSUM_NULL {
		return 0
	}
	return 4
}

// Chunks is the number of chunks that n bytes from a chunk's start span.
func (c Checksum) Chunks(n int64) int64 {
	return (n + int64(c.BytesPerChunk) - 1) / int64(c.BytesPerChunk)
}

// Update extends the checksum of some bytes by those that follow them. The
// checksum of nothing is 0.
func (c Checksum) Update(sum uint32, data []byte) uint32 {
	if c.table == castagnoli {
		return crc32c.Update(sum, data)
	}
	return crc32.Update(sum, c.table, data)
}

// Sum writes the checksums of data, which starts at a chunk boundary, to sums:
// Chunks(len(data)) * Size() bytes, big-endian.
func (c Checksum) Sum(sums, data []byte) {
	if c.table == castagnoli {
		crc32c.Sums(sums, data, c.BytesPerChunk)
		return
	}
	for i := 0; len(data) > 0; i += 4 {
		n := min(c.BytesPerChunk, len(data))
		binary.BigEndian.PutUint32(sums[i:], crc32.Update(0, c.table, data[:n]))
		data = data[n:]
	}
}

// Verify compares data, which starts at a chunk boundary, with its checksums.
// The error wraps [ErrChecksum] and tells the offset of the chunk in data.
// There must be as many checksums as chunks.
func (c Checksum) Verify(sums, data []byte) error {
	if c.table == nil {
		return nil
	}
	const together = 64 // chunks whose checksums are made and compared together
	var made [4 * together]byte
	for off := 0; off < len(data); {
		part := data[off:min(off+together*c.BytesPerChunk, len(data))]
		n := 4 * int(c.Chunks(int64(len(part))))
		c.Sum(made[:n], part)
		if !bytes.Equal(made[:n], sums[:n]) {
			return c.mismatch(off, part, made[:n], sums[:n])
		}
		off, sums = off+len(part), sums[n:]
	}
	return nil
}

// mismatch tells the first chunk of data, at off, whose checksum is not the one that was made.
func (c Checksum) mismatch(off int, data, made, sums []byte) error {
	for i := 0; ; i += 4 {
		got, want := binary.BigEndian.Uint32(made[i:]), binary.BigEndian.Uint32(sums[i:])
		if n := min(c.BytesPerChunk, len(data)); got != want {
			return fmt.Errorf("%w: chunk at %d of %d bytes has %08x, its checksum is %08x", ErrChecksum, off, n, got, want)
		}
		off, data = off+c.BytesPerChunk, data[c.BytesPerChunk:]
	}
}
