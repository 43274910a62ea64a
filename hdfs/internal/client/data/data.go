// Package data is what a client asks of the way to DataNodes: to open a pipeline and
// send a block down it, to read a range of a block, to copy a replica, and to sum one up.
// Writers and readers of files are written against [Path] and know nothing of
// connections; package legacy is the path over HDFS's data transfer protocol, and
// another one may carry the same packets in registered memory.
package data

import (
	"context"
	"errors"
	"fmt"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// Path leads to DataNodes. It may be used concurrently.
type Path interface {
	// Write sets up a pipeline. The error is a [*PipelineError] if it tells which
	// DataNode is to blame.
	Write(ctx context.Context, req *WriteRequest) (Pipeline, error)
	// Read begins to read a range of a block from one DataNode.
	Read(ctx context.Context, req *ReadRequest) (BlockReader, error)
	// Transfer has a DataNode copy what it has of a replica to others, and waits for it.
	Transfer(ctx context.Context, req *TransferRequest) error
	// Checksum asks a DataNode to sum up the checksums of a block.
	Checksum(ctx context.Context, req *ChecksumRequest) (*hdfspb.OpBlockChecksumResponseProto, error)
	// VisibleLength asks a DataNode how much of a block that is being written may be
	// read, in bytes.
	VisibleLength(ctx context.Context, node *hdfspb.DatanodeInfoProto, block *hdfspb.ExtendedBlockProto, token *hdfspb.TokenProto) (int64, error)
}

// WriteRequest describes a pipeline.
type WriteRequest struct {
	Client string
	// Block is as its replicas are now: their generation stamp, and the bytes that all
	// DataNodes have acknowledged.
	Block      *hdfspb.ExtendedBlockProto
	Token      *hdfspb.TokenProto
	Nodes      []*hdfspb.DatanodeInfoProto // in the order of the pipeline, one at least
	Types      []hdfspb.StorageTypeProto   // of their storages; may be empty
	Storages   []string                    // may be empty
	Stage      hdfspb.OpWriteBlockProto_BlockConstructionStage
	Sent       int64  // bytes of the block that any DataNode may have
	Generation uint64 // the new stamp, in a recovery or an append
	BlockSize  int64  // of the file
	// Window is how many bytes of packets, with what goes with them, wait for
	// acknowledgements at most.
	Window   int
	Checksum transfer.Checksum
}

// Pipeline takes the packets of one block. One goroutine sends and one receives
// acknowledgements; Close may be called by any, and ends both.
type Pipeline interface {
	// Send sends a packet. Its memory is the pipeline's until Send returns.
	Send(p *Packet) error
	// Ack waits for the next acknowledgement, and reads it into a.
	Ack(a *transfer.Ack) error
	Close() error
}

// Lender is a Pipeline with memory from which it sends without a copy.
type Lender interface {
	// Lend returns memory for a packet, or nil if there is none now. It does not wait.
	Lend(size int) Memory
	// Packet is how many bytes a packet has best, with its checksums and a header.
	Packet() int
}

// Memory is what a packet may lie in instead of the Go heap.
type Memory interface {
	Bytes() []byte
	// Release gives it back, when nobody reads or writes it any more but the pipeline.
	Release()
}

// PipelineError tells which DataNode of a pipeline failed.
type PipelineError struct {
	Node       int  // index in [WriteRequest].Nodes
	Restarting bool // it has said that it will be back
	// SetUp, of an error that [Pipeline].Ack returns, says that the pipeline was never set
	// up, though packets were sent: no DataNode has anything of the block.
	SetUp bool
	// Blameless says that the DataNode has not failed: the same pipeline may be had a
	// little later.
	Blameless bool
	Err       error
}

func (e *PipelineError) Error() string { return e.Err.Error() }
func (e *PipelineError) Unwrap() error { return e.Err }

// ErrNoRoom says that a DataNode of a pipeline had no room for an endpoint of the one before
// it.
var ErrNoRoom = errors.New("the DataNode has no room for another endpoint now")

// Full tells whether a DataNode had no room for an endpoint more, or who dialled it, for as
// long as the dial might wait. Nothing has failed: it is to be dialled again.
func Full(err error) bool {
	var none *verbena.SelectionError
	return errors.Is(err, ErrNoRoom) || errors.As(err, &none) && none.Temporary()
}

// ReadRequest describes a range of a block.
type ReadRequest struct {
	Client string
	Block  *hdfspb.ExtendedBlockProto
	Token  *hdfspb.TokenProto
	Node   *hdfspb.DatanodeInfoProto
	Offset int64 // in the block, bytes
	Length int64 // bytes, 1 or more
	// Unverified asks for the bytes as they are: there are no checksums, and nobody compares.
	Unverified bool
	// Growing says that the block is being written: the last chunk of its replicas changes, and
	// with it the checksum.
	Growing bool
	// Encoded, if it is not nil, is what EncodeHeader makes of Block, Token and Client.
	Encoded []byte
}

// BlockReader reads one range. One goroutine at a time.
type BlockReader interface {
	// Next returns the bytes that follow, which are good and valid until the next
	// call. After the last byte of the range the error is io.EOF.
	Next() ([]byte, error)
	Close() error
}

// Placer is what a [BlockReader] may be, besides: one that reads into memory of the caller.
type Placer interface {
	// Place reads bytes that follow to where p begins, and tells how many, all of them good.
	// 0 without an error says that Next has the next ones. What p holds behind them means
	// nothing, and neither does anything in it with an error.
	Place(p []byte) (n int, err error)
}

// Filler is what a [Path] may be, besides: one that reads into memory of the caller.
type Filler interface {
	// Fill fills p, of the request's length, with good bytes. done is false, without an
	// error, if that can't be done here and now: then [Path].Read is the way. It keeps
	// neither req nor p.
	Fill(ctx context.Context, req *ReadRequest, p []byte) (done bool, err error)
}

// TransferRequest describes a copy.
type TransferRequest struct {
	Client   string
	Block    *hdfspb.ExtendedBlockProto
	Token    *hdfspb.TokenProto
	From     *hdfspb.DatanodeInfoProto
	To       []*hdfspb.DatanodeInfoProto
	Types    []hdfspb.StorageTypeProto
	Storages []string
}

// ChecksumRequest describes what is to be summed up, and how.
type ChecksumRequest struct {
	Block *hdfspb.ExtendedBlockProto // NumBytes of it
	Token *hdfspb.TokenProto
	Node  *hdfspb.DatanodeInfoProto
	Type  hdfspb.BlockChecksumTypeProto
}

// ErrToken says that a DataNode does not accept the block's token: ask the NameNode for
// another.
var ErrToken = errors.New("the DataNode refuses the token of the block")

// ErrExists says that a DataNode to which a replica was to be copied has one.
var ErrExists = errors.New("the DataNode has a replica of the block already")

// StatusError is a DataNode's refusal. It wraps [ErrToken] or [ErrExists] if that was the
// reason.
type StatusError struct {
	Status  hdfspb.Status
	Message string
}

func (e *StatusError) Error() string {
	if e.Message == "" {
		return fmt.Sprintf("the DataNode refuses: %v", e.Status)
	}
	return fmt.Sprintf("the DataNode refuses: %v: %s", e.Status, e.Message)
}

func (e *StatusError) Unwrap() error {
	switch e.Status {
	case hdfspb.Status_ERROR_ACCESS_TOKEN:
		return ErrToken
	case hdfspb.Status_ERROR_EXISTS:
		return ErrExists
	}
	return nil
}

// Name tells people which DataNode it is.
func Name(n *hdfspb.DatanodeInfoProto) string {
	return fmt.Sprintf("%s:%d", n.GetId().GetIpAddr(), n.GetId().GetXferPort())
}
