package native

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/limit"
)

// Fill is [data.Filler].Fill for small ranges: a Get where the DataNode has exposed them, or
// a call, whose answer is compared in place
// and copied once. In steady state it allocates nothing.
func (p *Path) Fill(ctx context.Context, req *data.ReadRequest, b []byte) (bool, error) {
	if len(b) > native.MaxReadNow || req.Encoded == nil {
		return false, nil
	}
	address := p.addressOf(req.Node)
	if _, may := p.cfg.Table.Peek(address); !may {
		return false, nil
	}
	if !p.cfg.NoWindows && !req.Unverified && p.windows.fill(ctx, address, req, b) {
		return true, nil
	}
	m, err := p.ask(ctx, address, req, len(b))
	if err != nil {
		if p.denied(address, err) {
			return false, nil
		}
		return false, fmt.Errorf("DataNode %s: %w", address, told(err))
	}
	defer m.Release()
	got, err := verified(m.Bytes(), req.Offset, len(b), req.Unverified)
	if err != nil {
		return false, fmt.Errorf("DataNode %s, data at %d of the block: %w", address, req.Offset, err)
	}
	copy(b, got)
	return true, nil
}

// requests has memory for the requests of small reads.
var requests = sync.Pool{New: func() any { return new([]byte) }}

// ask calls a DataNode for a small range: first for what it has at hand.
func (p *Path) ask(ctx context.Context, address string, req *data.ReadRequest, length int) (*verbena.Message, error) {
	bound := limit.New(ctx, time.Now(), p.cfg.SocketTimeout)
	defer bound.End()
	request := requests.Get().(*[]byte)
	defer requests.Put(request)
	q := native.ReadRequest{Offset: req.Offset, Length: length, Unverified: req.Unverified}
	*request = native.AppendReadRequest((*request)[:0], &q, req.Encoded)
	m, err := p.call(bound, address, native.MethodReadNow, int64(length), *request)
	if err != nil && notNow(err) {
		m, err = p.call(bound, address, native.MethodRead, int64(length), *request)
	}
	return m, err
}

// notNow tells whether a DataNode has to be asked by [native.MethodRead].
func notNow(err error) bool {
	var refused *verbena.CallError
	return errors.As(err, &refused) && (refused.Code == native.CodeNotNow || refused.Code == verbena.CodeUnknownMethod)
}

// call calls a DataNode for length bytes.
func (p *Path) call(ctx context.Context, address string, method uint32, length int64, request []byte) (*verbena.Message, error) {
	return p.cfg.Calls.Call(ctx, address, verbena.Intent{Operation: readOperation, Size: length}, method, request, verbena.Idempotent)
}

// told is the error of a call as that of what the DataNode says.
func told(err error) error {
	var refused *verbena.CallError
	if errors.As(err, &refused) && refused.Code > verbena.CodeApplication {
		return &data.StatusError{Status: native.StatusOf(refused.Code), Message: refused.Text}
	}
	return err
}

// denied tells whether an error says that a DataNode does not have the service, and notes
// it.
func (p *Path) denied(address string, err error) bool {
	var refused *verbena.RefusedError
	var legacy *verbena.LegacyPeerError
	if errors.As(err, &refused) && !refused.Temporary() || errors.As(err, &legacy) {
		p.deny(address, err)
		return true
	}
	return false
}

// A place is where a DataNode takes transfers.
type place struct {
	host string
	port uint32
}

// addressOf is address, which it remembers for each DataNode.
func (p *Path) addressOf(n *hdfspb.DatanodeInfoProto) string {
	at := place{p.host(n), n.GetId().GetXferPort()}
	p.mu.Lock()
	address, ok := p.addresses[at]
	p.mu.Unlock()
	if ok {
		return address
	}
	address = p.address(n)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses[at] = address
	return address
}

var _ interface {
	data.Path
	data.Filler
} = (*Path)(nil)
