package iwarp

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/verbena-data/verbena/internal/liveness"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/domains"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/engine"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/mem"
	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

// Limits of the device, see [rdma.Attributes].
const (
	maxSGE         = 16
	maxReads       = 128
	maxInline      = 512
	maxQueueDepth  = 16 << 10
	maxCompletions = 1 << 20
	maxRegion      = 1 << 36
)

// Config configures the provider. The zero value is good for one user of one host.
type Config struct {
	// AllowRemote lets peers of other hosts in: Listen may bind addresses that
	// they can reach, and RequestFromStream takes their streams. There is no
	// authentication: whoever connects is served what the program that accepts
	// grants him. A warning is logged for each such listener, and for the first
	// such stream.
	AllowRemote bool
	// AllowUIDs are the users of this host, besides the own one, whose processes
	// may connect and be connected to, as this process's user namespace numbers
	// them. Others are refused, as is a peer of this host that the kernel does not
	// tell the user of. 65534 stands for every user that the namespace does not map.
	// Peers of other hosts have no user: AllowRemote is about them.
	AllowUIDs []uint32
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
	// SpeakFirst lets the side that accepted send at once to an initiator that does
	// not ask for peer-to-peer mode, as Linux siw does. RFC 5044 section 7.1.2
	// makes it wait for the initiator's first message, without which an initiator
	// may not be ready and lose the connection; but programs whose server speaks
	// first, such as perftest's ib_write_lat, would wait for ever.
	SpeakFirst bool
	// NotPeerToPeer asks for no ready-to-receive message (RFC 6581 section 4) and
	// answers the wish for one by none: the side that accepted sends nothing before
	// the other has. It is the better way towards Linux siw, whose siw_accept sends
	// the Reply before it watches the socket: a message that comes in between is
	// overlooked until more data comes, and if the connection is reset instead, the
	// host's connection manager ends in cm_close_handler (BUG, Linux 6.1).
	NotPeerToPeer bool
	// PeerTimeout is how long a peer's host may be silent, be it in the middle
	// of data or while nothing happens, before the connection is lost. A peer that
	// does not read, because it waits for receives, is not silent: its host answers.
	// The default is 30 seconds. Idle connections take whole seconds, six at least.
	// It does not apply to streams that are not TCP connections.
	PeerTimeout time.Duration
	// Logger takes warnings; default: slog.Default().
	Logger *slog.Logger

	// What follows peers may ask for, and nobody needs to choose. Tests do.

	// readyToReceive lists the kinds of message by which an initiator of revision
	// 2 tells that it is ready (RFC 6581 section 4), the best first. Connect offers
	// them, listeners choose among them. Nil is Write, Read and Send, of which
	// Connect does not offer the last: siw answers it with another. What the other
	// side chooses is used in any case. An empty list is the mode of revision 1: the
	// side that accepted sends nothing before the other has sent what it was asked
	// to, or an announcement (see extensions).
	readyToReceive []engine.Ready
	// extensions tells what is believed of a peer that does not say whether it has
	// the operations of RFC 7306, immediate data and atomics; MPA has no bit for it.
	// Queue pairs of this package tell each other. By engine.ExtensionsNegotiated,
	// the default, such a request is not sent to others: it completes as
	// rdma.StatusRemoteInvalid and the queue pair fails; where the peer serves no
	// Reads, its post fails with rdma.ErrUnsupported.
	extensions engine.Extensions
	// setupTimeout bounds each step of connecting: reaching the peer, its
	// Request, its Reply. The default is 10 seconds.
	setupTimeout time.Duration
	// lingerTimeout bounds how long a failed or closed queue pair waits for its
	// last bytes to leave, and again for the peer to end its half. The default
	// is 1 second.
	lingerTimeout time.Duration
}

// Validate returns an error that wraps [rdma.ErrInvalid] and says what to change,
// if anything is out of range. [Provider.Devices] returns it, too.
func (c Config) Validate() error {
	invalid := func(format string, values ...any) error {
		return fmt.Errorf("%w: iwarp: "+format, append([]any{rdma.ErrInvalid}, values...)...)
	}
	if r := c.Revision; r != 0 && r != wire.Revision1 && r != wire.Revision2 {
		return invalid("Revision is %d: there are 1 and 2", r)
	}
	if c.PeerTimeout < 0 || c.PeerTimeout > time.Hour {
		return invalid("PeerTimeout %v: from 0, for the default, to %v", c.PeerTimeout, time.Hour)
	}
	if slices.Contains(c.AllowUIDs, math.MaxUint32) {
		return invalid("AllowUIDs: %d is no user: name the numbers that id -u prints", uint32(math.MaxUint32))
	}
	return nil
}

// Provider has the one device "iwarp0".
type Provider struct {
	device  *device
	invalid error // what is wrong with the configuration
}

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
	invalid := config.Validate()
	if config.NotPeerToPeer {
		config.readyToReceive = []engine.Ready{}
	}
	if config.Revision == 0 {
		config.Revision = wire.Revision2
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&config.setupTimeout, 10 * time.Second}, {&config.PeerTimeout, liveness.DefaultTimeout}, {&config.lingerTimeout, time.Second}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if config.Logger == nil {
		config.Logger = slog.Default()
	}
	return &Provider{&device{config: config, regions: mem.NewTable()}, invalid}
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
	if p.invalid != nil {
		return nil, p.invalid
	}
	return []rdma.Device{p.device}, nil
}

type device struct {
	config  Config
	regions *mem.Table
	numbers domains.Numbers
	// warnRemote warns once of streams of other hosts.
	warnRemote sync.Once
}

func (d *device) Attributes() rdma.Attributes {
	capabilities := rdma.CapSharedReceive | rdma.CapStreams | rdma.CapSendInvalidate | rdma.CapReceiverWaits
	if d.config.extensions != engine.ExtensionsOff {
		capabilities |= rdma.CapWriteImmediate | rdma.CapAtomics
	}
	if !d.config.NoCRC {
		capabilities |= rdma.CapChecksums
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
		OneNetwork:      !d.config.AllowRemote, // loopback, or an address of this host
		MemoryAlignment: pageSize,
	}
}
