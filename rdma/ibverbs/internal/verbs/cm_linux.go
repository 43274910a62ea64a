//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An EventChannel delivers the connection manager's events (struct
// rdma_event_channel).
type EventChannel struct {
	lib *Library
	p   uintptr
}

// NewEventChannel makes a channel; its descriptor is non-blocking. The error
// wraps [ErrUnavailable] if the connection manager can't be used, and says why.
func (l *Library) NewEventChannel() (*EventChannel, error) {
	p, errno := l.raw(l.fn.createEventChannel)
	if p == 0 {
		return nil, explainChannel(errno)
	}
	c := &EventChannel{l, p}
	if err := unix.SetNonblock(int(*at[int32](p, offEventChannelFD)), true); err != nil {
		c.Close()
		return nil, fmt.Errorf("verbs: connection manager's channel: %w", err)
	}
	return c, nil
}

// File is a non-blocking duplicate of the channel's descriptor, readable when
// there is an event. The caller closes it.
func (c *EventChannel) File() (*os.File, error) {
	return duplicate(*at[int32](c.p, offEventChannelFD), "rdma_cm events")
}

// Close destroys the channel. Its IDs must be destroyed or migrated before.
func (c *EventChannel) Close() { c.lib.callVoid(c.lib.fn.destroyEventChannel, c.p) }

// A CMEvent is an event of the connection manager (struct rdma_cm_event). It
// must be acknowledged, or the destruction of its ID blocks.
type CMEvent struct {
	Type CMEventType
	// ID is what the event is about. In a CMConnectRequest it is new and the
	// receiver's to accept, reject or destroy.
	ID CMID
	// Listen is the listening ID of a CMConnectRequest.
	Listen CMID
	// Cookie is ID's; of a CMConnectRequest, the listening ID's.
	Cookie uint64
	// Status is 0, a negative errno, or the reason of a rejection: 28 on
	// InfiniBand and -ECONNREFUSED... on iWARP if the peer's program said no.
	Status int32
	// PrivateData is a copy of what the peer sent along with a request,
	// rejection or establishment. On InfiniBand and RoCE it is padded with zeros
	// to the most that fits; on iWARP it has the length sent.
	PrivateData []byte
	// ResponderResources and InitiatorDepth are what the peer asked for, from this
	// side's point of view: Reads and atomics to take, and to have outstanding.
	ResponderResources, InitiatorDepth uint8
	// RemoteQP is the peer's queue pair number, where the transport tells it.
	RemoteQP uint32

	raw uintptr
}

// Event takes the next event; ok is false if there is none. It does not block.
func (c *EventChannel) Event() (event CMEvent, ok bool, err error) {
	s := c.lib.scratch.get()
	defer c.lib.scratch.put(s)
	p := s.take(8)
	r, errno := c.lib.raw(c.lib.fn.getCMEvent, c.p, p)
	if int32(r) != 0 {
		if errno == syscall.EAGAIN || errno == syscall.EINTR {
			return event, false, nil
		}
		return event, false, failure("rdma_get_cm_event", errno)
	}
	raw := *at[uintptr](p, 0)
	event = CMEvent{
		Type:   CMEventType(*at[uint32](raw, offCMEventType)),
		ID:     CMID{c.lib, *at[uintptr](raw, offCMEventID)},
		Status: *at[int32](raw, offCMEventStatus),
		raw:    raw,
	}
	event.Cookie = event.ID.Cookie()
	switch event.Type {
	case CMConnectRequest, CMConnectResponse, CMRejected, CMEstablished:
		if listen := *at[uintptr](raw, offCMEventListenID); listen != 0 {
			event.Listen = CMID{c.lib, listen}
			event.Cookie = event.Listen.Cookie()
		}
		param := raw + offCMEventParam
		if data, n := *at[uintptr](param, offConnParamPrivateData), int(*at[uint8](param, offConnParamPrivateDataLen)); data != 0 && n > 0 {
			event.PrivateData = append([]byte(nil), bytesAt(data, n)...)
		}
		event.ResponderResources = *at[uint8](param, offConnParamResponderResources)
		event.InitiatorDepth = *at[uint8](param, offConnParamInitiatorDepth)
		event.RemoteQP = *at[uint32](param, offConnParamQPNum)
	}
	return event, true, nil
}

