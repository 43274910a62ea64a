package hdfs

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/client/names"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/rdmanet"
)

// dialTimeout bounds one dial of the client's, which gives no deadline itself.
const dialTimeout = 20 * time.Second

// Dialer is for HDFS clients whose bytes travel over endpoints, and whose calls of the
// NameNode are calls of the runtime. The endpoints that one client no longer needs serve
// the next dial of any of them. It may be used concurrently and must be closed after its
// clients.
type Dialer struct {
	net       rdmanet.Dialer
	transport string

	once  sync.Once
	err   error
	pool  *verbena.CallPool // to NameNodes
	calls *rpc.Client

	natives    sync.Mutex
	nativesErr error
	table      *native.Table     // of native pipelines; nil until they are wanted
	reads      *verbena.CallPool // of blocks
}

// NewDialer returns a dialer over rt. Transport is what [verbena.DialConfig]
// takes; "auto" falls back to plain TCP towards servers that have never heard
// of Verbena.
func NewDialer(rt *verbena.Runtime, transport string) *Dialer {
	g, _ := group(rt) // there is none on a runtime that is closed; then dials fail
	return &Dialer{
		net:       rdmanet.Dialer{Runtime: rt, Service: Service, Group: g, Transport: transport, Timeout: dialTimeout, CloseWait: -1},
		transport: transport,
	}
}

// DialNameNode returns a connection to a NameNode. It is what a client takes as the dial
// function for NameNodes whose other options the caller wants to set. The client's
// requests travel as calls, as [rpc.Client.DialFramed] describes, and are looked up or
// sent when the client writes. Calls that the NameNode may get twice are made again when
// an endpoint is lost.
func (d *Dialer) DialNameNode(ctx context.Context, _, address string) (net.Conn, error) {
	d.once.Do(d.start)
	if d.err != nil {
		return nil, d.err
	}
	return d.calls.DialFramed(ctx, address, names.Repeatable)
}

func (d *Dialer) start() {
	d.pool, d.err = rpc.NewPool(d.net.Runtime, verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{
		Dial: verbena.DialConfig{Group: d.net.Group, Transport: d.transport}, DialTimeout: dialTimeout, Endpoints: 2,
		Backoff: callBackoff, MaxBackoff: maxCallBackoff,
	}})
	if d.err != nil {
		return
	}
	d.calls = rpc.NewClient(rpc.ClientConfig{
		Pool: d.pool, ConnectTimeout: dialTimeout, Attempts: callAttempts, MaxBackoff: maxCallBackoff,
		Dial: func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) },
	})
}

// native returns what the native data path needs.
func (d *Dialer) native() (*native.Table, *verbena.CallPool, error) {
	d.natives.Lock()
	defer d.natives.Unlock()
	if d.table != nil || d.nativesErr != nil {
		return d.table, d.reads, d.nativesErr
	}
	cfg, err := nativeTable(d.net.Runtime, d.transport, nil)
	if err == nil {
		d.reads, err = d.net.Runtime.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{
			Service: native.CallService, Dial: cfg.Dial, DialTimeout: dialTimeout, Endpoints: 2,
			Backoff: readBackoff, MaxBackoff: maxReadBackoff,
		}, Attempts: 1})
	}
	if err != nil {
		return nil, nil, err
	}
	d.table = native.NewTable(cfg)
	return d.table, d.reads, nil
}

// A read of a DataNode that is gone fails after these pauses, and is not tried again there:
// another replica is read meanwhile.
const (
	readBackoff    = 50 * time.Millisecond
	maxReadBackoff = 500 * time.Millisecond
)

// A NameNode that can't be reached is dialled again after these pauses. It is busy after a
// start; but clients that come back late lose their leases.
const (
	callBackoff    = 100 * time.Millisecond
	maxCallBackoff = time.Second
)

// callAttempts is how often a call of a client is tried: a NameNode that is gone is
// missed for some ten seconds.
const callAttempts = 12

// DialContext dials a NameNode or a DataNode for a stream of bytes. It is what a client
// takes as its dial function for DataNodes whose other options the caller wants to set.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return d.net.DialContext(ctx, network, address)
}

// Close closes the endpoints that are kept. Connections that clients have left
// open (that of a checksum, and some after an error) are closed by the garbage
// collector, as sockets are, or by the runtime's Close.
func (d *Dialer) Close() error {
	d.once.Do(func() { d.err = verbena.ErrClosed })
	var err error
	if d.calls != nil {
		err = errors.Join(d.calls.Close(), d.pool.Close())
	}
	d.natives.Lock()
	d.nativesErr = verbena.ErrClosed
	if d.table != nil {
		d.table.Close()
		err = errors.Join(err, d.reads.Close())
		d.table = nil
	}
	d.natives.Unlock()
	return errors.Join(err, d.net.Close())
}
