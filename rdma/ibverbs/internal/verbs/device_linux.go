//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-data/verbena/rdma/ibverbs/internal/foreign"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
)

// A Device is an adapter that libibverbs has found, not opened yet.
type Device struct {
	Name      string // "mlx5_0"
	Verbs     string // the character device's name, "uverbs0"
	Transport Transport
}

// Devices lists the adapters. If there is none, the error wraps [ErrUnavailable]
// and tells why that may be.
func (l *Library) Devices() ([]Device, error) {
	var found []Device
	err := l.withDevices(func(device uintptr) bool {
		found = append(found, Device{
			Name:      stringAt(device+offDeviceName, sizeDeviceName),
			Verbs:     stringAt(device+offDeviceDevName, sizeDeviceName),
			Transport: Transport(*at[int32](device, offDeviceTransport)),
		})
		return true
	})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, explainNoDevice()
	}
	return found, nil
}

// withDevices calls f for each device until it returns false. The device is
// valid inside f only, unless f opens it.
func (l *Library) withDevices(f func(device uintptr) bool) error {
	s := l.scratch.get()
	defer l.scratch.put(s)
	count := s.take(4)
	list, errno := l.raw(l.fn.getDeviceList, count)
	if list == 0 {
		return explainDeviceList(errno)
	}
	defer l.callVoid(l.fn.freeDeviceList, list)
	n := *at[int32](count, 0)
	for i := range uintptr(max(n, 0)) {
		device := *at[uintptr](list, i*8)
		if device == 0 || !f(device) {
			break
		}
	}
	return nil
}

// A Context is an open device.
type Context struct {
	lib       *Library
	p         uintptr
	name      string
	driver    string
	transport Transport
	// How the driver is entered.
	posts, briefPosts, recvs, polls foreign.Mode

	postSend, postRecv, postSRQRecv, pollCQ, reqNotify uintptr
}

// Open opens a device by name. The error wraps [ErrUnavailable] if there is none
// of that name or it must not be opened, and says what to do.
func (l *Library) Open(device string, mode quirks.CallMode) (*Context, error) {
	var p uintptr
	var errno syscall.Errno
	var verbsName string
	err := l.withDevices(func(d uintptr) bool {
		if stringAt(d+offDeviceName, sizeDeviceName) != device {
			return true
		}
		verbsName = stringAt(d+offDeviceDevName, sizeDeviceName)
		p, errno = l.raw(l.fn.openDevice, d)
		return false
	})
	if err != nil {
		return nil, err
	}
	if p == 0 {
		return nil, explainOpen(device, verbsName, errno)
	}
	c := newContext(l, p)
	if err := c.choose(mode); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if err := unix.SetNonblock(int(*at[int32](p, offContextAsyncFD)), true); err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: %s's event descriptor: %w", device, err), c.Close())
	}
	return c, nil
}

// newContext reads what the data path needs out of an ibv_context.
func newContext(l *Library, p uintptr) *Context {
	c := &Context{
		lib: l, p: p,
		postSend:    *at[uintptr](p, offContextPostSend),
		postRecv:    *at[uintptr](p, offContextPostRecv),
		postSRQRecv: *at[uintptr](p, offContextPostSRQRecv),
		pollCQ:      *at[uintptr](p, offContextPollCQ),
		reqNotify:   *at[uintptr](p, offContextReqNotifyCQ),
	}
	if device := *at[uintptr](p, offContextDevice); device != 0 {
		c.name = stringAt(device+offDeviceName, sizeDeviceName)
		c.transport = Transport(*at[int32](device, offDeviceTransport))
	}
	return c
}

// Name is the device's name.
func (c *Context) Name() string { return c.name }

// Driver is the name of the user-space driver that implements the context:
// "mlx5", "rxe", "siw"; "" if it could not be told.
func (c *Context) Driver() string { return c.driver }

// Transport is the device's protocol family.
func (c *Context) Transport() Transport { return c.transport }

// Mode is how posts and polls enter the driver; never quirks.CallAuto.
func (c *Context) Mode() quirks.CallMode {
	switch {
	case c.posts == foreign.NonBlocking:
		return quirks.CallNonBlocking
	case c.polls == foreign.NonBlocking:
		return quirks.CallNonBlockingPoll
	}
	return quirks.CallBlocking
}

func (c *Context) setMode(mode quirks.CallMode) {
	c.posts, c.briefPosts, c.recvs, c.polls = foreign.Blocking, foreign.Blocking, foreign.Blocking, foreign.Blocking
	if mode == quirks.CallNonBlocking {
		c.posts, c.briefPosts, c.recvs = foreign.NonBlocking, foreign.NonBlocking, foreign.NonBlocking
	}
	if mode == quirks.CallNonBlocking || mode == quirks.CallNonBlockingPoll {
		c.polls = foreign.NonBlocking
	}
}