// Ack gives an event back, once.
func (c *EventChannel) Ack(event CMEvent) error {
	return c.lib.call("rdma_ack_cm_event", c.lib.fn.ackCMEvent, event.raw)
}

// A CMID is the connection manager's communication identifier (struct
// rdma_cm_id), its socket. Its zero value is none. CMIDs can be compared and
// used as keys of maps.
type CMID struct {
	lib *Library
	p   uintptr
}

// CreateID makes an ID of the reliable-connected kind (RDMA_PS_TCP) whose events
// come to the channel. cookie comes back in them.
func (c *EventChannel) CreateID(cookie uint64) (CMID, error) {
	s := c.lib.scratch.get()
	defer c.lib.scratch.put(s)
	p := s.take(8)
	if err := c.lib.call("rdma_create_id", c.lib.fn.createID, c.p, p, uintptr(cookie), portSpaceTCP); err != nil {
		return CMID{}, err
	}
	return CMID{c.lib, *at[uintptr](p, 0)}, nil
}

// Valid tells whether there is an ID at all.
func (id CMID) Valid() bool { return id.p != 0 }

// Cookie is what the ID was created with.
func (id CMID) Cookie() uint64 { return *at[uint64](id.p, offCMIDContext) }

// SetCookie changes it, for an ID that came with a CMConnectRequest. Events read
// before have the old one.
func (id CMID) SetCookie(cookie uint64) { *at[uint64](id.p, offCMIDContext) = cookie }

// DeviceName is the name of the device that the ID is bound to: after a
// resolved address, a bind to a specific address, or in a connect request. It is
// "" before.
func (id CMID) DeviceName() string {
	context := *at[uintptr](id.p, offCMIDVerbs)
	if context == 0 {
		return ""
	}
	device := *at[uintptr](context, offContextDevice)
	if device == 0 {
		return ""
	}
	return stringAt(device+offDeviceName, sizeDeviceName)
}

// Port is the device's port that the ID is bound to; 0 if there is none yet.
func (id CMID) Port() uint8 { return *at[uint8](id.p, offCMIDPortNum) }

// SetTypeOfService sets the type of service (RFC 2474) of connections to come.
func (id CMID) SetTypeOfService(tos uint8) error { return id.set8("TOS", optionIDTOS, tos) }

// SetAckTimeout sets how long the transport waits for an acknowledgement before
// it sends again, as a code: 4.096 us times 2 to its power. InfiniBand and RoCE only.
func (id CMID) SetAckTimeout(code uint8) error {
	return id.set8("ACK_TIMEOUT", optionIDAckTimeout, code)
}

// SetReuseAddress lets a bind share its address, as SO_REUSEADDR does.
func (id CMID) SetReuseAddress(on bool) error {
	s := id.lib.scratch.get()
	defer id.lib.scratch.put(s)
	p := s.take(8)
	if on {
		*at[int32](p, 0) = 1
	}
	return id.lib.call("rdma_set_option REUSEADDR", id.lib.fn.setOption, id.p, optionLevelID, optionIDReuseAddr, p, 4)
}

func (id CMID) set8(what string, option uintptr, v uint8) error {
	s := id.lib.scratch.get()
	defer id.lib.scratch.put(s)
	p := s.take(8)
	*at[uint8](p, 0) = v
	return id.lib.call("rdma_set_option "+what, id.lib.fn.setOption, id.p, optionLevelID, option, p, 1)
}

// Bind binds the ID to a local address. A specific address binds it to a device,
// too; an unspecified one does not. Port 0 chooses one.
func (id CMID) Bind(address netip.AddrPort) error {
	s := id.lib.scratch.get()
	defer id.lib.scratch.put(s)
	p, err := putAddress(s, address)
	if err != nil {
		return fmt.Errorf("verbs: rdma_bind_addr: %w", err)
	}
	err = id.lib.call("rdma_bind_addr "+address.String(), id.lib.fn.bindAddr, id.p, p)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("%w: no RDMA device has this address", err)
	}
	return err
}

