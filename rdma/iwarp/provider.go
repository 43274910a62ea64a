package iwarp

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// Limits of the device, see [rdma.Attributes].
const (
	maxSGE         = 16
	maxReads       = 128
	defaultReads   = 16
	maxInline      = 512
	maxQueueDepth  = 16 << 10
	maxCompletions = 1 << 20
	maxRegion      = 1 << 36
)

// Config configures the provider. The zero value is good for one host.
type Config struct {
	// AllowRemote lets peers of other hosts in: Listen may bind addresses that
	// they can reach, and RequestFromStream takes their streams. There is no
	// authentication: whoever connects is served what the program that accepts
	// grants him. A warning is logged for each such listener, and for the first
	// such stream.
	AllowRemote bool
	// SegmentSized keeps every FPDU within a TCP segment, as RFC 5044 section 5
	// recommends to senders and adapters may need; Linux siw and this package
	// take any size. It costs throughput.
	SegmentSized bool
	// Revision of MPA that Connect offers: 2 (RFC 6581), the default, or 1 (RFC
	// 5044), where the depths of Reads are not negotiated and the side that
	// accepted sends nothing before the other has. Listeners take both.
	Revision int
	// Extensions has immediate data with Writes and the atomics, by RFC 7306, and
	// the capabilities say so. MPA does not negotiate them: set it where all peers
	// have them. A peer without them, such as Linux siw, terminates a connection
	// that uses them.
	Extensions bool
	// SetupTimeout bounds each step of connecting: reaching the peer, its
	// Request, its Reply. The default is 10 seconds.
	SetupTimeout time.Duration
	// PeerTimeout is how long a peer's host may be silent, be it in the middle
	// of data or while nothing happens, before the connection is lost. It is
	// watched by TCP (keep-alive probes and TCP_USER_TIMEOUT). The default is 30
	// seconds; it does not apply to streams that are not TCP connections.
	PeerTimeout time.Duration
	// LingerTimeout bounds how long a failed or closed queue pair waits for its
	// last bytes to leave, and again for the peer to end its half. The default
	// is 1 second.
	LingerTimeout time.Duration
	// Logger takes warnings; nil is slog's default.
	Logger *slog.Logger
}

// Provider has the one device "iwarp0".
type Provider struct{ device *device }

var (
	_ rdma.Provider     = (*Provider)(nil)
	_ rdma.StreamDevice = (*device)(nil)
)

// TerminateError is in the chain of a queue pair's Err when a Terminate message
// ended the connection. If the peer refused an access, so is
// [rdma.ErrRemoteAccess].
type TerminateError = engine.TerminateError

// New makes a provider. It opens nothing yet.
func New(config Config) *Provider {
	if config.Revision == 0 {
		config.Revision = wire.Revision2
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&config.SetupTimeout, 10 * time.Second}, {&config.PeerTimeout, 30 * time.Second}, {&config.LingerTimeout, time.Second}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	return &Provider{&device{config: config, regions: mem.NewTable()}}
}

// Name implements [rdma.Provider].
func (p *Provider) Name() string { return "iwarp" }

// Devices implements [rdma.Provider].
func (p *Provider) Devices(ctx context.Context) ([]rdma.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := available(); err != nil {
		return nil, fmt.Errorf("iwarp: %w: %w", rdma.ErrUnavailable, err)
	}
	if r := p.device.config.Revision; r != wire.Revision1 && r != wire.Revision2 {
		return nil, fmt.Errorf("iwarp: %w: Config.Revision is %d, there are 1 and 2", rdma.ErrInvalid, r)
	}
	return []rdma.Device{p.device}, nil
}

type device struct {
	config  Config
	regions *mem.Table
	numbers atomic.Uint32
	// warnRemote warns once of streams of other hosts.
	warnRemote sync.Once
}

func (d *device) Attributes() rdma.Attributes {
	capabilities := rdma.CapSharedReceive | rdma.CapStreams | rdma.CapSendInvalidate
	if d.config.Extensions {
		capabilities |= rdma.CapWriteImmediate | rdma.CapAtomics
	}
	return rdma.Attributes{
		Provider:        "iwarp",
		Name:            "iwarp0",
		Class:           rdma.ClassIWARP,
		Capabilities:    capabilities,
		MaxInline:       maxInline,
		MaxSendSGE:      maxSGE,
		MaxReadSGE:      1,
		MaxRecvSGE:      maxSGE,
		MaxQueueDepth:   maxQueueDepth,
		MaxCompletions:  maxCompletions,
		MaxReads:        maxReads,
		MaxMessage:      engine.MaxMessage,
		MaxRegion:       maxRegion,
		MaxPrivateData:  wire.MaxPrivateData - wire.EnhancedSize,
		CrossesHosts:    d.config.AllowRemote,
		MemoryAlignment: pageSize,
	}
}
