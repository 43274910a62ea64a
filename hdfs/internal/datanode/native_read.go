package datanode

import (
	"context"
	"errors"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/native"
)

// NativeCalls makes mux answer the calls of [native.CallService].
func (dn *DataNode) NativeCalls(mux *verbena.Mux) {
	mux.Long(native.MethodRead, dn.nativeRead)
}

// nativeRead reads a range into registered memory and sends it from there. As HDFS does
// it compares what it reads with the checksums only where the client does not.
func (dn *DataNode) nativeRead(q verbena.Request) {
	b, err := dn.readRange(q)
	if err == nil {
		_ = q.ReplyBuffer(b) // its error is that of the endpoint, whose end tells more
		return
	}
	_ = q.Fail(native.CodeOf(statusOf(err)), err.Error())
}

func (dn *DataNode) readRange(q verbena.Request) (*verbena.Buffer, error) {
	req, header, err := native.ParseReadRequest(q.Payload())
	if err != nil {
		return nil, err
	}
	if n := dn.transfers.Add(1); n > int64(dn.cfg.MaxTransfers) {
		dn.transfers.Add(-1)
		return nil, errBusy
	}
	defer dn.transfers.Add(-1)
	block := header.GetBaseHeader().GetBlock()
	if err := dn.checkBlock(block); err != nil {
		return nil, err
	}
	if err := dn.allow(header.GetBaseHeader().GetToken(), blocktoken.Access{Block: block, Mode: blocktoken.Read}); err != nil {
		return nil, err
	}
	end := req.Offset + int64(req.Length)
	rd, err := dn.openReader(block, end)
	if err != nil {
		return nil, err
	}
	defer rd.Close()
	dn.reads.served.Add(1)
	dn.reads.bytes.Add(uint64(req.Length))
	bpc := int64(rd.Sum.BytesPerChunk)
	start := req.Offset / bpc * bpc
	data := int(min((end+bpc-1)/bpc*bpc, rd.Length) - start)
	sums := int(rd.Sum.Chunks(int64(data))) * rd.Sum.Size()
	answer := native.ReadAnswer{Sum: rd.Sum, Offset: start}
	ctx, cancel := context.WithTimeout(q.Context(), dn.cfg.WriteTimeout)
	defer cancel()
	buf, err := q.Caller().Endpoint().Buffer(ctx, native.ReadHeaderLen+sums+data)
	if err != nil {
		return nil, err
	}
	body := buf.Bytes()[native.ReadHeaderLen:]
	read := (*store.Reader).Read
	if req.Unverified {
		read = (*store.Reader).ReadVerified
	}
	if err := read(rd, body[sums:], body[:sums], start); err != nil {
		buf.Release()
		dn.noteCorrupt(rd, err)
		return nil, err
	}
	native.PutReadHeader(buf.Bytes(), &answer, sums, data)
	return buf, nil
}

var errBusy = errors.New("this DataNode serves as many operations as MaxTransfers allows; try another or later")