// ResolveAddress starts to find the way to destination, and the device, from
// source if that is valid. CMAddrResolved or CMAddrError follows.
func (id CMID) ResolveAddress(source, destination netip.AddrPort, timeout time.Duration) error {
	s := id.lib.scratch.get()
	defer id.lib.scratch.put(s)
	var from uintptr
	if source.IsValid() {
		var err error
		if from, err = putAddress(s, source); err != nil {
			return fmt.Errorf("verbs: rdma_resolve_addr: %w", err)
		}
	}
	to, err := putAddress(s, destination)
	if err != nil {
		return fmt.Errorf("verbs: rdma_resolve_addr: %w", err)
	}
	return id.lib.call("rdma_resolve_addr "+destination.String(), id.lib.fn.resolveAddr, id.p, from, to, milliseconds(timeout))
}

// ResolveRoute starts to find the path. CMRouteResolved or CMRouteError follows.
func (id CMID) ResolveRoute(timeout time.Duration) error {
	return id.lib.call("rdma_resolve_route", id.lib.fn.resolveRoute, id.p, milliseconds(timeout))
}

func milliseconds(d time.Duration) uintptr {
	return uintptr(min(max(int64(d/time.Millisecond), 1), 1<<31-1))
}

// Listen starts to take connection requests: CMConnectRequest for each.
func (id CMID) Listen(backlog int) error {
	return id.lib.call("rdma_listen", id.lib.fn.listen, id.p, uintptr(backlog))
}

// ConnParams go along with Connect and Accept (struct rdma_conn_param).
type ConnParams struct {
	PrivateData        []byte
	ResponderResources uint8 // Reads and atomics that this side takes at a time
	InitiatorDepth     uint8 // Reads and atomics that this side has outstanding
	RetryCount         uint8 // times that the transport tries again, at most 7; of Connect
	RNRRetryCount      uint8 // times that a Send tries again without a receive; 7 is for ever
	SRQ                bool  // the queue pair receives from a shared receive queue
	QPNumber           uint32
}

func (c *ConnParams) marshal(s *scratch) (uintptr, error) {
	if len(c.PrivateData) > 255 {
		return 0, fmt.Errorf("%d bytes of private data are more than 255: %w", len(c.PrivateData), syscall.EINVAL)
	}
	p := s.take(sizeConnParam)
	if len(c.PrivateData) > 0 {
		data := s.take(len(c.PrivateData))
		copy(bytesAt(data, len(c.PrivateData)), c.PrivateData)
		*at[uintptr](p, offConnParamPrivateData) = data
		*at[uint8](p, offConnParamPrivateDataLen) = uint8(len(c.PrivateData))
	}
	*at[uint8](p, offConnParamResponderResources) = c.ResponderResources
	*at[uint8](p, offConnParamInitiatorDepth) = c.InitiatorDepth
	*at[uint8](p, offConnParamFlowControl) = 1
	*at[uint8](p, offConnParamRetryCount) = c.RetryCount
	*at[uint8](p, offConnParamRNRRetryCount) = c.RNRRetryCount
	if c.SRQ {
		*at[uint8](p, offConnParamSRQ) = 1
	}
	*at[uint32](p, offConnParamQPNum) = c.QPNumber
	return p, nil
}

// Connect asks the peer for a connection of the attached queue pair, once the
// route is resolved. CMEstablished, CMRejected, CMUnreachable or CMConnectError
// follows on InfiniBand and RoCE; iWARP may report a refusal right here.
//
// It blocks on drivers that make the TCP connection inside of it (see
// [quirks.Driver.ConnectsInCall]): until the peer answers, under total loss for
// longer than 45 s. Destroying the ID from another goroutine waits as well. Call it
// in a goroutine that may be abandoned.
func (id CMID) Connect(params ConnParams) error {
	s := id.lib.scratch.get()
	defer id.lib.scratch.put(s)
	p, err := params.marshal(s)
	if err != nil {
		return fmt.Errorf("verbs: rdma_connect: %w", err)
	}
	return id.lib.call("rdma_connect", id.lib.fn.connect, id.p, p)
}