// Vectors is the number of completion vectors; CreateCQ takes one below it.
func (c *Context) Vectors() int { return int(*at[int32](c.p, offContextNumCompVectors)) }

// Close closes the device. Everything made from it must be gone.
func (c *Context) Close() error {
	return c.lib.call("ibv_close_device "+c.name, c.lib.fn.closeDevice, c.p)
}

// DeviceAttributes are a device's limits (struct ibv_device_attr).
type DeviceAttributes struct {
	Firmware         string
	NodeGUID         uint64
	VendorID         uint32
	VendorPartID     uint32
	HardwareVersion  uint32
	MaxMRSize        uint64 // bytes
	MaxQP            int
	MaxQPWR          int // work requests of a queue
	MaxSGE           int
	MaxSGERead       int // local entries of a Read; 0 if the driver does not tell
	MaxCQ            int
	MaxCQE           int
	MaxMR            int
	MaxPD            int
	MaxQPReadAtomic  int // Reads and atomics that a queue pair can be the target of at a time
	MaxQPInitiator   int // Reads and atomics that a queue pair can have outstanding
	Atomic           AtomicCap
	MaxSRQ           int
	MaxSRQWR         int
	MaxSRQSGE        int
	Ports            int
	DeviceCapability uint32 // enum ibv_device_cap_flags
}

// Query asks the device for its limits.
func (c *Context) Query() (DeviceAttributes, error) {
	s := c.lib.scratch.get()
	defer c.lib.scratch.put(s)
	p := s.take(sizeDeviceAttr)
	if err := c.lib.call("ibv_query_device "+c.name, c.lib.fn.queryDevice, c.p, p); err != nil {
		return DeviceAttributes{}, err
	}
	integer := func(offset uintptr) int { return int(*at[int32](p, offset)) }
	return DeviceAttributes{
		Firmware:         stringAt(p+offDeviceAttrFWVer, 64),
		NodeGUID:         binary.BigEndian.Uint64(bytesAt(p+offDeviceAttrNodeGUID, 8)),
		VendorID:         *at[uint32](p, offDeviceAttrVendorID),
		VendorPartID:     *at[uint32](p, offDeviceAttrVendorPartID),
		HardwareVersion:  *at[uint32](p, offDeviceAttrHWVer),
		MaxMRSize:        *at[uint64](p, offDeviceAttrMaxMRSize),
		MaxQP:            integer(offDeviceAttrMaxQP),
		MaxQPWR:          integer(offDeviceAttrMaxQPWR),
		MaxSGE:           integer(offDeviceAttrMaxSGE),
		MaxSGERead:       integer(offDeviceAttrMaxSGERD),
		MaxCQ:            integer(offDeviceAttrMaxCQ),
		MaxCQE:           integer(offDeviceAttrMaxCQE),
		MaxMR:            integer(offDeviceAttrMaxMR),
		MaxPD:            integer(offDeviceAttrMaxPD),
		MaxQPReadAtomic:  integer(offDeviceAttrMaxQPRDAtom),
		MaxQPInitiator:   integer(offDeviceAttrMaxInitRDAtom),
		Atomic:           AtomicCap(*at[uint32](p, offDeviceAttrAtomicCap)),
		MaxSRQ:           integer(offDeviceAttrMaxSRQ),
		MaxSRQWR:         integer(offDeviceAttrMaxSRQWR),
		MaxSRQSGE:        integer(offDeviceAttrMaxSRQSGE),
		Ports:            int(*at[uint8](p, offDeviceAttrPhysPortCnt)),
		DeviceCapability: *at[uint32](p, offDeviceAttrCapFlags),
	}, nil
}

// PortAttributes are a port's state (struct ibv_port_attr).
type PortAttributes struct {
	State      PortState
	Physical   uint8 // the physical link's state, 5 is up
	MaxMTU     MTU
	ActiveMTU  MTU
	GIDs       int    // entries of the GID table
	MaxMessage uint32 // bytes
	LID        uint16
	Link       LinkLayer
	Width      uint8 // link width, as a code: 1, 2, 4, 8, 16 for 1, 4, 8, 12, 2 lanes
	Speed      uint8 // link speed, as a code of the InfiniBand specification
}

