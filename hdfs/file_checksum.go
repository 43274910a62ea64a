package hdfs

import (
	"context"
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/crc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// ChecksumMode is of which kind a file's checksum is.
type ChecksumMode int

const (
	// MD5MD5CRC is HDFS's usual one: the MD5 of the blocks' MD5s of their chunks' CRCs. It
	// depends on the sizes of blocks and chunks.
	MD5MD5CRC ChecksumMode = iota
	// CompositeCRC is the CRC of the whole file, whatever its blocks and chunks are. An
	// empty file has the other kind, as in Hadoop.
	CompositeCRC
)

// FileChecksum is the checksum of a file, computed by the DataNodes.
type FileChecksum struct {
	// Algorithm is its name in Hadoop, such as MD5-of-0MD5-of-512CRC32C.
	Algorithm string
	// Sum is the 16 bytes of the MD5, or the 4 of the CRC.
	Sum []byte
	// Encoded is how Hadoop's shell shows it, in bytes: with the sizes before an MD5.
	Encoded []byte
}

// Checksum asks the DataNodes for the checksum of a file, of the kind that
// [ClientConfig].ChecksumMode says.
func (c *Client) Checksum(ctx context.Context, name string) (*FileChecksum, error) {
	return c.ChecksumOf(ctx, name, c.cfg.ChecksumMode)
}

// ChecksumOf is [Client.Checksum] of a kind.
func (c *Client) ChecksumOf(ctx context.Context, name string, mode ChecksumMode) (*FileChecksum, error) {
	name = c.Abs(name)
	sum, err := c.checksum(ctx, name, mode)
	return sum, c.fail("checksum", name, err)
}

func (c *Client) checksum(ctx context.Context, name string, mode ChecksumMode) (*FileChecksum, error) {
	lbs, err := c.locate(ctx, "checksum", name, 0, -1)
	if err != nil {
		return nil, err
	}
	if lbs.GetUnderConstruction() {
		return nil, errors.New("it is being written, and so has no checksum yet")
	}
	f := fileSum{mode: mode}
	for i, lb := range lbs.GetBlocks() {
		r, err := c.blockChecksum(ctx, name, lb, mode)
		if err != nil {
			return nil, err
		}
		if err := f.add(r, int64(lb.GetB().GetNumBytes()), i == 0 && len(lbs.GetBlocks()) > 1); err != nil {
			return nil, fmt.Errorf("block %d: %w", lb.GetB().GetBlockId(), err)
		}
	}
	return f.result(), nil
}

// blockChecksum asks one DataNode after the other.
func (c *Client) blockChecksum(ctx context.Context, name string, lb *hdfspb.LocatedBlockProto, mode ChecksumMode) (*hdfspb.OpBlockChecksumResponseProto, error) {
	kind := hdfspb.BlockChecksumTypeProto_MD5CRC
	if mode == CompositeCRC {
		kind = hdfspb.BlockChecksumTypeProto_COMPOSITE_CRC
	}
	var errs []error
	for again := false; ; again = true {
		for _, n := range lb.GetLocs() {
			r, err := c.path.Checksum(ctx, &data.ChecksumRequest{Block: lb.GetB(), Token: lb.GetBlockToken(), Node: n, Type: kind})
			if err == nil {
				return r, nil
			}
			if ctx.Err() != nil {
				return nil, err
			}
			errs = append(errs, err)
		}
		if again {
			return nil, fmt.Errorf("no DataNode sums up block %d: %w", lb.GetB().GetBlockId(), errors.Join(errs...))
		}
		// Its token may have expired, its replicas may have moved.
		lbs, err := c.locate(ctx, "checksum", name, int64(lb.GetOffset()), 1)
		if err != nil {
			return nil, err
		}
		for _, b := range lbs.GetBlocks() {
			if b.GetB().GetBlockId() == lb.GetB().GetBlockId() {
				lb = b
			}
		}
	}
}

// fileSum makes a file's checksum of those of its blocks.
type fileSum struct {
	mode   ChecksumMode
	sums   []byte
	crc    uint32
	any    bool
	kind   hdfspb.ChecksumTypeProto
	chunk  uint32
	chunks uint64 // of a block
}

func (f *fileSum) add(r *hdfspb.OpBlockChecksumResponseProto, length int64, several bool) error {
	if f.any && (r.GetCrcType() != f.kind || f.mode == MD5MD5CRC && r.GetBytesPerCrc() != f.chunk) {
		return fmt.Errorf("it has %v over %d bytes, the blocks before have %v over %d: such a file has no checksum of this kind", r.GetCrcType(), r.GetBytesPerCrc(), f.kind, f.chunk)
	}
	f.any, f.kind, f.chunk = true, r.GetCrcType(), r.GetBytesPerCrc()
	if several {
		f.chunks = r.GetCrcPerBlock()
	}
	sum := r.GetBlockChecksum()
	if f.mode == MD5MD5CRC {
		if len(sum) != md5.Size {
			return fmt.Errorf("a checksum of %d bytes, want an MD5", len(sum))
		}
		f.sums = append(f.sums, sum...)
		return nil
	}
	if len(sum) != 4 {
		return fmt.Errorf("a checksum of %d bytes, want a CRC", len(sum))
	}
	with := crc.Castagnoli
	if f.kind == hdfspb.ChecksumTypeProto_CHECKSUM_CRC32 {
		with = crc.IEEE
	}
	f.crc = with.Combine(f.crc, binary.BigEndian.Uint32(sum), length)
	return nil
}

// paddedFrom is the size of the buffer over which Hadoop computes the MD5: it doubles as
// needed, and what is not used of it counts as zeros.
const paddedFrom = 32

func (f *fileSum) result() *FileChecksum {
	kind := ChecksumCRC32.String() // of an empty file, in Hadoop; nothing depends on it
	if f.any {
		kind = checksumType(f.kind).String()
	}
	if f.mode == CompositeCRC && f.any {
		sum := binary.BigEndian.AppendUint32(nil, f.crc)
		return &FileChecksum{"COMPOSITE-" + kind, sum, sum}
	}
	padded := paddedFrom
	for padded < len(f.sums) {
		padded *= 2
	}
	sum := md5.Sum(append(f.sums, make([]byte, padded-len(f.sums))...))
	encoded := binary.BigEndian.AppendUint32(nil, f.chunk)
	encoded = binary.BigEndian.AppendUint64(encoded, f.chunks)
	encoded = append(encoded, sum[:]...)
	return &FileChecksum{fmt.Sprintf("MD5-of-%dMD5-of-%d%s", f.chunks, f.chunk, kind), sum[:], encoded}
}
