package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

const providerName = "ibverbs"

// Config configures the provider. The zero value is good for most fabrics.
type Config struct {
	// Device is the name of the only device to use, such as "mlx5_0"; empty
	// means all.
	Device string
	// AckTimeout is how long the transport waits for an acknowledgement before it
	// sends again. Devices know powers of two times 4.096 microseconds; the next
	// longer one is taken. The default is 0.27 seconds. iWARP has TCP's timers.
	AckTimeout time.Duration
	// RetryCount is how often the transport sends again before it gives the peer
	// up, 1 to 7; the default is 6. On rxe it counts within 64 packets, so that long
	// messages over a network that loses many need 7, which means for ever there: a
	// peer that has vanished without a word is then not given up. rxe counts the
	// waiting for a peer's receive, too.
	RetryCount int
	// KeepAlive is how long a connection over InfiniBand or RoCE is idle before its
	// device asks the peer's for a sign of life, by a Write of no bytes; after twice as
	// long it has. A host that is gone is noticed when the device has given that up. The
	// default is 10 seconds; negative: never. iWARP has TCP's timers.
	KeepAlive time.Duration
	// SetupTimeout bounds the setting up of a connection beside the caller's
	// context. The default is 20 seconds.
	SetupTimeout time.Duration
	// CloseTimeout bounds how long closing a domain waits for a driver that does
	// not give up a connection attempt. The default is 15 seconds.
	CloseTimeout time.Duration
	// HugePages takes memory from the host's pool of huge pages where a region
	// fills them and the pool has some.
	HugePages bool
	// Logger takes warnings; default: slog.Default().
	Logger *slog.Logger
}

