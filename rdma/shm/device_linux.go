package shm

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/internal/memfd"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/internal/domains"
)

// Devices implements rdma.Provider. There is one device, shm0.
func (p *Provider) Devices(context.Context) ([]rdma.Device, error) {
	if p.invalid != nil {
		return nil, p.invalid
	}
	if err := memfd.Available(); err != nil {
		return nil, fmt.Errorf("%w: shm needs sealed memfds (Linux 5.1 or later; a seccomp profile may forbid memfd_create): %w", rdma.ErrUnavailable, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: shm needs Unix sockets: %w", rdma.ErrUnavailable, err)
	}
	if err := unix.Close(fd); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	return []rdma.Device{&p.device}, nil
}

type device struct {
	config *Config
	number domains.Numbers // of queue pairs
	fences bool            // never uses barriers; for tests

	mu    sync.Mutex
	peers map[peerIdentity]*peerDomain
}

func (d *device) barriers() bool { return !d.fences && barriers() }

var errOtherDevice = fmt.Errorf("%w: the queue pair is not of this device", rdma.ErrInvalid)

func (d *device) Attributes() rdma.Attributes {
	return rdma.Attributes{
		Provider: providerName,
		Name:     deviceName,
		Class:    rdma.ClassInfiniBand,
		Capabilities: rdma.CapSendImmediate | rdma.CapWriteImmediate | rdma.CapAtomics |
			rdma.CapSharedReceive | rdma.CapPolledWrites | rdma.CapReceiverNotReady | rdma.CapLendsReceives,
		MaxInline:       slotInline,
		MaxSendSGE:      maxEntries,
		MaxReadSGE:      maxEntries,
		MaxRecvSGE:      maxEntries,
		MaxQueueDepth:   maxQueueDepth,
		MaxCompletions:  1 << 20,
		MaxReads:        maxQueueDepth, // a Read is done when its turn has come
		MaxMessage:      maxMessage,
		MaxRegion:       maxRegion,
		MaxPrivateData:  maxPrivateData,
		KernelBypass:    true,
		MemoryAlignment: os.Getpagesize(),
		// Abstract sockets belong to a network namespace, those in a directory do not.
		OneNetwork: d.config.SocketDirectory == "",
	}
}

func (d *device) OpenDomain(config rdma.DomainConfig) (rdma.Domain, error) {
	dom := &domain{
		device: d, unpolled: alarmsWhile(config),
		regions: make(map[uint32]*region), keys: make(map[uint32]*region),
		blocks:  make(map[uint32]struct{}),
		waiters: make(map[*completionQueue]struct{}),
		stop:    make(chan struct{}),
		start:   time.Now(),
	}
	if _, err := rand.Read(dom.id[:]); err != nil {
		return nil, fmt.Errorf("shm: open domain: %w", err)
	}
	var err error
	if dom.tableFile, err = memfd.CreatePublished("verbena-table", tableBytes, memfd.Sparse); err != nil {
		return nil, fmt.Errorf("shm: open domain: %w", err)
	}
	if dom.bellFile, err = memfd.Create("verbena-doorbell", bellBytes, memfd.Sparse); err != nil {
		return nil, errors.Join(fmt.Errorf("shm: open domain: %w", err), dom.tableFile.Close())
	}
	dom.table = viewTable(dom.tableFile.Bytes())
	dom.bell = viewDoorbell(dom.bellFile.Bytes())
	dom.events.Start(config.OnEvent)
	dom.workers.Go(dom.runAgent)
	return dom, nil
}

// acquirePeer returns the domain of a peer, whose table the identity lacks. It takes
// the descriptors over.
func (d *device) acquirePeer(identity peerIdentity, tableFD, bellFD int) (*peerDomain, error) {
	file, err := memfd.Identify(tableFD)
	if err != nil {
		return nil, errors.Join(err, unix.Close(tableFD), unix.Close(bellFD))
	}
	// Another user's process that presents the domain of a third gets one of its own.
	identity.table = file
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.peers[identity]; p != nil {
		p.users++
		_, _ = unix.Close(tableFD), unix.Close(bellFD)
		return p, nil
	}
	p := &peerDomain{device: d, identity: identity, users: 1, byHandle: make(map[uint32]*peerRegion), byKey: make(map[uint32]*peerRegion), pairs: make(map[*queuePair]struct{}), alarms: make(map[uint32]*peerAlarm)}
	p.tableMemory, err = memfd.Adopt(tableFD, tableBytes, memfd.Terms{Foreign: identity.foreign})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the peer's region table: %w", err), unix.Close(bellFD))
	}
	p.bellMemory, err = memfd.Adopt(bellFD, bellBytes, memfd.Terms{Writable: true, Foreign: identity.foreign})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the peer's doorbell: %w", err), memfd.Unmap(p.tableMemory))
	}
	p.table, p.bell = viewTable(p.tableMemory), viewDoorbell(p.bellMemory)
	if d.peers == nil {
		d.peers = make(map[peerIdentity]*peerDomain)
	}
	d.peers[identity] = p
	return p, nil
}

func (d *device) releasePeer(p *peerDomain) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.users--; p.users > 0 {
		return nil
	}
	delete(d.peers, p.identity)
	errs := []error{memfd.Unmap(p.tableMemory), memfd.Unmap(p.bellMemory)}
	for _, r := range p.byHandle {
		errs = append(errs, r.unmap())
	}
	return errors.Join(errs...)
}
