// Package legacy is the path to DataNodes over HDFS's data transfer protocol: operations
// and packets on a stream of bytes, over whatever net.Conn is dialled. Apache's DataNodes
// and Verbena's take it. A connection over which a read has ended serves the next one
// for some seconds.
package legacy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Config configures a path. Zero values stand for Hadoop's defaults.
type Config struct {
	// Dial connects to a DataNode; it must be set.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Calls makes the calls of ClientDatanodeProtocol; it must be set.
	Calls *rpc.Client
	// User is who makes them to DataNodes that ask for no tokens.
	User string
	// UseHostname dials DataNodes by their names, not their addresses.
	UseHostname bool
	// ConnectTimeout bounds a dial. Default 60 s.
	ConnectTimeout time.Duration
	// SocketTimeout is for how long a read waits for one DataNode. A pipeline has 5 s
	// more for each of its DataNodes. Default 60 s.
	SocketTimeout time.Duration
	// WriteTimeout is for how long a write waits. Default 8 min.
	WriteTimeout time.Duration
	// Idle is how many connections are kept, IdleTime for how long. Defaults 16 and 3 s;
	// below 0 none is kept.
	Idle     int
	IdleTime time.Duration
}

// perNode is added to timeouts for each DataNode of a pipeline, as in HDFS.
const perNode = 5 * time.Second

// Path is the path. Close it when nothing uses it any more.
type Path struct {
	cfg  Config
	idle idle
}

// New returns a path.
func New(cfg Config) *Path {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&cfg.ConnectTimeout, time.Minute}, {&cfg.SocketTimeout, time.Minute}, {&cfg.WriteTimeout, 8 * time.Minute}, {&cfg.IdleTime, 3 * time.Second}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if cfg.Idle == 0 {
		cfg.Idle = 16
	}
	return &Path{cfg: cfg, idle: idle{most: max(0, cfg.Idle), age: cfg.IdleTime}}
}

// Close closes idle connections. Those in use end with their operations.
func (p *Path) Close() { p.idle.close() }

// operate sends a request on a connection of its own or an idle one, and hands it to f.
// On an idle one that its DataNode has closed it is sent again on another. The end of
// ctx closes the connection; the caller of f's connection ends that with the function
// returned.
func (p *Path) operate(ctx context.Context, node *hdfspb.DatanodeInfoProto, op transfer.Op, msg proto.Message, reuse bool, timeout time.Duration, resp *hdfspb.BlockOpResponseProto) (*conn, func() bool, error) {
	address := p.address(node)
	for {
		var c *conn
		if reuse {
			c = p.idle.take(address)
		}
		if c == nil {
			var err error
			if c, err = p.dial(ctx, address); err != nil {
				return nil, nil, err
			}
		}
		c.patience(timeout, p.cfg.WriteTimeout)
		stop := context.AfterFunc(ctx, func() { c.Close() })
		err := transfer.WriteRequest(c, op, msg)
		if err == nil {
			err = c.r.ReadMessage(resp)
		}
		if err == nil {
			return c, stop, nil
		}
		stop()
		c.discard()
		if ctx.Err() != nil {
			return nil, nil, context.Cause(ctx)
		}
		if !c.again || errors.Is(err, transfer.ErrMalformed) {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, nil, fmt.Errorf("DataNode %s: %w", address, err)
		}
	}
}

// refusal is a response as an error.
func refusal(address string, resp *hdfspb.BlockOpResponseProto) error {
	if resp.GetStatus() == hdfspb.Status_SUCCESS {
		return nil
	}
	return fmt.Errorf("DataNode %s: %w", address, &data.StatusError{Status: resp.GetStatus(), Message: resp.GetMessage()})
}

// Transfer is [data.Path].Transfer.
func (p *Path) Transfer(ctx context.Context, req *data.TransferRequest) error {
	// The copy takes as long as the block is large: 8 s more for each 64 MiB.
	wait := p.cfg.SocketTimeout + perNode*time.Duration(1+len(req.To)) + time.Duration(req.Block.GetNumBytes()>>23)*time.Second
	var resp hdfspb.BlockOpResponseProto
	c, stop, err := p.operate(ctx, req.From, transfer.OpTransferBlock, &hdfspb.OpTransferBlockProto{
		Header: data.Header(req.Block, req.Token, req.Client), Targets: req.To, TargetStorageTypes: req.Types, TargetStorageIds: req.Storages,
	}, false, wait, &resp)
	if err != nil {
		return err
	}
	stop()
	c.discard()
	return refusal(c.address, &resp)
}

// Checksum is [data.Path].Checksum.
func (p *Path) Checksum(ctx context.Context, req *data.ChecksumRequest) (*hdfspb.OpBlockChecksumResponseProto, error) {
	var resp hdfspb.BlockOpResponseProto
	c, stop, err := p.operate(ctx, req.Node, transfer.OpBlockChecksum, &hdfspb.OpBlockChecksumProto{
		Header:               &hdfspb.BaseHeaderProto{Block: req.Block, Token: req.Token},
		BlockChecksumOptions: &hdfspb.BlockChecksumOptionsProto{BlockChecksumType: req.Type.Enum()},
	}, false, p.cfg.SocketTimeout, &resp)
	if err != nil {
		return nil, err
	}
	stop()
	c.discard()
	if err := refusal(c.address, &resp); err != nil {
		return nil, err
	}
	if resp.ChecksumResponse == nil {
		return nil, fmt.Errorf("%w: DataNode %s answers without a checksum", transfer.ErrMalformed, c.address)
	}
	return resp.ChecksumResponse, nil
}

const datanodeProtocol = "org.apache.hadoop.hdfs.protocol.ClientDatanodeProtocol"

// VisibleLength is [data.Path].VisibleLength.
func (p *Path) VisibleLength(ctx context.Context, node *hdfspb.DatanodeInfoProto, block *hdfspb.ExtendedBlockProto, token *hdfspb.TokenProto) (int64, error) {
	host, _, err := net.SplitHostPort(p.address(node))
	if err != nil {
		return 0, err
	}
	target := rpc.Target{Address: net.JoinHostPort(host, strconv.FormatUint(uint64(node.GetId().GetIpcPort()), 10)), Protocol: datanodeProtocol, User: p.cfg.User}
	req, resp := &hdfspb.GetReplicaVisibleLengthRequestProto{Block: block}, &hdfspb.GetReplicaVisibleLengthResponseProto{}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.SocketTimeout)
	defer cancel()
	if len(token.GetIdentifier()) > 0 {
		// The token is of one block and one moment: a connection of its own.
		target.Token = &rpc.Token{Identifier: token.GetIdentifier(), Password: token.GetPassword()}
		nc, err := p.cfg.Dial(ctx, "tcp", target.Address)
		if err != nil {
			return 0, fmt.Errorf("connect to DataNode %s: %w", target.Address, err)
		}
		c, err := rpc.NewConn(ctx, nc, target, rpc.ClientConfig{})
		if err != nil {
			return 0, err
		}
		defer c.Close()
		err = c.Call(ctx, "getReplicaVisibleLength", req, resp)
		return int64(resp.GetLength()), err
	}
	err = p.cfg.Calls.Proxy(target).Call(ctx, "getReplicaVisibleLength", req, resp, rpc.Idempotent)
	return int64(resp.GetLength()), err
}