func (c *Config) setDefaults() {
	if c.AckTimeout <= 0 {
		c.AckTimeout = 268 * time.Millisecond
	}
	if c.RetryCount < 1 {
		c.RetryCount = 6
	}
	c.RetryCount = min(c.RetryCount, 7)
	if c.KeepAlive == 0 {
		c.KeepAlive = 10 * time.Second
	}
	if c.SetupTimeout <= 0 {
		c.SetupTimeout = 20 * time.Second
	}
	if c.CloseTimeout <= 0 {
		c.CloseTimeout = 15 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// Provider is the host's adapters. It loads the libraries when it is first asked.
type Provider struct {
	config   Config
	counters counters
	host     host
}

var _ rdma.Provider = (*Provider)(nil)

// New makes a provider. It opens nothing yet.
func New(config Config) *Provider {
	config.setDefaults()
	return &Provider{config: config}
}

// Name implements [rdma.Provider].
func (p *Provider) Name() string { return providerName }

// Devices implements [rdma.Provider]: it lists the devices that connections can
// be made over, those with a port that is up and an address of its own.
func (p *Provider) Devices(ctx context.Context) ([]rdma.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	devices, err := p.host.devices(p)
	if err != nil {
		return nil, unavailable(err)
	}
	return devices, nil
}

// A missing is what a host lacks, in the words of whoever found that.
type missing struct{ err error }

func (m *missing) Error() string {
	return "ibverbs is not available: " + strings.ReplaceAll(m.err.Error(), "verbs: "+verbs.ErrUnavailable.Error()+": ", "")
}

func (m *missing) Unwrap() []error { return []error{rdma.ErrUnavailable, m.err} }

// unavailable wraps what the binding or this package found missing.
func unavailable(err error) error {
	if errors.Is(err, rdma.ErrUnavailable) {
		return err
	}
	return &missing{err}
}

// Adapters lists all RDMA devices of the host, those that cannot be used with
// the reason. The error says why there are none at all.
func (p *Provider) Adapters(ctx context.Context) ([]Adapter, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	adapters, err := p.host.adapters(p)
	if err != nil {
		return nil, unavailable(err)
	}
	return adapters, nil
}

// An Adapter is what the host tells of an RDMA device.
type Adapter struct {
	Name       string
	Driver     string // user-space driver: "mlx5", "rxe"; "" if unknown
	Transport  string // "infiniband" (RoCE, too) or "iwarp"
	Firmware   string
	Ports      []Port
	Addresses  []string        // where connections are made, while a port is up
	Attributes rdma.Attributes // zero if the device could not be opened
	// Unusable is nil if connections can be made, or says what is missing and
	// what to do about it.
	Unusable error
}

// A Port is a port of an adapter.
type Port struct {
	Number int
	Up     bool
	State  string // "active", "down", ...
	Link   string // "infiniband" or "ethernet"
	MTU    int    // bytes of a packet's payload
}

// Stats counts what no single request tells. All values only grow.
type Stats struct {
	Connects        uint64 // connections set up from this side
	Accepts         uint64 // connections set up by peers
	ConnectFailures uint64 // attempts of either side that came to nothing
	Rejected        uint64 // of these, those that the peer's program refused
	Disconnects     uint64 // connections that the peer ended
	QueuePairErrors uint64 // connections that failed
	LostCompletions uint64 // requests that the driver forgot and this package flushed
	Overruns        uint64 // completion queues that overran
	Probes          uint64 // signs of life that idle connections have asked for
	PortsDown       uint64 // ports that lost their link
	DevicesRemoved  uint64 // domains whose device was removed or died
	Registered      uint64 // bytes ever registered
	Deregistered    uint64 // of these, bytes no longer registered
}

// Stats returns the counters of all devices of the provider.
func (p *Provider) Stats() Stats {
	c := &p.counters
	return Stats{
		Connects: c.connects.Load(), Accepts: c.accepts.Load(), ConnectFailures: c.connectFailures.Load(),
		Rejected: c.rejected.Load(), Disconnects: c.disconnects.Load(), QueuePairErrors: c.queuePairErrors.Load(),
		LostCompletions: c.lostCompletions.Load(), Overruns: c.overruns.Load(), Probes: c.probes.Load(), PortsDown: c.portsDown.Load(),
		DevicesRemoved: c.devicesRemoved.Load(), Registered: c.registered.Load(), Deregistered: c.deregistered.Load(),
	}
}

// Counters implements [rdma.CountingProvider] with [Provider.Stats].
func (p *Provider) Counters() map[string]uint64 {
	s := p.Stats()
	return map[string]uint64{
		"connects": s.Connects, "accepts": s.Accepts, "connect_failures": s.ConnectFailures, "rejected": s.Rejected,
		"disconnects": s.Disconnects, "queue_pair_errors": s.QueuePairErrors, "lost_completions": s.LostCompletions,
		"overruns": s.Overruns, "probes": s.Probes, "ports_down": s.PortsDown, "devices_removed": s.DevicesRemoved,
		"registered_bytes": s.Registered, "deregistered_bytes": s.Deregistered,
	}
}

type counters struct {
	connects, accepts, connectFailures, rejected, disconnects, queuePairErrors atomic.Uint64
	lostCompletions, overruns, probes, portsDown, devicesRemoved               atomic.Uint64
	registered, deregistered                                                   atomic.Uint64
}

// statuses translates verbs' completion statuses.
var statuses = [...]rdma.Status{
	verbs.StatusSuccess:              rdma.StatusSuccess,
	verbs.StatusLocalLength:          rdma.StatusLocalLength,
	verbs.StatusLocalQPOperation:     rdma.StatusLocalOperation,
	verbs.StatusLocalEECOperation:    rdma.StatusLocalOperation,
	verbs.StatusLocalProtection:      rdma.StatusLocalProtection,
	verbs.StatusFlushed:              rdma.StatusFlushed,
	verbs.StatusMWBind:               rdma.StatusLocalProtection,
	verbs.StatusBadResponse:          rdma.StatusRemoteOperation,
	verbs.StatusLocalAccess:          rdma.StatusLocalProtection,
	verbs.StatusRemoteInvalidRequest: rdma.StatusRemoteInvalid,
	verbs.StatusRemoteAccess:         rdma.StatusRemoteAccess,
	verbs.StatusRemoteOperation:      rdma.StatusRemoteOperation,
	verbs.StatusRetryExceeded:        rdma.StatusRetryExceeded,
	verbs.StatusReceiverNotReady:     rdma.StatusReceiverNotReady,
	verbs.StatusResponseTimeout:      rdma.StatusRetryExceeded,
	verbs.StatusRemoteAborted:        rdma.StatusRemoteOperation,
}

// translate makes a status of a driver's; those that reliable connections do
// not report stand for a failure of this side.
func translate(s verbs.Status) rdma.Status {
	if int(s) < len(statuses) && (s == verbs.StatusSuccess || statuses[s] != rdma.StatusSuccess) {
		return statuses[s]
	}
	return rdma.StatusLocalOperation
}

// reason is the error that a bad completion stands for.
func reason(s rdma.Status) error {
	switch s {
	case rdma.StatusRemoteAccess:
		return fmt.Errorf("%w: a request ended with: %s", rdma.ErrRemoteAccess, s)
	case rdma.StatusRetryExceeded:
		return fmt.Errorf("%w: the peer no longer answers: a request ended with: %s", rdma.ErrDisconnected, s)
	}
	return fmt.Errorf("a request ended with: %s", s)
}

// ackTimeoutCode is the exponent of the shortest timeout that is not less than d.
func ackTimeoutCode(d time.Duration) uint8 {
	for code := uint8(1); code < 31; code++ {
		if 4096*time.Nanosecond<<code >= d {
			return code
		}
	}
	return 31
}

// rnrTimers are the receiver-not-ready timers of the InfiniBand specification by
// code, volume 1, table "Encoding for RNR NAK timer field", in microseconds.
var rnrTimers = [32]uint32{
	655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920,
	2560, 3840, 5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
}

// rnrForEver is the retry count without an end, rnrMost the greatest other.
const (
	rnrForEver = 7
	rnrMost    = 6
	// rnrDefault is 0.64 ms.
	rnrDefault = 12
)

// receiverNotReady maps a bound on the waiting for a receive to what the two
// ends of a connection are told: how often this side tries again, and how long
// its peer waits in between. The wait is the receiver's to say, so the bound
// holds if both ends have about the same; a bound longer than the greatest count
// of the longest waits is no bound.
func receiverNotReady(bound time.Duration) (retries, timer uint8) {
	switch {
	case bound < 0:
		return rnrForEver, rnrDefault
	case bound == 0:
		return 0, rnrDefault
	}
	each := bound / rnrMost
	timer = 1
	for timer < 31 && time.Duration(rnrTimers[timer])*time.Microsecond < each {
		timer++
	}
	longest := time.Duration(rnrTimers[31]) * time.Microsecond
	if each > longest {
		return rnrForEver, rnrDefault
	}
	return rnrMost, timer
}
