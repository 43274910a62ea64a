package shortcircuit

import (
	"encoding/binary"
	"fmt"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// MetaHeader is the length in bytes of the header of HDFS's meta file.
const MetaHeader = 7

// AppendMeta appends the header of HDFS's meta file.
func AppendMeta(dst []byte, sum transfer.Checksum) []byte {
	dst = binary.BigEndian.AppendUint16(dst, VersionHDFS)
	dst = append(dst, byte(sum.Type))
	return binary.BigEndian.AppendUint32(dst, uint32(sum.BytesPerChunk))
}

// ParseMeta reads the header of HDFS's meta file. The error wraps
// [transfer.ErrMalformed].
func ParseMeta(b []byte) (transfer.Checksum, error) {
	if len(b) < MetaHeader {
		return transfer.Checksum{}, fmt.Errorf("%w: a meta file of %d bytes, its header alone has %d", transfer.ErrMalformed, len(b), MetaHeader)
	}
	if v := binary.BigEndian.Uint16(b); v != VersionHDFS {
		return transfer.Checksum{}, fmt.Errorf("%w: a meta file of version %d, known is %d", transfer.ErrMalformed, v, VersionHDFS)
	}
	return transfer.NewChecksum(hdfspb.ChecksumTypeProto(b[2]), binary.BigEndian.Uint32(b[3:]))
}
