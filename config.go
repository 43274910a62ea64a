package verbena

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Config configures a runtime. The zero value of each field stands for a
// default that suits a server.
type Config struct {
	// Providers in order of preference. TCP comes after the last of them. A
	// runtime without providers has TCP alone.
	Providers []rdma.Provider
	// Logger gets what nobody else is told, such as connections that were
	// dropped while they were set up. Default: none of it is logged.
	Logger *slog.Logger

	// MaxMessage is the longest message in bytes that endpoints accept. Default 128 MiB.
	MaxMessage int
	// ReceiveMemory and SendMemory bound the registered memory of each device, in
	// bytes. Defaults 1 GiB and 512 MiB. It is taken as the load needs it.
	ReceiveMemory, SendMemory int64
	// Workers is the number of completion queues of each device. Default: one
	// for every two processors, at most 8.
	Workers int
	// Tuning overrides the built-in table for transports, by name. Fields that
	// are zero keep the built-in value.
	Tuning map[string]Tuning

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
}

// maxMessageLimit keeps lengths in the 32 bits that the wire has.
const maxMessageLimit = 1 << 30

func (c Config) withDefaults() (Config, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	set(&c.MaxMessage, 128<<20)
	set(&c.ReceiveMemory, 1<<30)
	set(&c.SendMemory, 512<<20)
	set(&c.Workers, defaultWorkers())
	set(&c.HelloTimeout, 2*time.Second)
	set(&c.ConnectTimeout, 5*time.Second)
	set(&c.LegacyExpiry, time.Minute)
	set(&c.Linger, 5*time.Second)
	if c.MaxMessage < 0 || c.MaxMessage > maxMessageLimit {
		return c, fmt.Errorf("verbena: MaxMessage %d is not between 1 and %d", c.MaxMessage, maxMessageLimit)
	}
	if c.ReceiveMemory < 0 || c.SendMemory < 0 || c.Workers < 0 ||
		c.HelloTimeout < 0 || c.ConnectTimeout < 0 || c.LegacyExpiry < 0 || c.Linger < 0 {
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
	return c, nil
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// ListenConfig configures a listener. Zero values stand for defaults.
type ListenConfig struct {
	// Services that peers may ask for. Default: any.
	Services []string
	// HelloTimeout bounds the time from a connection's arrival until it has
	// been accepted, as an endpoint or a legacy connection. One that stays
	// silent for so long is closed. Default 10 s.
	HelloTimeout time.Duration
	// MaxHandshakes bounds the connections that are being set up. When there are
	// more, those that have been silent for longest are closed. Default 1024.
	MaxHandshakes int
	// Backlog bounds the endpoints, and the legacy connections, that wait for
	// an Accept each. Default 128.
	Backlog int
}

func (c ListenConfig) withDefaults() ListenConfig {
	set(&c.HelloTimeout, 10*time.Second)
	set(&c.MaxHandshakes, 1024)
	set(&c.Backlog, 128)
	return c
}

// DialConfig configures one dial.
type DialConfig struct {
	// Transport asks for one: the name of a provider, or [TransportTCP]. Empty
	// or [TransportAuto] lets the runtime choose.
	Transport string
}
