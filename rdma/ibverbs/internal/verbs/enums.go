package verbs

import "fmt"

// A Status is the outcome of a work request (enum ibv_wc_status).
type Status uint32

// The statuses that reliable-connected queue pairs report.
const (
	StatusSuccess                Status = 0
	StatusLocalLength            Status = 1
	StatusLocalQPOperation       Status = 2
	StatusLocalEECOperation      Status = 3
	StatusLocalProtection        Status = 4
	StatusFlushed                Status = 5
	StatusMWBind                 Status = 6
	StatusBadResponse            Status = 7
	StatusLocalAccess            Status = 8
	StatusRemoteInvalidRequest   Status = 9
	StatusRemoteAccess           Status = 10
	StatusRemoteOperation        Status = 11
	StatusRetryExceeded          Status = 12
	StatusReceiverNotReady       Status = 13
	StatusLocalRDDViolation      Status = 14
	StatusRemoteInvalidRDRequest Status = 15
	StatusRemoteAborted          Status = 16
	StatusInvalidEEC             Status = 17
	StatusInvalidEECState        Status = 18
	StatusFatal                  Status = 19
	StatusResponseTimeout        Status = 20
	StatusGeneral                Status = 21
	StatusTagMatching            Status = 22
	StatusTagMatchingIncomplete  Status = 23
)

var statusNames = []string{
	"success", "local length error", "local queue pair operation error", "local EE context operation error",
	"local protection error", "work request flushed", "memory window bind error", "bad response", "local access error",
	"remote invalid request", "remote access error", "remote operation error", "transport retry counter exceeded",
	"receiver-not-ready retry counter exceeded", "local RDD violation", "remote invalid RD request", "remote aborted",
	"invalid EE context number", "invalid EE context state", "fatal error", "response timeout", "general error",
	"tag matching error", "tag matching rendezvous incomplete",
}

func (s Status) String() string { return name("status", statusNames, int(s)) }

// A WROpcode is what a send work request does (enum ibv_wr_opcode).
type WROpcode uint32

const (
	WRWrite              WROpcode = 0
	WRWriteWithImmediate WROpcode = 1
	WRSend               WROpcode = 2
	WRSendWithImmediate  WROpcode = 3
	WRRead               WROpcode = 4
	WRCompareSwap        WROpcode = 5
	WRFetchAdd           WROpcode = 6
	WRSendWithInvalidate WROpcode = 9
)

// A WCOpcode is what a completion is of (enum ibv_wc_opcode). It is only
// meaningful in a completion with StatusSuccess.
type WCOpcode uint32

const (
	WCSend                   WCOpcode = 0
	WCWrite                  WCOpcode = 1
	WCRead                   WCOpcode = 2
	WCCompareSwap            WCOpcode = 3
	WCFetchAdd               WCOpcode = 4
	WCRecv                   WCOpcode = 128
	WCRecvWriteWithImmediate WCOpcode = 129
)

// SendFlags modify a send work request (enum ibv_send_flags).
type SendFlags uint32

const (
	SendFence     SendFlags = 1 << 0
	SendSignaled  SendFlags = 1 << 1
	SendSolicited SendFlags = 1 << 2
	SendInline    SendFlags = 1 << 3
)

// WCFlags tell what a completion carries (enum ibv_wc_flags).
type WCFlags uint32

const (
	WCGlobalRoute     WCFlags = 1 << 0
	WCWithImmediate   WCFlags = 1 << 1
	WCWithInvalidated WCFlags = 1 << 3
)

// Access is the rights to a memory region (enum ibv_access_flags).
type Access uint32

const (
	AccessLocalWrite      Access = 1 << 0
	AccessRemoteWrite     Access = 1 << 1
	AccessRemoteRead      Access = 1 << 2
	AccessRemoteAtomic    Access = 1 << 3
	AccessHugePages       Access = 1 << 7
	AccessRelaxedOrdering Access = 1 << 20
)

// A Transport is the protocol family of a device (enum ibv_transport_type).
// RoCE belongs to InfiniBand here; the link layer of the port tells it apart.
type Transport int32

const (
	TransportUnknown    Transport = -1
	TransportInfiniBand Transport = 0
	TransportIWARP      Transport = 1
)

func (t Transport) String() string {
	switch t {
	case TransportInfiniBand:
		return "infiniband"
	case TransportIWARP:
		return "iwarp"
	}
	return fmt.Sprintf("transport %d", int32(t))
}

// A PortState tells whether a port can carry traffic (enum ibv_port_state).
type PortState uint32

const (
	PortNop         PortState = 0
	PortDown        PortState = 1
	PortInit        PortState = 2
	PortArmed       PortState = 3
	PortActive      PortState = 4
	PortActiveDefer PortState = 5
)