// Accept accepts a connection request for the attached queue pair.
// CMEstablished follows, or an error event.
func (id CMID) Accept(params ConnParams) error {
	s := id.lib.scratch.get()
	defer id.lib.scratch.put(s)
	p, err := params.marshal(s)
	if err != nil {
		return fmt.Errorf("verbs: rdma_accept: %w", err)
	}
	return id.lib.call("rdma_accept", id.lib.fn.accept, id.p, p)
}

// Reject refuses a connection request. The ID must be destroyed then.
func (id CMID) Reject(private []byte) error {
	if len(private) > 255 {
		return fmt.Errorf("verbs: rdma_reject: %d bytes of private data are more than 255: %w", len(private), syscall.EINVAL)
	}
	s := id.lib.scratch.get()
	defer id.lib.scratch.put(s)
	var data uintptr
	if len(private) > 0 {
		data = s.take(len(private))
		copy(bytesAt(data, len(private)), private)
	}
	return id.lib.call("rdma_reject", id.lib.fn.reject, id.p, data, uintptr(len(private)))
}

// Disconnect ends the connection; the queue pair flushes. CMDisconnected comes
// to both ends.
func (id CMID) Disconnect() error {
	return id.lib.call("rdma_disconnect", id.lib.fn.disconnect, id.p)
}

// MigrateTo moves the ID to another channel. Events of it that have been read
// from the old one must be acknowledged before, or the call blocks.
func (id CMID) MigrateTo(channel *EventChannel) error {
	return id.lib.call("rdma_migrate_id", id.lib.fn.migrateID, id.p, channel.p)
}

// AttachQP gives the ID a queue pair in the init state, which librdmacm takes
// through its states from here on, on whatever open context of the ID's device
// it was made. Detach it before the ID or the queue pair is destroyed.
func (id CMID) AttachQP(q *QP) { *at[uintptr](id.p, offCMIDQP) = q.p }

// DetachQP undoes AttachQP.
func (id CMID) DetachQP() { *at[uintptr](id.p, offCMIDQP) = 0 }

// LocalAddress is the local address, and PeerAddress the peer's; invalid if it
// is not known yet.
func (id CMID) LocalAddress() netip.AddrPort { return getAddress(id.p + offCMIDSrcAddr) }

// PeerAddress is the peer's address.
func (id CMID) PeerAddress() netip.AddrPort { return getAddress(id.p + offCMIDDstAddr) }

// Destroy destroys the ID. It blocks until its events have been acknowledged
// and a Connect under way has returned.
func (id CMID) Destroy() error {
	return id.lib.call("rdma_destroy_id", id.lib.fn.destroyID, id.p)
}

// putAddress writes a struct sockaddr_in or sockaddr_in6.
func putAddress(s *scratch, a netip.AddrPort) (uintptr, error) {
	if !a.IsValid() {
		return 0, fmt.Errorf("no valid address: %w", syscall.EINVAL)
	}
	ip := a.Addr().Unmap()
	p := s.take(sizeSockaddrIn6)
	b := bytesAt(p, sizeSockaddrIn6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if ip.Is4() {
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		v4 := ip.As4()
		copy(b[4:], v4[:])
		return p, nil
	}
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	v6 := ip.As16()
	copy(b[8:], v6[:])
	if zone := ip.Zone(); zone != "" {
		index, err := strconv.Atoi(zone)
		if err != nil {
			i, err := net.InterfaceByName(zone)
			if err != nil {
				return 0, fmt.Errorf("the zone of %s: %w", a, err)
			}
			index = i.Index
		}
		binary.NativeEndian.PutUint32(b[24:], uint32(index))
	}
	return p, nil
}

func getAddress(p uintptr) netip.AddrPort {
	b := bytesAt(p, sizeSockaddrIn6)
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case unix.AF_INET6:
		ip := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 {
			ip = ip.WithZone(strconv.Itoa(int(scope)))
		}
		return netip.AddrPortFrom(ip, port)
	}
	return netip.AddrPort{}
}
