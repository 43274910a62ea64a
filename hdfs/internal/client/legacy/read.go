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
	p    *Path
	c    *conn
	ctx  context.Context
	stop func() bool
	sum  transfer.Checksum
	pkt  transfer.Packet
	at   int64 // of the next packet, in the block
	skip int64 // bytes before the range, to a chunk's start
	left int64 // bytes of the range
	done bool  // the last packet has come
}

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

// Next returns the verified data of the next packet.
func (r *blockReader) Next() ([]byte, error) {
	if r.left == 0 {
		r.finish()
		return nil, io.EOF
	}
	for {
		if err := r.packet(); err != nil {
			return nil, err
		}
		if r.done {
			return nil, fmt.Errorf("DataNode %s ends the block %d bytes early: %w", r.c.address, r.left, io.ErrUnexpectedEOF)
		}
		b := r.pkt.Data
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

// packet reads and verifies one packet.
func (r *blockReader) packet() error {
	if err := r.c.r.ReadPacket(r.sum, &r.pkt); err != nil {
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
	if r.pkt.Offset != r.at {
		return fmt.Errorf("%w: DataNode %s sends offset %d, due is %d", transfer.ErrMalformed, r.c.address, r.pkt.Offset, r.at)
	}
	if err := r.sum.Verify(r.pkt.Sums, r.pkt.Data); err != nil {
		return fmt.Errorf("DataNode %s, data at %d of the block: %w", r.c.address, r.pkt.Offset, err)
	}
	r.at += int64(len(r.pkt.Data))
	r.done = r.pkt.Last
	return nil
}

// finish takes the last packet, tells the DataNode that all is well, and keeps the
// connection. If that fails, only the connection is of no further use: all that was
// asked for has come.
func (r *blockReader) finish() {
	if r.c == nil {
		return
	}
	for !r.done {
		if r.packet() != nil {
			r.end(false)
			return
		}
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