var portStateNames = []string{"no state", "down", "initializing", "armed", "active", "active (deferred)"}

func (s PortState) String() string { return name("port state", portStateNames, int(s)) }

// A LinkLayer is what a port's link is.
type LinkLayer uint8

const (
	LinkUnspecified LinkLayer = 0
	LinkInfiniBand  LinkLayer = 1
	LinkEthernet    LinkLayer = 2
)

func (l LinkLayer) String() string {
	return name("link layer", []string{"unspecified", "infiniband", "ethernet"}, int(l))
}

// An MTU is a path's largest packet payload (enum ibv_mtu).
type MTU uint32

// Bytes is the MTU in bytes; 0 if it is none.
func (m MTU) Bytes() int {
	if m < 1 || m > 5 {
		return 0
	}
	return 128 << m
}

// AtomicCap is how far a device's atomics reach (enum ibv_atomic_cap).
type AtomicCap uint32

const (
	AtomicNone   AtomicCap = 0
	AtomicDevice AtomicCap = 1 // atomic among the device's own queue pairs
	AtomicGlobal AtomicCap = 2 // atomic with the processors and other devices, too
)

// A QPState is a queue pair's state (enum ibv_qp_state).
type QPState uint32

const (
	QPReset          QPState = 0
	QPInit           QPState = 1
	QPReadyToReceive QPState = 2
	QPReadyToSend    QPState = 3
	QPSendDrained    QPState = 4
	QPSendError      QPState = 5
	QPError          QPState = 6
)

var qpStateNames = []string{"reset", "init", "ready to receive", "ready to send", "send queue drained", "send queue error", "error"}

func (s QPState) String() string { return name("queue pair state", qpStateNames, int(s)) }

// An AsyncEventType tells what happened to a device or one of its objects
// (enum ibv_event_type).
type AsyncEventType uint32

const (
	AsyncCQError          AsyncEventType = 0
	AsyncQPFatal          AsyncEventType = 1
	AsyncQPRequestError   AsyncEventType = 2
	AsyncQPAccessError    AsyncEventType = 3
	AsyncCommEstablished  AsyncEventType = 4
	AsyncSendQueueDrained AsyncEventType = 5
	AsyncPathMigrated     AsyncEventType = 6
	AsyncPathMigrateError AsyncEventType = 7
	AsyncDeviceFatal      AsyncEventType = 8
	AsyncPortActive       AsyncEventType = 9
	AsyncPortError        AsyncEventType = 10
	AsyncLIDChange        AsyncEventType = 11
	AsyncPKeyChange       AsyncEventType = 12
	AsyncSMChange         AsyncEventType = 13
	AsyncSRQError         AsyncEventType = 14
	AsyncSRQLimitReached  AsyncEventType = 15
	AsyncQPLastWQEReached AsyncEventType = 16
	AsyncClientReregister AsyncEventType = 17
	AsyncGIDChange        AsyncEventType = 18
	AsyncWQFatal          AsyncEventType = 19
)

var asyncNames = []string{
	"completion queue error", "queue pair fatal error", "queue pair request error", "queue pair access error",
	"communication established", "send queue drained", "path migrated", "path migration error", "device fatal error",
	"port active", "port error", "LID change", "P_Key change", "subnet manager change", "shared receive queue error",
	"shared receive queue limit reached", "last work request reached", "client reregister", "GID table change",
	"work queue fatal error",
}

func (t AsyncEventType) String() string { return name("async event", asyncNames, int(t)) }

// A CMEventType is what an event of the connection manager reports
// (enum rdma_cm_event_type).
type CMEventType uint32

const (
	CMAddrResolved    CMEventType = 0
	CMAddrError       CMEventType = 1
	CMRouteResolved   CMEventType = 2
	CMRouteError      CMEventType = 3
	CMConnectRequest  CMEventType = 4
	CMConnectResponse CMEventType = 5
	CMConnectError    CMEventType = 6
	CMUnreachable     CMEventType = 7
	CMRejected        CMEventType = 8
	CMEstablished     CMEventType = 9
	CMDisconnected    CMEventType = 10
	CMDeviceRemoval   CMEventType = 11
	CMMulticastJoin   CMEventType = 12
	CMMulticastError  CMEventType = 13
	CMAddrChange      CMEventType = 14
	CMTimewaitExit    CMEventType = 15
)

var cmNames = []string{
	"address resolved", "address error", "route resolved", "route error", "connect request", "connect response",
	"connect error", "unreachable", "rejected", "established", "disconnected", "device removal", "multicast join",
	"multicast error", "address change", "timewait exit",
}

func (t CMEventType) String() string { return name("connection manager event", cmNames, int(t)) }

func name(kind string, names []string, i int) string {
	if i >= 0 && i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s %d", kind, i)
}
