package datanode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/reconfigure"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// A peer is one end of a data transfer connection: every Read and Write moves
// its deadline. One goroutine reads and one writes at a time.
type peer struct {
	net.Conn
	r            *transfer.Reader
	readTimeout  time.Duration
	writeTimeout time.Duration
	readSet      time.Time // when the deadline was set last
	writeSet     time.Time
}

func (dn *DataNode) newPeer(nc net.Conn, readTimeout time.Duration) *peer {
	p := &peer{Conn: nc, readTimeout: readTimeout, writeTimeout: dn.cfg.WriteTimeout}
	p.r = transfer.NewReader(p, dn.budget)
	return p
}

// Setting a deadline for every packet would cost more than it is worth: it is
// set again when an eighth of it has passed.
func (p *peer) Read(b []byte) (int, error) {
	if now := time.Now(); now.Sub(p.readSet) > p.readTimeout/8 {
		if err := p.SetReadDeadline(now.Add(p.readTimeout)); err != nil {
			return 0, err
		}
		p.readSet = now
	}
	return p.Conn.Read(b)
}

func (p *peer) Write(b []byte) (int, error) {
	if err := p.limitWrite(); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}

// limitWrite sets how long a write that begins now may take.
func (p *peer) limitWrite() error {
	now := time.Now()
	if now.Sub(p.writeSet) <= p.writeTimeout/8 {
		return nil
	}
	if err := p.SetWriteDeadline(now.Add(p.writeTimeout)); err != nil {
		return err
	}
	p.writeSet = now
	return nil
}

// wait sets how long Read waits from now on.
func (p *peer) wait(d time.Duration) {
	p.readTimeout = d
	p.readSet = time.Time{}
}

// part ends a connection whose peer may still be sending: closing at once would
// make TCP throw away the answer that the peer has not read yet.
func (p *peer) part() {
	if half, ok := p.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		const patience, most = 2 * time.Second, 32 << 20
		if p.SetReadDeadline(time.Now().Add(patience)) == nil {
			_, _ = io.CopyN(io.Discard, p.Conn, most)
		}
	}
	p.Close()
}

// track keeps a connection where Close finds it; false after Close.
func (dn *DataNode) track(nc net.Conn) bool {
	dn.mu.Lock()
	defer dn.mu.Unlock()
	if dn.closed {
		nc.Close()
		return false
	}
	dn.conns[nc] = struct{}{}
	return true
}

func (dn *DataNode) untrack(nc net.Conn) {
	dn.mu.Lock()
	delete(dn.conns, nc)
	dn.mu.Unlock()
	nc.Close()
}

// serveConn tells by the first bytes what a connection is for.
func (dn *DataNode) serveConn(nc net.Conn) {
	if !dn.track(nc) {
		return
	}
	defer dn.untrack(nc)
	dn.mu.Lock()
	n := len(dn.conns)
	dn.mu.Unlock()
	if n > dn.cfg.MaxConns {
		dn.log.Warn("connection closed: there are as many as MaxConns allows", "peer", nc.RemoteAddr(), "MaxConns", dn.cfg.MaxConns)
		return
	}
	p := dn.newPeer(nc, dn.cfg.HandshakeTimeout)
	defer p.r.Release()
	log := dn.log.With("peer", nc.RemoteAddr())
	b, err := p.r.Peek(1)
	if err == nil {
		n := len(transfer.Prefix)
		if b[0] == 'h' {
			n = len(rpcMagic)
		}
		b, err = p.r.Peek(n)
	}
	switch {
	case err != nil:
		log.Debug("connection without a request", "err", err)
	case string(b) == rpcMagic:
		if err := nc.SetDeadline(time.Time{}); err != nil {
			log.Debug("connection failed", "err", err)
			return
		}
		dn.rpc.ServeConnAfter(p.r.Rest(), nc)
	case string(b) == string(transfer.Prefix[:]):
		if err := dn.serveTransfers(p); err != nil {
			level := log.Info
			if gone(err) {
				level = log.Debug
			}
			level("data transfer connection closed", "err", err)
		}
	default:
		log.Warn("connection closed: neither data transfer nor Hadoop RPC", "first bytes", fmt.Sprintf("%x", b))
	}
}

const rpcMagic = "hrpc"

// gone tells errors that a peer causes by going away from those worth a log line.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || connectionBroken(err)
}

// serveTransfers serves one operation after the other. nil means that the peer
// left between two of them.
func (dn *DataNode) serveTransfers(p *peer) error {
	for {
		op, err := p.r.ReadOp()
		if err == io.EOF || errors.Is(err, os.ErrDeadlineExceeded) && p.r.Buffered() == 0 {
			return nil
		}
		if err != nil {
			if errors.Is(err, transfer.ErrMalformed) {
				dn.refuse(p, hdfspb.Status_ERROR_UNSUPPORTED, nil, err)
				p.part()
			}
			return fmt.Errorf("read a request: %w", err)
		}
		p.wait(dn.cfg.ReadTimeout)
		if err := dn.serveOp(p, op); err != nil {
			return fmt.Errorf("%v: %w", op, err)
		}
		p.r.Shrink()
		p.wait(dn.cfg.KeepAlive)
	}
}

// errAnswered says that the peer was told of a failure and may be sending still.
var errAnswered = errors.New("refused")

