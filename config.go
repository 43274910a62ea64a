package verbena

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/liveness"
	"github.com/verbena-data/verbena/internal/pressure"
	"github.com/verbena-data/verbena/rdma"
)

// Config configures a runtime. The zero value of each field stands for a
// default that suits a server.
type Config struct {
	// Providers in order of preference. TCP comes after the last of them. A
	// runtime without providers has TCP alone.
	Providers []rdma.Provider
	// Logger gets what nobody else is told, such as connections that were
	// dropped while they were set up. Default: [slog.Default], as everywhere in this
	// module; slog.DiscardHandler silences it.
	Logger *slog.Logger

	// MaxMessage is the longest message in bytes that endpoints accept. Default 128 MiB.
	MaxMessage int
	// ReceiveMemory and SendMemory bound the registered memory of each group on each
	// device, in bytes. Defaults: 1 GiB and 512 MiB, but at most a quarter and an
	// eighth of what the machine has and the process's cgroup may use. It is taken as
	// the load needs it: one half of ReceiveMemory by messages that arrive eagerly, the other by
	// long ones, of at most a quarter of it each; one half of SendMemory by each of
	// the two on their way out.
	ReceiveMemory, SendMemory int64
	// IgnorePressure keeps memory at what the load wants even when the machine or the
	// process's cgroup is short of it. Otherwise what is free is given back then,
	// nothing grows, and when it gets critical messages wait while the pools shrink.
	IgnorePressure bool
	// Workers is the number of completion queues of each group on each device.
	// Default: one for every two processors, at most 8.
	Workers int
	// Tuning overrides the built-in table: see [DefaultTuning].
	Tuning TuningTable
	// Rules choose transports by operation, size and peer. They do not concern dials
	// that ask for a transport.
	Rules Rules

	// Connect makes the connections of dials: network is "tcp" or "unix". Default: a
	// [net.Dialer] with keep-alives. Through a proxy or a tunnel, or in memory, as
	// [Runtime.NewListener] takes listeners of any kind. What it returns has to keep deadlines,
	// and to take some KiB before the peer reads.
	// A network other than the system's carries [TransportTCP] alone, and tells by itself when a
	// peer's host is gone.
	Connect func(ctx context.Context, network, address string) (net.Conn, error)

	// HelloTimeout bounds the wait for a server's answer to a hello, after which
	// it counts as a legacy server. It is cut to a third of what the context of
	// a dial leaves. Default 2 s.
	HelloTimeout time.Duration
	// ConnectTimeout bounds the set-up of one candidate before the next one is
	// tried. Default 5 s.
	ConnectTimeout time.Duration
	// LegacyExpiry is how long a legacy server is remembered. Default 1 minute.
	LegacyExpiry time.Duration
	// Linger bounds how long Close waits for the peer to take what was sent.
	// Default 5 s.
	Linger time.Duration
	// PeerTimeout is how long the host of a peer over TCP may not answer, while data is on its
	// way to it, or to the kernel's probes of an idle connection, which take at least 6 s; then
	// the endpoint ends. Devices have limits of their own, and so may Connect. Default 30 s.
	PeerTimeout time.Duration
}

const maxMessageLimit = wire.MaxMessage

// Defaults of ReceiveMemory and SendMemory in bytes where memory is plenty. Where
// the limit of the process is known they are a quarter and an eighth of it at most.
const (
	mostReceiveMemory = 1 << 30
	mostSendMemory    = 512 << 20
	leastMemory       = 8 << 20
)

func defaultReceiveMemory(limit int64) int64 { return shareOf(limit/4, mostReceiveMemory) }
func defaultSendMemory(limit int64) int64    { return shareOf(limit/8, mostSendMemory) }

func shareOf(share, most int64) int64 {
	if share == 0 {
		return most
	}
	return min(max(share, leastMemory), most)
}

func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	set(&c.MaxMessage, 128<<20)
	if c.ReceiveMemory == 0 || c.SendMemory == 0 {
		limit := pressure.Process().Now().Limit
		set(&c.ReceiveMemory, defaultReceiveMemory(limit))
		set(&c.SendMemory, defaultSendMemory(limit))
	}
	set(&c.Workers, defaultWorkers())
	set(&c.HelloTimeout, 2*time.Second)
	set(&c.ConnectTimeout, 5*time.Second)
	set(&c.LegacyExpiry, time.Minute)
	set(&c.Linger, 5*time.Second)
	set(&c.PeerTimeout, liveness.DefaultTimeout)
	if c.Connect == nil {
		c.Connect = (&net.Dialer{KeepAliveConfig: liveness.KeepAlive(c.PeerTimeout)}).DialContext
	}
	if c.MaxMessage < 0 || c.MaxMessage > maxMessageLimit {
		return c, fmt.Errorf("verbena: MaxMessage %d is not between 1 and %d", c.MaxMessage, maxMessageLimit)
	}
	if c.ReceiveMemory < 0 || c.SendMemory < 0 || c.Workers < 0 ||
		c.HelloTimeout < 0 || c.ConnectTimeout < 0 || c.LegacyExpiry < 0 || c.Linger < 0 || c.PeerTimeout < 0 {
		return c, fmt.Errorf("verbena: a negative size or duration in the configuration")
	}
	for i, p := range c.Providers {
		if p == nil {
			return c, fmt.Errorf("verbena: provider %d is nil", i)
		}
		if name := p.Name(); name == TransportTCP || name == TransportAuto || name == "" {
			return c, fmt.Errorf("verbena: provider %d has the reserved name %q", i, name)
		}
	}
	if err := c.Rules.Check(c.transports()); err != nil {
		return c, err
	}
	return c, c.Tuning.check(c.transports())
}

// transports are the names that tuning tables and rules may have.
func (c Config) transports() []string {
	var names []string
	for _, p := range c.Providers {
		names = append(names, p.Name())
	}
	return append(names, TransportTCP)
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
