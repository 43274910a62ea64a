package shm

import "time"

// Config configures the provider. The zero value is good for processes of one
// user in one container.
type Config struct {
	// SocketDirectory is where listeners without an address put their sockets.
	// Empty uses the abstract namespace, which leaves nothing behind but reaches
	// only processes in the same network namespace; containers need a directory
	// that they share. There a process that is killed leaves its socket, which
	// the next listener at the same path removes.
	SocketDirectory string
	// AllowUIDs are the users, besides the own one, whose processes may connect
	// and be connected to. The package comment says what they get.
	AllowUIDs []uint32
	// HugePages takes regions of 1 MiB and more from the huge pages that the
	// system has reserved, as long as there are any.
	HugePages bool
	// AccessTimeout bounds how long closing waits for a peer that is suspended in
	// the middle of an access, and how long a request waits for a peer to hand
	// over memory. 0 means 5 s.
	AccessTimeout time.Duration
	// SharedReceiveSlots is how many messages may wait in a queue pair with a
	// shared receive queue until they are polled, rounded up to a power of two;
	// a sender waits when they are full. Each takes 128 bytes. 0 means 256.
	SharedReceiveSlots int
}

const (
	providerName = "shm"
	deviceName   = "shm0"
)

// A Provider is the rdma.Provider of this package.
type Provider struct {
	config Config
	device device
}

// New returns the provider. Providers of one process are independent.
func New(config Config) *Provider {
	if config.AccessTimeout <= 0 {
		config.AccessTimeout = 5 * time.Second
	}
	if config.SharedReceiveSlots <= 0 {
		config.SharedReceiveSlots = 256
	}
	p := &Provider{config: config}
	p.device.config = &p.config
	return p
}

// Name implements rdma.Provider.
func (p *Provider) Name() string { return providerName }
