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
	// Markers asks peers to put markers (RFC 5044 section 4.3) into what they send.
	// Those that ask for them get them in any case. They cost a copy of every byte,
	// and serve adapters that look for the beginning of a unit in the middle of a
	// stream; this package has no use for them, and Linux siw rejects them.
	Markers bool
	// NoCRC does not ask for checksums. There are some nevertheless if the peer
	// asks; without any, what TCP overlooks reaches memory.
	NoCRC bool
	// ReadyToReceive lists the kinds of message by which an initiator of revision
	// 2 tells that it is ready (RFC 6581 section 4), the best first. Connect offers
	// them, listeners choose among them. Nil is Write, Read and Send, of which
	// Connect does not offer the last: siw answers it with another. What the other
	// side chooses is used in any case. An empty list is the mode of revision 1: the
	// side that accepted sends nothing before the other has sent what it was asked
	// to, or an announcement (see Extensions).
	//
	// An empty list is the better one towards Linux siw, which asks for none itself.
	// Its siw_accept sends the Reply before it watches the socket for the message:
	// one that comes in between is overlooked until more data comes, its program
	// waits for the connection meanwhile, and if that is reset instead, the host's
	// connection manager ends in cm_close_handler (BUG, Linux 6.1).
	ReadyToReceive []ReadyKind
	// SpeakFirst lets the side that accepted send at once to an initiator that does
	// not ask for peer-to-peer mode, as Linux siw does. RFC 5044 section 7.1.2
	// makes it wait for the initiator's first message, without which an initiator
	// may not be ready and lose the connection; but programs whose server speaks
	// first, such as perftest's ib_write_lat, would wait for ever.
	SpeakFirst bool
	// Extensions tells towards whom the operations of RFC 7306 are used: immediate
	// data with Writes, and the atomics.
	Extensions Extensions
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

// Extensions tells what is believed of a peer that does not say whether it has
// RFC 7306; MPA has no bit for it. Queue pairs of this package tell each other.
type Extensions = engine.Extensions

const (
	// ExtensionsNegotiated uses them towards peers of this package and serves
	// whoever uses them. Towards others such a request is not sent: it completes as
	// rdma.StatusRemoteInvalid and the queue pair fails; where the peer serves no
	// Reads, its post fails with rdma.ErrUnsupported.
	ExtensionsNegotiated = engine.ExtensionsNegotiated
	// ExtensionsAssumed uses them towards everybody. Peers without them, such as
	// Linux siw, terminate the connection.
	ExtensionsAssumed = engine.ExtensionsAssumed
	// ExtensionsOff neither uses nor serves them.
	ExtensionsOff = engine.ExtensionsOff
)

// ReadyKind is a kind of ready-to-receive message, none of which carries data.
type ReadyKind = engine.Ready

// The kinds of ready-to-receive message.
const (
	ReadyWrite = engine.ReadyWrite
	ReadyRead  = engine.ReadyRead
	ReadySend  = engine.ReadySend
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
	if e := p.device.config.Extensions; e > ExtensionsOff {
		return nil, fmt.Errorf("iwarp: %w: Config.Extensions is %d", rdma.ErrInvalid, e)
	}
	for _, kind := range p.device.config.ReadyToReceive {
		if kind != ReadyWrite && kind != ReadyRead && kind != ReadySend {
			return nil, fmt.Errorf("iwarp: %w: Config.ReadyToReceive has a kind %d, there are ReadyWrite, ReadyRead and ReadySend", rdma.ErrInvalid, kind)
		}
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
	if d.config.Extensions != ExtensionsOff {
		capabilities |= rdma.CapWriteImmediate | rdma.CapAtomics
	}
	private := wire.MaxPrivateData
	if d.config.Revision >= wire.Revision2 {
		private -= wire.EnhancedSize
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
		MaxPrivateData:  private,
		CrossesHosts:    d.config.AllowRemote,
		MemoryAlignment: pageSize,
	}
}
