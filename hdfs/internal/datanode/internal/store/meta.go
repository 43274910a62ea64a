package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// The layout of a meta file; integers are big-endian.
//
//	0   "VBNBLOCK" | u16 version | u8 checksum type | u8 flags | u32 bytes per chunk | u64 block id | u32 CRC32C
//	64  slots of 32 bytes: u64 length | u32 checksum of the partial chunk | u32 flags | u32 CRC32C
//	512 u32 checksum of each full chunk
const (
	headerSize  = 512
	metaMagic   = "VBNBLOCK"
	metaVersion = 1

	headerCRC  = 24
	slotsStart = 64
	slotSize   = 32
	slotCRC    = 16

	flagTemporary = 1 // a copy under way: worthless until it is whole
	flagTorn      = 2 // the machine has died since it was written: acknowledged bytes may be missing

	slotValid  = 1
	slotSynced = 2 // the bytes were on stable storage before the slot was written

	// MaxBlock bounds a block's length, in bytes.
	MaxBlock = 1 << 42
)

type slotIndex int

const (
	slotDurableA slotIndex = iota
	slotDurableB
	slotFlushed
	slotFinal
	slotCount
)

// A slot is a length and the checksum of the partial chunk at its end (0 if the
// length is a multiple of the chunk).
type slot struct {
	length int64
	tail   uint32
	valid  bool
	synced bool
}

type metaHeader struct {
	id        uint64
	sum       transfer.Checksum
	temporary bool
	torn      bool
	slots     [slotCount]slot
}

var errMeta = errors.New("damaged meta file")

func appendHeader(dst []byte, h *metaHeader) []byte {
	start := len(dst)
	dst = append(dst, metaMagic...)
	dst = binary.BigEndian.AppendUint16(dst, metaVersion)
	var flags byte
	if h.temporary {
		flags |= flagTemporary
	}
	if h.torn {
		flags |= flagTorn
	}
	dst = append(dst, byte(h.sum.Type), flags)
	dst = binary.BigEndian.AppendUint32(dst, uint32(h.sum.BytesPerChunk))
	dst = binary.BigEndian.AppendUint64(dst, h.id)
	dst = binary.BigEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
	for len(dst)-start < slotsStart {
		dst = append(dst, 0)
	}
	for i := range h.slots {
		dst = appendSlot(dst, slotIndex(i), h.slots[i])
	}
	for len(dst)-start < headerSize {
		dst = append(dst, 0)
	}
	return dst
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func slotOffset(i slotIndex) int64 { return slotsStart + slotSize*int64(i) }

func appendSlot(dst []byte, i slotIndex, s slot) []byte {
	start := len(dst)
	if s.valid {
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.length))
		dst = binary.BigEndian.AppendUint32(dst, s.tail)
		flags := uint32(slotValid)
		if s.synced {
			flags |= slotSynced
		}
		dst = binary.BigEndian.AppendUint32(dst, flags)
		dst = binary.BigEndian.AppendUint32(dst, slotChecksum(dst[start:], i))
	}
	for len(dst)-start < slotSize {
		dst = append(dst, 0)
	}
	return dst
}

// The index is part of the checksum, so that a slot can't pass for another.
func slotChecksum(b []byte, i slotIndex) uint32 {
	return crc32.Update(uint32(i)+1, castagnoli, b)
}

// decodeHeader reads the first headerSize bytes of a meta file. A slot that is
// damaged is absent; a damaged header is an error.
func decodeHeader(b []byte) (metaHeader, error) {
	var h metaHeader
	if len(b) < headerSize {
		return h, fmt.Errorf("%w: %d bytes, a header has %d", errMeta, len(b), headerSize)
	}
	if string(b[:8]) != metaMagic {
		return h, fmt.Errorf("%w: it does not begin with %q", errMeta, metaMagic)
	}
	if binary.BigEndian.Uint32(b[headerCRC:]) != crc32.Checksum(b[:headerCRC], castagnoli) {
		return h, fmt.Errorf("%w: the header does not match its checksum", errMeta)
	}
	if v := binary.BigEndian.Uint16(b[8:]); v != metaVersion {
		return h, fmt.Errorf("%w: version %d, this program knows %d", errMeta, v, metaVersion)
	}
	sum, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto(b[10]), binary.BigEndian.Uint32(b[12:]))
	if err != nil {
		return h, fmt.Errorf("%w: %w", errMeta, err)
	}
	if sum.Size() == 0 {
		return h, fmt.Errorf("%w: a replica without checksums", errMeta)
	}
	h.sum = sum
	h.temporary = b[11]&flagTemporary != 0
	h.torn = b[11]&flagTorn != 0
	h.id = binary.BigEndian.Uint64(b[16:])
	for i := range h.slots {
		h.slots[i] = decodeSlot(b[slotOffset(slotIndex(i)):], slotIndex(i))
	}
	return h, nil
}

func decodeSlot(b []byte, i slotIndex) slot {
	flags := binary.BigEndian.Uint32(b[12:])
	length := binary.BigEndian.Uint64(b)
	if flags&slotValid == 0 || length > MaxBlock || binary.BigEndian.Uint32(b[slotCRC:]) != slotChecksum(b[:slotCRC], i) {
		return slot{}
	}
	return slot{length: int64(length), tail: binary.BigEndian.Uint32(b[8:]), valid: true, synced: flags&slotSynced != 0}
}

func dataName(id uint64) string { return "blk_" + strconv.FormatUint(id, 10) }

func metaName(id, gen uint64) string {
	return "blk_" + strconv.FormatUint(id, 10) + "_" + strconv.FormatUint(gen, 10) + ".meta"
}

const (
	tmpSuffix     = ".tmp"     // being written, to be renamed
	damagedSuffix = ".damaged" // kept for whoever wants to look at it
)

// parseName takes a name apart. gen is meaningful for a meta file alone.
func parseName(name string) (id, gen uint64, meta, ok bool) {
	rest, ok := strings.CutPrefix(name, "blk_")
	if !ok {
		return 0, 0, false, false
	}
	rest, meta = strings.CutSuffix(rest, ".meta")
	if meta {
		var g string
		if rest, g, ok = strings.Cut(rest, "_"); !ok {
			return 0, 0, false, false
		}
		if gen, ok = parseNumber(g); !ok {
			return 0, 0, false, false
		}
	}
	id, ok = parseNumber(rest)
	return id, gen, meta, ok
}

// parseNumber refuses what FormatUint would not have written.
func parseNumber(s string) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, 64)
	return n, err == nil && n <= math.MaxInt64 && strconv.FormatUint(n, 10) == s
}
