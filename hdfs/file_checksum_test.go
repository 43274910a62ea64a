package hdfs

import (
	"encoding/hex"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// Checksums have the bytes that hdfs dfs -checksum shows, 28 for an MD5 with its sizes. That
// of an empty file is the MD5 of 32 zeros.
func TestChecksumsAsShown(t *testing.T) {
	empty := (&fileSum{}).result()
	if got := hex.EncodeToString(empty.Encoded); got != "000000000000000000000000"+"70bc8f4b72a86921468bf8e8441dce51" || empty.Algorithm != "MD5-of-0MD5-of-0CRC32" {
		t.Errorf("%s %s", empty.Algorithm, got)
	}
	var f fileSum
	for range 2 {
		err := f.add(&hdfspb.OpBlockChecksumResponseProto{
			BytesPerCrc: proto.Uint32(512), CrcPerBlock: proto.Uint64(2048), BlockChecksum: make([]byte, 16), CrcType: hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(),
		}, 1<<20, true)
		if err != nil {
			t.Fatal(err)
		}
	}
	// The MD5 of two block checksums that are zeros is that of 32 zeros, too.
	if sum := f.result(); hex.EncodeToString(sum.Encoded) != "00000200"+"0000000000000800"+"70bc8f4b72a86921468bf8e8441dce51" || sum.Algorithm != "MD5-of-2048MD5-of-512CRC32C" {
		t.Errorf("%s %x", sum.Algorithm, sum.Encoded)
	}
	composite := fileSum{mode: CompositeCRC}
	if err := composite.add(&hdfspb.OpBlockChecksumResponseProto{BlockChecksum: []byte{1, 2, 3, 4}, CrcType: hdfspb.ChecksumTypeProto_CHECKSUM_CRC32.Enum()}, 5, false); err != nil {
		t.Fatal(err)
	}
	if sum := composite.result(); hex.EncodeToString(sum.Encoded) != "01020304" || sum.Algorithm != "COMPOSITE-CRC32" {
		t.Errorf("%s %x", sum.Algorithm, sum.Encoded)
	}
	for _, length := range []int{0, 4, 15, 17} {
		if err := (&fileSum{}).add(&hdfspb.OpBlockChecksumResponseProto{BlockChecksum: make([]byte, length)}, 1, false); err == nil {
			t.Errorf("an MD5 of %d bytes", length)
		}
	}
}
