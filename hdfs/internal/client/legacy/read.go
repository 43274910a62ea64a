package legacy

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// blockReader reads the packets of one READ_BLOCK.
type blockReader struct {
	p     *Path
	c     *conn
	ctx   context.Context
	stop  func() bool
	sum   transfer.Checksum
	pkt   transfer.Packet // whose head has been read last
	sums  []byte          // the checksums of what is left of its data
	rest  int             // bytes of its data that are left in the stream
	at    int64           // of them, or of the next packet, in the block
	skip  int64           // bytes before the range, to a chunk's start
	left  int64           // bytes of the range
	store []byte          // memory of sums
}

const (
	// piece is how much of a packet Next returns at most, in bytes: the processor has it still
	// when it is compared and used. A packet that is longer is worth being placed: several
	// shorter ones come with one call of Read.
	piece = 128 << 10
	// together is how many bytes of short packets are read at a time.
	together = 256 << 10
)

var _ data.Placer = (*blockReader)(nil)

// Read is [data.Path].Read.
func (p *Path) Read(ctx context.Context, req *data.ReadRequest) (data.BlockReader, error) {
	var resp hdfspb.BlockOpResponseProto
	c, stop, err := p.operate(ctx, req.Node, transfer.OpReadBlock, &hdfspb.OpReadBlockProto{
		Header: data.Header(req.Block, req.Token, req.Client),
		Offset: proto.Uint64(uint64(req.Offset)), Len: proto.Uint64(uint64(req.Length)),
		SendChecksums: proto.Bool(!req.Unverified), CachingStrategy: &hdfspb.CachingStrategyProto{},
	}, true, p.cfg.SocketTimeout, &resp)
	if err != nil {
		return nil, err
	}
	r := &blockReader{p: p, c: c, ctx: ctx, stop: stop, left: req.Length}
	if err := r.begin(req, &resp); err != nil {
		stop()
		c.discard()
		return nil, err
	}
	return r, nil
}

// begin takes the answer to the request, which tells the checksums and where the data
// begin.
func (r *blockReader) begin(req *data.ReadRequest, resp *hdfspb.BlockOpResponseProto) error {
	if err := refusal(r.c.address, resp); err != nil {
		return err
	}
	info := resp.GetReadOpChecksumInfo()
	sum, err := transfer.NewChecksum(info.GetChecksum().GetType(), info.GetChecksum().GetBytesPerChecksum())
	if err != nil {
		return fmt.Errorf("DataNode %s: %w", r.c.address, err)
	}
	r.sum = sum
	start := info.GetChunkOffset()
	if start > uint64(req.Offset) || uint64(req.Offset)-start >= uint64(sum.BytesPerChunk) {
		return fmt.Errorf("%w: DataNode %s begins at %d, asked for %d and chunks of %d", transfer.ErrMalformed, r.c.address, start, req.Offset, sum.BytesPerChunk)
	}
	r.at, r.skip = int64(start), req.Offset-int64(start)
	return nil
}

// Next returns verified data of the next packet.
func (r *blockReader) Next() ([]byte, error) {
	if r.left == 0 {
		r.finish()
		return nil, io.EOF
	}
	for {
		if err := r.head(false); err != nil {
			return nil, err
		}
		n, ahead := r.rest, together-r.rest
		if n > piece {
			n, ahead = max(piece/r.sum.BytesPerChunk, 1)*r.sum.BytesPerChunk, 0
			n = min(n, r.rest)
		}
		b, err := r.c.r.ReadRest(n, ahead)
		if err != nil {
			return nil, r.broken(err)
		}
		if err := r.compare(b); err != nil {
			return nil, err
		}
		if r.skip >= int64(len(b)) {
			r.skip -= int64(len(b))
			continue
		}
		b = b[r.skip:]
		r.skip = 0
		b = b[:min(int64(len(b)), r.left)]
		r.left -= int64(len(b))
		return b, nil
	}
}

// Place implements [data.Placer]: the stream puts whole chunks of a long packet, or its end, where
// they are wanted, and they are compared there. Next has what begins or ends inside a chunk.
func (r *blockReader) Place(p []byte) (int, error) {
	if r.left == 0 || r.skip > 0 || r.pkt.DataLen <= piece {
		return 0, nil
	}
	if err := r.head(true); err != nil {
		return 0, err
	}
	n := int(min(int64(r.rest), int64(len(p)), r.left))
	if n < r.rest {
		n -= n % r.sum.BytesPerChunk
	}
	if n == 0 {
		return 0, nil
	}
	p = p[:n]
	if _, err := io.ReadFull(r.c.r, p); err != nil {
		return 0, r.broken(err)
	}
	if err := r.compare(p); err != nil {
		return 0, err
	}
	r.left -= int64(n)
	return n, nil
}

// head reads the head of the next packet with data, if nothing is left of the last one. With
// little, only little of the data is read with it.
func (r *blockReader) head(little bool) error {
	for r.rest == 0 {
		if err := r.c.r.ReadPacketHead(r.sum, &r.pkt, little); err != nil {
			return r.broken(err)
		}
		if r.pkt.Offset != r.at {
			return fmt.Errorf("%w: DataNode %s sends offset %d, due is %d", transfer.ErrMalformed, r.c.address, r.pkt.Offset, r.at)
		}
		if r.pkt.Last {
			return fmt.Errorf("DataNode %s ends the block %d bytes early: %w", r.c.address, r.left, io.ErrUnexpectedEOF)
		}
		r.store = append(r.store[:0], r.pkt.Sums...) // what is read next takes their place
		r.sums, r.rest = r.store, int(r.pkt.DataLen)
	}
	return nil
}

// compare takes the bytes that follow, and compares them with their checksums.
func (r *blockReader) compare(b []byte) error {
	n := r.sum.Size() * int(r.sum.Chunks(int64(len(b))))
	if err := r.sum.Verify(r.sums[:n], b); err != nil {
		return fmt.Errorf("DataNode %s, data at %d of the block: %w", r.c.address, r.at, err)
	}
	r.sums = r.sums[n:]
	r.at, r.rest = r.at+int64(len(b)), r.rest-len(b)
	return nil
}

// broken is an error of the stream.
func (r *blockReader) broken(err error) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("DataNode %s broke off, as it does when it closes or when a checksum shows that its replica is corrupt: %w", r.c.address, err)
	}
	return fmt.Errorf("DataNode %s: %w", r.c.address, err)
}

// finish takes the last packet, tells the DataNode that all is well, and keeps the
// connection. If that fails, only the connection is of no further use: all that was
// asked for has come.
func (r *blockReader) finish() {
	if r.c == nil {
		return
	}
	// It sends nothing more, if it sends what was asked for.
	if r.rest > 0 || r.c.r.ReadPacketHead(r.sum, &r.pkt, true) != nil || !r.pkt.Last {
		r.end(false)
		return
	}
	status := hdfspb.Status_SUCCESS
	if r.sum.Size() > 0 {
		status = hdfspb.Status_CHECKSUM_OK
	}
	r.end(transfer.WriteMessage(r.c, &hdfspb.ClientReadStatusProto{Status: &status}) == nil)
}

func (r *blockReader) end(keep bool) {
	keep = r.stop() && keep // else the end of the context is closing it
	if keep {
		r.p.idle.put(r.c)
	} else {
		r.c.discard()
	}
	r.c = nil
}

// Close ends the read. What is left of the range is not read: the connection closes.
func (r *blockReader) Close() error {
	if r.c == nil {
		return nil
	}
	if r.left == 0 {
		r.finish()
		return nil
	}
	r.end(false)
	return nil
}
