package datanode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// NativeCalls makes mux answer the calls of [native.CallService].
func (dn *DataNode) NativeCalls(mux *verbena.Mux) {
	mux.Long(native.MethodRead, dn.nativeRead)
	mux.Short(native.MethodReadNow, dn.nativeReadNow)
	mux.Long(native.MethodWindow, dn.nativeWindow)
	mux.Stream(native.MethodRing, dn.nativeRing)
	mux.Stream(native.MethodPush, dn.nativePush)
}

// nativeRead reads a range into registered memory and sends it from there. As in HDFS the
// client compares, and who wants no checksums gets the bytes as they are.
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
	r, err := dn.openKept(header, req.Offset+int64(req.Length), req.Unverified)
	if err != nil {
		return nil, err
	}
	defer dn.kept.done(r)
	dn.countRead(&req)
	sum := sent(r.Sum, req.Unverified)
	start, data, sums := r.extent(&req, sum)
	ctx, cancel := context.WithTimeout(q.Context(), dn.cfg.WriteTimeout)
	defer cancel()
	buf, err := q.Caller().Endpoint().Buffer(ctx, native.ReadHeaderLen+sums+data)
	if err != nil {
		return nil, err
	}
	body := buf.Bytes()[native.ReadHeaderLen:]
	if err := r.Read(body[sums:], body[:sums], start); err != nil {
		buf.Release()
		dn.noteCorrupt(r.Reader, err)
		return nil, err
	}
	native.PutReadHeader(buf.Bytes(), &native.ReadAnswer{Sum: sum, Offset: start}, sums, data)
	return buf, nil
}

// openKept returns the replica that a request may read up to end, to be given back by
// done. request is an encoded ClientOperationHeaderProto. bare is as in openReader.
func (dn *DataNode) openKept(request []byte, end int64, bare bool) (*keptReplica, error) {
	r, err := dn.findOrOpen(request, end, bare)
	if err == nil && r.Bare != nil && !bare { // somebody who compares nothing has opened it
		err = r.Bare
		dn.kept.done(r)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// findOrOpen is openKept, but that a replica without its meta file may be open for others.
func (dn *DataNode) findOrOpen(request []byte, end int64, bare bool) (*keptReplica, error) {
	if r := dn.kept.find(request, time.Now()); r != nil {
		if end <= r.Length {
			return r, nil
		}
		dn.kept.done(r)
	}
	header, err := native.ParseReadHeader(request)
	if err != nil {
		return nil, err
	}
	block, token := header.GetBaseHeader().GetBlock(), header.GetBaseHeader().GetToken()
	if err := dn.checkBlock(block); err != nil {
		return nil, err
	}
	if err := dn.allow(token, blocktoken.Access{Block: block, Mode: blocktoken.Read}); err != nil {
		return nil, err
	}
	if r := dn.kept.prove(request, token, block); r != nil {
		if end <= r.Length {
			return r, nil
		}
		dn.kept.done(r)
	}
	rd, err := dn.openReader(block, end, bare)
	if err != nil {
		return nil, err
	}
	return dn.kept.keep(request, token, rd), nil
}

func (dn *DataNode) countRead(q *native.ReadRequest) {
	dn.reads.served.Add(1)
	dn.reads.bytes.Add(uint64(q.Length))
}

// sent are the checksums that a client is sent of those that a replica has: none if it
// compares nothing.
func sent(sum transfer.Checksum, unverified bool) transfer.Checksum {
	if unverified {
		return sum.Without()
	}
	return sum
}

// extent is what is read for a request whose range the replica has: where it starts, and
// how many bytes of data and of checksums, of the kind sum, it has.
func (r *keptReplica) extent(q *native.ReadRequest, sum transfer.Checksum) (start int64, data, sums int) {
	bpc := int64(r.Sum.BytesPerChunk)
	start = q.Offset / bpc * bpc
	data = int(min((q.Offset+int64(q.Length)+bpc-1)/bpc*bpc, r.Length) - start)
	return start, data, int(sum.Chunks(int64(data))) * sum.Size()
}

// answers has memory for the answer to a small read.
var answers = sync.Pool{New: func() any {
	b := make([]byte, native.MaxReadNow+native.MaxReadNow/8)
	return &b
}}

// nativeReadNow answers a small read on the goroutine that polls for requests, if the
// client's token has been found good before and no disk has to be waited for. Otherwise
// the client asks by [native.MethodRead].
func (dn *DataNode) nativeReadNow(q verbena.Request) {
	b := answers.Get().(*[]byte)
	defer answers.Put(b)
	req, header, err := native.ParseReadRequest(q.Payload())
	if err != nil {
		_ = q.Fail(native.CodeOf(statusOf(err)), err.Error())
		return
	}
	n := dn.readNow(&req, header, *b)
	if n == 0 {
		_ = q.Fail(native.CodeNotNow, "")
		return
	}
	_ = q.Reply((*b)[:n]) // its error is that of the endpoint, whose end tells more
}

// readNow makes the answer to a small read in b, and tells how long it is; 0 if it can't
// be given now.
func (dn *DataNode) readNow(req *native.ReadRequest, header, b []byte) int {
	r := dn.kept.find(header, time.Now())
	if r == nil {
		return 0
	}
	defer dn.kept.done(r)
	if req.Length > native.MaxReadNow || req.Offset+int64(req.Length) > r.Length {
		return 0
	}
	sum := sent(r.Sum, req.Unverified)
	start, data, sums := r.extent(req, sum)
	size := native.ReadHeaderLen + sums + data
	if size > len(b) {
		return 0 // the chunks are very small, or very long
	}
	native.PutReadHeader(b, &native.ReadAnswer{Sum: sum, Offset: start}, sums, data)
	body := b[native.ReadHeaderLen:size]
	if !r.readNow(body[sums:], body[:sums], start) {
		return 0
	}
	dn.countRead(req)
	dn.reads.now.Add(1)
	return size
}

var errBusy = errors.New("this DataNode serves as many operations as MaxTransfers allows; try another or later")