// serveOp serves one operation. After an error the connection can't be used.
func (dn *DataNode) serveOp(p *peer, op transfer.Op) (err error) {
	var req proto.Message
	var run func() error
	switch op {
	case transfer.OpWriteBlock:
		m := &hdfspb.OpWriteBlockProto{}
		req, run = m, func() error { return dn.writing(p.Conn, func() error { return dn.writeBlock(p, m) }) }
	case transfer.OpReadBlock:
		m := &hdfspb.OpReadBlockProto{}
		req, run = m, func() error { return dn.readBlock(p, m) }
	case transfer.OpBlockChecksum:
		m := &hdfspb.OpBlockChecksumProto{}
		req, run = m, func() error { return dn.blockChecksum(p, m) }
	case transfer.OpTransferBlock:
		m := &hdfspb.OpTransferBlockProto{}
		req, run = m, func() error { return dn.transferBlock(p, m) }
	default:
		if req, run = dn.localOp(p, op); req != nil {
			break
		}
		dn.refuse(p, hdfspb.Status_ERROR_UNSUPPORTED, nil, fmt.Errorf("%v is not offered by this DataNode; read and write blocks over the connection", op))
		p.part()
		return errAnswered
	}
	if err := p.r.ReadMessage(req); err != nil {
		if errors.Is(err, transfer.ErrMalformed) {
			dn.refuse(p, hdfspb.Status_ERROR_INVALID, nil, err)
			p.part()
		}
		return err
	}
	if n := dn.transfers.Add(1); n > int64(dn.cfg.MaxTransfers) {
		dn.transfers.Add(-1)
		err := fmt.Errorf("this DataNode serves %d operations already, as many as MaxTransfers allows; try another or later", n-1)
		dn.refuse(p, hdfspb.Status_ERROR, nil, err)
		p.part()
		return err
	}
	defer dn.transfers.Add(-1)
	err = run()
	if errors.Is(err, errAnswered) {
		p.part()
	}
	return err
}

// refuse answers with an error, whether or not the peer still reads.
func (dn *DataNode) refuse(p *peer, status hdfspb.Status, firstBadLink *string, err error) {
	_ = transfer.WriteMessage(p, transfer.ErrorResponse(status, firstBadLink, err.Error()))
}

// answered refuses and returns the error that ends the connection.
func (dn *DataNode) answered(p *peer, firstBadLink *string, err error) error {
	dn.refuse(p, statusOf(err), firstBadLink, err)
	return fmt.Errorf("%w: %w", errAnswered, err)
}

func statusOf(err error) hdfspb.Status {
	switch {
	case errors.Is(err, store.ErrExists):
		return hdfspb.Status_ERROR_EXISTS
	case errors.Is(err, transfer.ErrMalformed):
		return hdfspb.Status_ERROR_INVALID
	}
	var invalid *blocktoken.InvalidToken
	if errors.As(err, &invalid) {
		return hdfspb.Status_ERROR_ACCESS_TOKEN
	}
	return hdfspb.Status_ERROR
}

// maxGeneration and block ids are positive in Java, whose long is signed.
func (dn *DataNode) checkBlock(b *hdfspb.ExtendedBlockProto) error {
	if pool := dn.store.Identity().BlockPoolID; pool != "" && b.GetPoolId() != pool {
		return fmt.Errorf("block %d is of block pool %q, this DataNode holds %q: it belongs to another file system", b.GetBlockId(), b.GetPoolId(), pool)
	}
	for _, v := range []uint64{b.GetBlockId(), b.GetGenerationStamp(), b.GetNumBytes()} {
		if v > 1<<63-1 {
			return fmt.Errorf("%w: block id, generation stamp or length above 2^63-1", transfer.ErrMalformed)
		}
	}
	return nil
}

func (dn *DataNode) newRPC() *rpc.Server {
	s := rpc.NewServer(rpc.Config{
		Logger: dn.log, MaxFrame: 1 << 20, HandshakeTimeout: dn.cfg.HandshakeTimeout, Mechanisms: []rpc.Mechanism{dn.tokens()},
	})
	methods := dn.operatorMethods()
	methods["getReplicaVisibleLength"] = rpc.Handle(dn.getReplicaVisibleLength)
	reconfiguration := dn.newReconfiguration().Methods()
	maps.Copy(methods, reconfiguration)
	s.Register("org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol", 1, methods)
	s.Register(reconfigure.Protocol, 1, reconfiguration)
	return s
}

func (dn *DataNode) getReplicaVisibleLength(ctx context.Context, req *hdfspb.GetReplicaVisibleLengthRequestProto) (*hdfspb.GetReplicaVisibleLengthResponseProto, error) {
	b := req.GetBlock()
	if err := dn.checkBlock(b); err != nil {
		return nil, err
	}
	if err := dn.allowCall(ctx, blocktoken.Access{Block: b, Mode: blocktoken.Read}); err != nil {
		return nil, err
	}
	r, err := dn.store.Get(b.GetBlockId())
	if err == nil {
		if i := r.Info(); i.State == store.Temporary || i.Generation < b.GetGenerationStamp() {
			err = fmt.Errorf("block %d: %w at generation %d", b.GetBlockId(), store.ErrNotFound, b.GetGenerationStamp())
		}
	}
	if err != nil {
		return nil, exception.New(exception.ReplicaNotFound, "%v", err)
	}
	n := uint64(r.Info().Visible)
	return &hdfspb.GetReplicaVisibleLengthResponseProto{Length: &n}, nil
}