// QueryPort asks for a port's state; ports count from 1.
func (c *Context) QueryPort(port uint8) (PortAttributes, error) {
	s := c.lib.scratch.get()
	defer c.lib.scratch.put(s)
	p := s.take(2 * sizePortAttr) // the structure grows at its end
	if err := c.lib.call(fmt.Sprintf("ibv_query_port %s/%d", c.name, port), c.lib.fn.queryPort, c.p, uintptr(port), p); err != nil {
		return PortAttributes{}, err
	}
	return PortAttributes{
		State:      PortState(*at[uint32](p, offPortAttrState)),
		Physical:   *at[uint8](p, offPortAttrPhysState),
		MaxMTU:     MTU(*at[uint32](p, offPortAttrMaxMTU)),
		ActiveMTU:  MTU(*at[uint32](p, offPortAttrActiveMTU)),
		GIDs:       int(*at[int32](p, offPortAttrGIDTblLen)),
		MaxMessage: *at[uint32](p, offPortAttrMaxMsgSize),
		LID:        *at[uint16](p, offPortAttrLID),
		Link:       LinkLayer(*at[uint8](p, offPortAttrLinkLayer)),
		Width:      *at[uint8](p, offPortAttrActiveWidth),
		Speed:      *at[uint8](p, offPortAttrActiveSpeed),
	}, nil
}

// QueryGID asks for an entry of a port's GID table.
func (c *Context) QueryGID(port uint8, index int) (gid [16]byte, err error) {
	s := c.lib.scratch.get()
	defer c.lib.scratch.put(s)
	p := s.take(16)
	if err := c.lib.call(fmt.Sprintf("ibv_query_gid %s/%d index %d", c.name, port, index), c.lib.fn.queryGID, c.p, uintptr(port), uintptr(index), p); err != nil {
		return gid, err
	}
	copy(gid[:], bytesAt(p, 16))
	return gid, nil
}

// An AsyncEvent is something that no single request caused. It must be
// acknowledged: what it names can't be destroyed before.
type AsyncEvent struct {
	Type AsyncEventType
	// Cookie is what the queue pair, completion queue or shared receive queue
	// concerned was created with; 0 for events of ports and devices.
	Cookie uint64
	// QPNumber is the queue pair's number, for its events.
	QPNumber uint32
	// Port is the port's number, for its events.
	Port int

	element uintptr
}

// AsyncEventFile is a non-blocking duplicate of the asynchronous events' file
// descriptor, readable when there is an event. The caller closes it.
func (c *Context) AsyncEventFile() (*os.File, error) {
	return duplicate(*at[int32](c.p, offContextAsyncFD), c.name+" asynchronous events")
}

// AsyncEvent takes the next asynchronous event; ok is false if there is none.
// It does not block.
func (c *Context) AsyncEvent() (event AsyncEvent, ok bool, err error) {
	s := c.lib.scratch.get()
	defer c.lib.scratch.put(s)
	p := s.take(sizeAsyncEvent)
	r, errno := c.lib.raw(c.lib.fn.getAsyncEvent, c.p, p)
	if int32(r) != 0 {
		if errno == syscall.EAGAIN || errno == syscall.EINTR {
			return event, false, nil
		}
		return event, false, failure("ibv_get_async_event "+c.name, errno)
	}
	event.Type = AsyncEventType(*at[uint32](p, offAsyncEventType))
	event.element = *at[uintptr](p, offAsyncEventElement)
	switch event.Type {
	case AsyncCQError:
		event.Cookie = *at[uint64](event.element, offCQCQContext)
	case AsyncQPFatal, AsyncQPRequestError, AsyncQPAccessError, AsyncCommEstablished, AsyncSendQueueDrained,
		AsyncPathMigrated, AsyncPathMigrateError, AsyncQPLastWQEReached:
		event.Cookie = *at[uint64](event.element, offQPQPContext)
		event.QPNumber = *at[uint32](event.element, offQPNumber)
	case AsyncSRQError, AsyncSRQLimitReached:
		event.Cookie = *at[uint64](event.element, offSRQSRQContext)
	case AsyncPortActive, AsyncPortError, AsyncLIDChange, AsyncPKeyChange, AsyncSMChange, AsyncClientReregister, AsyncGIDChange:
		event.Port = int(int32(event.element))
	}
	return event, true, nil
}

// AckAsyncEvent gives an event back.
func (c *Context) AckAsyncEvent(event AsyncEvent) {
	s := c.lib.scratch.get()
	defer c.lib.scratch.put(s)
	p := s.take(sizeAsyncEvent)
	*at[uintptr](p, offAsyncEventElement) = event.element
	*at[uint32](p, offAsyncEventType) = uint32(event.Type)
	c.lib.callVoid(c.lib.fn.ackAsyncEvent, p)
}

// duplicate makes fd non-blocking and wraps a duplicate of it.
func duplicate(fd int32, name string) (*os.File, error) {
	if err := unix.SetNonblock(int(fd), true); err != nil {
		return nil, fmt.Errorf("verbs: %s: %w", name, err)
	}
	d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("verbs: duplicating the descriptor of %s: %w", name, err)
	}
	return os.NewFile(uintptr(d), name), nil
}
