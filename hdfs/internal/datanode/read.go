package datanode

import (
	"crypto/md5"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

const (
	// sendBuffer holds a packet on its way to a reader, and is how much is written at a time.
	sendBuffer = 128 << 10
	// longBuffer holds one for a reader that has taken longAfter bytes and wants as many again.
	// With long packets both ends wait less often, and a client can have its system put them
	// where they are wanted. longSpare is for what a client reads ahead, so that a buffer of
	// longBuffer is enough there, too.
	longBuffer = 1 << 20
	longSpare  = 4 << 10
	longAfter  = 1 << 20
	// sendRoom is kept free in it for a response before the first packet and
	// the empty packet after the last.
	sendRoom = 1 << 10
	// catchUp is how long a reader waits for bytes that it has heard of from
	// another DataNode, but that are not acknowledged here yet.
	catchUp     = 3 * time.Second
	catchUpPoll = 5 * time.Millisecond
)

func (dn *DataNode) readBlock(p *peer, op *hdfspb.OpReadBlockProto) error {
	block := op.GetHeader().GetBaseHeader().GetBlock()
	if err := dn.checkBlock(block); err != nil {
		return dn.answered(p, nil, err)
	}
	if err := dn.allow(op.GetHeader().GetBaseHeader().GetToken(), blocktoken.Access{Block: block, Mode: blocktoken.Read}); err != nil {
		return dn.answered(p, nil, err)
	}
	if op.GetOffset() > store.MaxBlock || op.GetLen() > math.MaxInt64-store.MaxBlock {
		return dn.answered(p, nil, fmt.Errorf("%w: offset %d, length %d", transfer.ErrMalformed, op.GetOffset(), op.GetLen()))
	}
	offset, end := int64(op.GetOffset()), int64(op.GetOffset()+op.GetLen())
	rd, err := dn.openReader(block, end, !op.GetSendChecksums())
	if err != nil {
		return dn.answered(p, nil, err)
	}
	defer rd.Close()
	dn.reads.served.Add(1)
	dn.reads.bytes.Add(op.GetLen())
	bpc := int64(rd.Sum.BytesPerChunk)
	s := sender{
		p: p, rd: rd, off: offset / bpc * bpc, end: min((end+bpc-1)/bpc*bpc, rd.Length), long: dn.budget,
		sums: op.GetSendChecksums(), compare: op.GetSendChecksums() && !compares(op.GetHeader().GetClientName()),
	}
	started, err := s.run(func(buf []byte) ([]byte, error) {
		start := uint64(s.off)
		return transfer.AppendMessage(buf, &hdfspb.BlockOpResponseProto{
			Status:             hdfspb.Status_SUCCESS.Enum(),
			ReadOpChecksumInfo: &hdfspb.ReadOpChecksumInfoProto{Checksum: sent(rd.Sum, !s.sums).Proto(), ChunkOffset: &start},
		})
	})
	if err != nil {
		dn.noteCorrupt(rd, err)
		if !started {
			return dn.answered(p, nil, err)
		}
		return err
	}
	status := &hdfspb.ClientReadStatusProto{}
	if err := p.r.ReadMessage(status); err != nil {
		// A client that has read enough closes without telling.
		if gone(err) || errors.Is(err, os.ErrDeadlineExceeded) {
			return io.EOF
		}
		return fmt.Errorf("client's status: %w", err)
	}
	if s := status.GetStatus(); s != hdfspb.Status_SUCCESS && s != hdfspb.Status_CHECKSUM_OK {
		return fmt.Errorf("client read block %d with status %v", block.GetBlockId(), s)
	}
	return nil
}

// compares tells by a client's name whether it uses nothing before it has compared it with its
// checksums, and tells the NameNode what does not match. Hadoop's and ours do, and begin with this.
// Others are known that tell nobody, or that hand a chunk on and then fail: the DataNode compares for
// them.
func compares(client string) bool { return strings.HasPrefix(client, "DFSClient_") }

// openReader opens a replica of which the bytes before end must be visible. With bare nobody compares them:
// as in HDFS they are sent then though the meta file is missing.
func (dn *DataNode) openReader(block *hdfspb.ExtendedBlockProto, end int64, bare bool) (*store.Reader, error) {
	r, err := dn.store.Get(block.GetBlockId())
	if err != nil {
		return nil, err
	}
	info := r.Info()
	for began := time.Now(); info.State == store.BeingWritten && info.Visible < end && end <= info.Length; info = r.Info() {
		if time.Since(began) > catchUp || !dn.sleep(catchUpPoll) {
			break
		}
	}
	open := r.Open
	if bare {
		open = r.OpenBare
	}
	rd, err := open()
	if err != nil {
		dn.suspectDisk(err)
		if errors.Is(err, store.ErrCorrupt) {
			dn.reportCorrupt(info, err)
		}
		return nil, err
	}
	if rd.Bare != nil {
		dn.reportCorrupt(info, rd.Bare)
	}
	if rd.Info.Generation < block.GetGenerationStamp() {
		rd.Close()
		return nil, fmt.Errorf("read block %d at generation %d: %w: here it has %d", block.GetBlockId(), block.GetGenerationStamp(), store.ErrGeneration, rd.Info.Generation)
	}
	if end > rd.Length {
		rd.Close()
		return nil, fmt.Errorf("read block %d up to %d: %w: here it has %d bytes to read", block.GetBlockId(), end, store.ErrLength, rd.Length)
	}
	return rd, nil
}

// noteCorrupt reports a replica whose bytes did not match their checksums.
func (dn *DataNode) noteCorrupt(rd *store.Reader, err error) {
	dn.suspectDisk(err)
	if errors.Is(err, store.ErrCorrupt) {
		dn.reportCorrupt(rd.Info, err)
	}
}

// A sender sends packets of a replica.
type sender struct {
	p       *peer
	rd      *store.Reader
	off     int64   // a multiple of the chunk
	end     int64   // a multiple of the chunk, or the length
	sums    bool    // send checksums
	compare bool    // each packet with its checksums first
	long    *budget // of the memory for long packets; nil: there are none
}

// read fills data, and sums with its checksums if they are sent, or compared.
func (s *sender) read(data, sums []byte) error {
	if !s.compare {
		wanted := sums
		if !s.sums {
			wanted = nil
		}
		if err := s.rd.Read(data, wanted, s.off); !errors.Is(err, store.ErrChanged) {
			return err
		}
		// The bytes of a replica that was removed are there for as long as its files are open,
		// and those in front of a cut are what they were. The checksums tell.
	}
	return s.rd.ReadVerified(data, sums, s.off)
}

// run sends everything and then the empty last packet. What begin appends goes
// out with the first packet, after its bytes have been read, and found good if
// they are compared; started tells whether it did.
func (s *sender) run(begin func([]byte) ([]byte, error)) (started bool, err error) {
	bpc := s.rd.Sum.BytesPerChunk
	chunks := max(1, (sendBuffer-sendRoom)/(bpc+4))
	chunks = int(min(int64(chunks), s.rd.Sum.Chunks(s.end-s.off)))
	buf, sums := transfer.GetBuffer(sendRoom+chunks*(bpc+4)), transfer.GetBuffer(max(1, 4*chunks))
	defer func() {
		transfer.PutBuffer(buf)
		transfer.PutBuffer(sums)
	}()
	out := (*buf)[:0]
	more := (longBuffer - longSpare - sendRoom) / (bpc + 4)
	more -= more % 8 // whole pages, of chunks of 512 bytes
	growAt := s.off + longAfter
	if s.long == nil || more <= chunks {
		growAt = math.MaxInt64
	}
	if begin != nil {
		if out, err = begin(out); err != nil {
			return false, err
		}
	}
	h := transfer.PacketHeader{}
	for done := false; !done; h.Seqno++ {
		if s.off >= growAt && s.end-s.off >= longAfter {
			growAt = math.MaxInt64
			if s.long.takeLong() {
				defer s.long.giveLong()
				transfer.PutBuffer(buf)
				transfer.PutBuffer(sums)
				chunks = more
				buf, sums = transfer.GetBuffer(longBuffer), transfer.GetBuffer(4*chunks)
				out = (*buf)[:0]
			}
		}
		n := int(min(int64(chunks*bpc), s.end-s.off))
		if n > 0 {
			ns := 4 * int(s.rd.Sum.Chunks(int64(n)))
			h.Offset, h.DataLen = s.off, int32(n)
			onWire := ns
			if !s.sums {
				onWire = 0
			}
			out = transfer.AppendPacketPrefix(out, &h, onWire)
			at := len(out)
			out = out[:at+onWire+n]
			check := out[at : at+onWire]
			if !s.sums {
				check = (*sums)[:ns]
			}
			if err := s.read(out[at+onWire:], check); err != nil {
				return started, err
			}
			s.off += int64(n)
		}
		if done = s.off >= s.end; done {
			last := transfer.PacketHeader{Offset: s.off, Seqno: h.Seqno + 1, Last: true}
			if n == 0 {
				last.Seqno = h.Seqno
			}
			out = transfer.AppendPacketPrefix(out, &last, 0)
		}
		started = true
		// In pieces, each of which has the time that a reader may take for one: a long packet
		// asks for no faster reader than a short one.
		for len(out) > 0 {
			n, err := s.p.Write(out[:min(len(out), sendBuffer)])
			if err != nil {
				return true, err
			}
			out = out[n:]
		}
		out = (*buf)[:0]
	}
	return true, nil
}

func (dn *DataNode) blockChecksum(p *peer, op *hdfspb.OpBlockChecksumProto) error {
	block := op.GetHeader().GetBlock()
	if err := dn.checkBlock(block); err != nil {
		return dn.answered(p, nil, err)
	}
	if err := dn.allow(op.GetHeader().GetToken(), blocktoken.Access{Block: block, Mode: blocktoken.Read}); err != nil {
		return dn.answered(p, nil, err)
	}
	rd, err := dn.openReader(block, int64(block.GetNumBytes()), false)
	if err != nil {
		return dn.answered(p, nil, err)
	}
	defer rd.Close()
	length := int64(block.GetNumBytes())
	if length == 0 {
		length = rd.Length
	}
	options := op.GetBlockChecksumOptions()
	var sum []byte
	switch t := options.GetBlockChecksumType(); t {
	case hdfspb.BlockChecksumTypeProto_MD5CRC:
		sum, err = md5OfSums(rd, length)
	case hdfspb.BlockChecksumTypeProto_COMPOSITE_CRC:
		sum, err = compositeSums(rd, length, options.GetStripeLength())
	default:
		err = fmt.Errorf("%w: unknown type %d of a block's checksum", transfer.ErrMalformed, t)
	}
	if err != nil {
		dn.noteCorrupt(rd, err)
		return dn.answered(p, nil, err)
	}
	bpc, chunks := uint32(rd.Sum.BytesPerChunk), uint64(rd.Sum.Chunks(length))
	return transfer.WriteMessage(p, &hdfspb.BlockOpResponseProto{
		Status: hdfspb.Status_SUCCESS.Enum(),
		ChecksumResponse: &hdfspb.OpBlockChecksumResponseProto{
			BytesPerCrc: &bpc, CrcPerBlock: &chunks, BlockChecksum: sum, CrcType: rd.Sum.Type.Enum(),
			BlockChecksumOptions: &hdfspb.BlockChecksumOptionsProto{BlockChecksumType: options.GetBlockChecksumType().Enum(), StripeLength: proto.Uint64(options.GetStripeLength())},
		},
	})
}

// md5OfSums is the MD5 of the checksums of the first length bytes.
func md5OfSums(rd *store.Reader, length int64) ([]byte, error) {
	digest := md5.New()
	err := eachVerified(rd, length, func(_, sums []byte) { digest.Write(sums) })
	return digest.Sum(nil), err
}

// maxStripes bounds how many sums [compositeSums] makes for one block.
const maxStripes = 1 << 20

// compositeSums are the CRCs of the first length bytes in stripes, each of stripe bytes but the
// last, which may be shorter; 0 for a stripe means one for all. Unlike [md5OfSums] they do
// not depend on the chunks that the block's own checksums cover. Each has 4 bytes,
// big-endian. Hadoop composes them of the chunks' checksums, which gives the same.
func compositeSums(rd *store.Reader, length int64, stripe uint64) ([]byte, error) {
	if rd.Sum.Size() == 0 {
		return nil, errors.New("the block has no checksums that could be composed")
	}
	if stripe == 0 || stripe > uint64(length) {
		stripe = uint64(length)
	}
	if length == 0 {
		return nil, nil
	}
	if uint64(length)/stripe >= maxStripes {
		return nil, fmt.Errorf("%w: stripes of %d bytes are too many in %d", transfer.ErrMalformed, stripe, length)
	}
	var (
		out  []byte
		sum  uint32
		left = stripe
	)
	err := eachVerified(rd, length, func(data, _ []byte) {
		for len(data) > 0 {
			n := min(uint64(len(data)), left)
			sum = rd.Sum.Update(sum, data[:n])
			data, left = data[n:], left-n
			if left == 0 {
				out = binary.BigEndian.AppendUint32(out, sum)
				sum, left = 0, stripe
			}
		}
	})
	if left != stripe {
		out = binary.BigEndian.AppendUint32(out, sum)
	}
	return out, err
}

// eachVerified visits the first length bytes with their checksums. The bytes are
// read even for the checksums alone: one that no longer fits its bytes must not stand for a file.
func eachVerified(rd *store.Reader, length int64, visit func(data, sums []byte)) error {
	bpc := rd.Sum.BytesPerChunk
	chunks := max(1, sendBuffer/(bpc+4))
	buf := transfer.GetBuffer(chunks * (bpc + 4))
	defer transfer.PutBuffer(buf)
	for off := int64(0); off < length; {
		n := int(min(int64(chunks*bpc), rd.Length-off))
		data, sums := (*buf)[:n], (*buf)[n:n+4*int(rd.Sum.Chunks(int64(n)))]
		if err := rd.ReadVerified(data, sums, off); err != nil {
			return err
		}
		if rest := length - off; rest < int64(n) {
			data = data[:rest]
			sums = sums[:4*rd.Sum.Chunks(rest)]
			rd.Sum.Sum(sums, data)
		}
		visit(data, sums)
		off += int64(n)
	}
	return nil
}
