package shm

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/verbena-data/verbena/rdma"
)

// Config configures the provider. The zero value is good for processes of one
// user in one container. [Config.Validate] tells what is out of range.
type Config struct {
	// SocketDirectory is where listeners without an address put their sockets. It
	// is at most 82 bytes long. Empty uses the abstract namespace, which leaves
	// nothing behind but reaches only processes in the same network namespace;
	// containers need a directory that they share. There a process that is killed
	// leaves its socket, which the next listener without an address removes if it is
	// a minute old.
	SocketDirectory string
	// AllowUIDs are the users, besides the own one, whose processes may connect
	// and be connected to, at most 64, as this process's user namespace numbers
	// them. The package comment says what they get. The overflow user, 65534, stands
	// for every user that the namespace does not map: naming it lets all of them in.
	// Sockets in a directory are then open to all users who can look into the
	// directory; each is checked before anything of it is read.
	AllowUIDs []uint32
	// HugePages takes regions of 1 MiB and more from the huge pages that the
	// system has reserved, as long as there are any. It excludes AllowUIDs.
	HugePages bool
	// AccessTimeout bounds how long closing waits for a peer that is suspended in
	// the middle of an access, how long a request waits for a peer to hand over
	// memory, and how long a peer that has asked for some may leave its socket full
	// before it is disconnected. 0 means 5 s; an hour is the most.
	AccessTimeout time.Duration
	// SharedReceiveSlots is how many messages may wait in a queue pair with a
	// shared receive queue until they are polled, rounded up to a power of two of
	// at least 2; a sender waits when they are full. At most so many receives, less
	// one, are lent to a queue pair ahead of its messages. Each takes 144 bytes, and
	// 16 more for each entry of a receive if it may have several. 0 means 128; 32,768
	// is the most.
	SharedReceiveSlots int
}

const (
	socketName    = "verbena-0123456789abcdef" // as long as those that listeners choose
	maxSocketPath = 107
	maxAllowed    = 64
	maxTimeout    = time.Hour
)

// Validate returns an error that wraps [rdma.ErrInvalid] and says what to change,
// if anything is out of range. [Provider.Devices] returns it, too.
func (c Config) Validate() error {
	invalid := func(format string, values ...any) error {
		return fmt.Errorf("%w: shm: "+format, append([]any{rdma.ErrInvalid}, values...)...)
	}
	if most := maxSocketPath - len("/"+socketName); len(c.SocketDirectory) > most || strings.ContainsRune(c.SocketDirectory, 0) {
		return invalid("SocketDirectory %q: a path of at most %d bytes leaves room for the names of sockets: choose a shorter one", c.SocketDirectory, most)
	}
	if len(c.AllowUIDs) > maxAllowed {
		return invalid("AllowUIDs names %d users, at most %d: give processes that share memory a user in common", len(c.AllowUIDs), maxAllowed)
	}
	if slices.Contains(c.AllowUIDs, math.MaxUint32) {
		return invalid("AllowUIDs: %d is no user: name the numbers that id -u prints", uint32(math.MaxUint32))
	}
	if c.HugePages && len(c.AllowUIDs) > 0 {
		return invalid("HugePages with AllowUIDs: another user could take huge pages away that are mapped, which ends the process: leave one of the two out")
	}
	if c.AccessTimeout < 0 || c.AccessTimeout > maxTimeout {
		return invalid("AccessTimeout %v: from 0, for the default, to %v", c.AccessTimeout, maxTimeout)
	}
	if c.SharedReceiveSlots < 0 || c.SharedReceiveSlots > maxQueueDepth {
		return invalid("SharedReceiveSlots %d: from 0, for the default, to %d", c.SharedReceiveSlots, maxQueueDepth)
	}
	return nil
}

const (
	providerName = "shm"
	deviceName   = "shm0"
)

// A Provider is the rdma.Provider of this package.
type Provider struct {
	config  Config
	invalid error // what is wrong with it
	device  device
}

// New returns the provider. Providers of one process are independent. It copies
// the configuration; what is wrong with that, Devices tells.
func New(config Config) *Provider {
	config.AllowUIDs = slices.Clone(config.AllowUIDs)
	p := &Provider{config: config, invalid: config.Validate()}
	if p.config.AccessTimeout <= 0 {
		p.config.AccessTimeout = 5 * time.Second
	}
	if p.config.SharedReceiveSlots <= 0 {
		p.config.SharedReceiveSlots = 128
	}
	p.device.config = &p.config
	return p
}

// Name implements rdma.Provider.
func (p *Provider) Name() string { return providerName }
