package verbs

import "fmt"

// A Status is the outcome of a work request (enum ibv_wc_status).
type Status uint32

// The statuses that reliable-connected queue pairs report.
const (
	StatusSuccess                Status = 0  // IBV_WC_SUCCESS
	StatusLocalLength            Status = 1  // IBV_WC_LOC_LEN_ERR
	StatusLocalQPOperation       Status = 2  // IBV_WC_LOC_QP_OP_ERR
	StatusLocalEECOperation      Status = 3  // IBV_WC_LOC_EEC_OP_ERR
	StatusLocalProtection        Status = 4  // IBV_WC_LOC_PROT_ERR
	StatusFlushed                Status = 5  // IBV_WC_WR_FLUSH_ERR
	StatusMWBind                 Status = 6  // IBV_WC_MW_BIND_ERR
	StatusBadResponse            Status = 7  // IBV_WC_BAD_RESP_ERR
	StatusLocalAccess            Status = 8  // IBV_WC_LOC_ACCESS_ERR
	StatusRemoteInvalidRequest   Status = 9  // IBV_WC_REM_INV_REQ_ERR
	StatusRemoteAccess           Status = 10 // IBV_WC_REM_ACCESS_ERR
	StatusRemoteOperation        Status = 11 // IBV_WC_REM_OP_ERR
	StatusRetryExceeded          Status = 12 // IBV_WC_RETRY_EXC_ERR
	StatusReceiverNotReady       Status = 13 // IBV_WC_RNR_RETRY_EXC_ERR
	StatusLocalRDDViolation      Status = 14 // IBV_WC_LOC_RDD_VIOL_ERR
	StatusRemoteInvalidRDRequest Status = 15 // IBV_WC_REM_INV_RD_REQ_ERR
	StatusRemoteAborted          Status = 16 // IBV_WC_REM_ABORT_ERR
	StatusInvalidEEC             Status = 17 // IBV_WC_INV_EECN_ERR
	StatusInvalidEECState        Status = 18 // IBV_WC_INV_EEC_STATE_ERR
	StatusFatal                  Status = 19 // IBV_WC_FATAL_ERR
	StatusResponseTimeout        Status = 20 // IBV_WC_RESP_TIMEOUT_ERR
	StatusGeneral                Status = 21 // IBV_WC_GENERAL_ERR
	StatusTagMatching            Status = 22 // IBV_WC_TM_ERR
	StatusTagMatchingIncomplete  Status = 23 // IBV_WC_TM_RNDV_INCOMPLETE
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
	WRWrite              WROpcode = 0 // IBV_WR_RDMA_WRITE
	WRWriteWithImmediate WROpcode = 1 // IBV_WR_RDMA_WRITE_WITH_IMM
	WRSend               WROpcode = 2 // IBV_WR_SEND
	WRSendWithImmediate  WROpcode = 3 // IBV_WR_SEND_WITH_IMM
	WRRead               WROpcode = 4 // IBV_WR_RDMA_READ
	WRCompareSwap        WROpcode = 5 // IBV_WR_ATOMIC_CMP_AND_SWP
	WRFetchAdd           WROpcode = 6 // IBV_WR_ATOMIC_FETCH_AND_ADD
	WRSendWithInvalidate WROpcode = 9 // IBV_WR_SEND_WITH_INV
)

// A WCOpcode is what a completion is of (enum ibv_wc_opcode). It is only
// meaningful in a completion with StatusSuccess.
type WCOpcode uint32

const (
	WCSend                   WCOpcode = 0   // IBV_WC_SEND
	WCWrite                  WCOpcode = 1   // IBV_WC_RDMA_WRITE
	WCRead                   WCOpcode = 2   // IBV_WC_RDMA_READ
	WCCompareSwap            WCOpcode = 3   // IBV_WC_COMP_SWAP
	WCFetchAdd               WCOpcode = 4   // IBV_WC_FETCH_ADD
	WCRecv                   WCOpcode = 128 // IBV_WC_RECV
	WCRecvWriteWithImmediate WCOpcode = 129 // IBV_WC_RECV_RDMA_WITH_IMM
)

// SendFlags modify a send work request (enum ibv_send_flags).
type SendFlags uint32

const (
	SendFence     SendFlags = 1 << 0 // IBV_SEND_FENCE
	SendSignaled  SendFlags = 1 << 1 // IBV_SEND_SIGNALED
	SendSolicited SendFlags = 1 << 2 // IBV_SEND_SOLICITED
	SendInline    SendFlags = 1 << 3 // IBV_SEND_INLINE
)

// WCFlags tell what a completion carries (enum ibv_wc_flags).
type WCFlags uint32

const (
	WCGlobalRoute     WCFlags = 1 << 0 // IBV_WC_GRH
	WCWithImmediate   WCFlags = 1 << 1 // IBV_WC_WITH_IMM
	WCWithInvalidated WCFlags = 1 << 3 // IBV_WC_WITH_INV
)

// Access is the rights to a memory region (enum ibv_access_flags).
type Access uint32

const (
	AccessLocalWrite      Access = 1 << 0  // IBV_ACCESS_LOCAL_WRITE
	AccessRemoteWrite     Access = 1 << 1  // IBV_ACCESS_REMOTE_WRITE
	AccessRemoteRead      Access = 1 << 2  // IBV_ACCESS_REMOTE_READ
	AccessRemoteAtomic    Access = 1 << 3  // IBV_ACCESS_REMOTE_ATOMIC
	AccessHugePages       Access = 1 << 7  // IBV_ACCESS_HUGETLB
	AccessRelaxedOrdering Access = 1 << 20 // IBV_ACCESS_RELAXED_ORDERING
)

// A Transport is the protocol family of a device (enum ibv_transport_type).
// RoCE belongs to InfiniBand here; the link layer of the port tells it apart.
type Transport int32

const (
	TransportUnknown    Transport = -1 // IBV_TRANSPORT_UNKNOWN
	TransportInfiniBand Transport = 0  // IBV_TRANSPORT_IB
	TransportIWARP      Transport = 1  // IBV_TRANSPORT_IWARP
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
	PortNop         PortState = 0 // IBV_PORT_NOP
	PortDown        PortState = 1 // IBV_PORT_DOWN
	PortInit        PortState = 2 // IBV_PORT_INIT
	PortArmed       PortState = 3 // IBV_PORT_ARMED
	PortActive      PortState = 4 // IBV_PORT_ACTIVE
	PortActiveDefer PortState = 5 // IBV_PORT_ACTIVE_DEFER
)

var portStateNames = []string{"no state", "down", "initializing", "armed", "active", "active (deferred)"}

func (s PortState) String() string { return name("port state", portStateNames, int(s)) }

// A LinkLayer is what a port's link is.
type LinkLayer uint8

const (
	LinkUnspecified LinkLayer = 0 // IBV_LINK_LAYER_UNSPECIFIED
	LinkInfiniBand  LinkLayer = 1 // IBV_LINK_LAYER_INFINIBAND
	LinkEthernet    LinkLayer = 2 // IBV_LINK_LAYER_ETHERNET
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
	AtomicNone AtomicCap = 0 // IBV_ATOMIC_NONE
	// AtomicDevice is atomic among the device's own queue pairs, AtomicGlobal with
	// the processors and other devices, too.
	AtomicDevice AtomicCap = 1 // IBV_ATOMIC_HCA
	AtomicGlobal AtomicCap = 2 // IBV_ATOMIC_GLOB
)

// A QPState is a queue pair's state (enum ibv_qp_state).
type QPState uint32

const (
	QPReset          QPState = 0 // IBV_QPS_RESET
	QPInit           QPState = 1 // IBV_QPS_INIT
	QPReadyToReceive QPState = 2 // IBV_QPS_RTR
	QPReadyToSend    QPState = 3 // IBV_QPS_RTS
	QPSendDrained    QPState = 4 // IBV_QPS_SQD
	QPSendError      QPState = 5 // IBV_QPS_SQE
	QPError          QPState = 6 // IBV_QPS_ERR
)

var qpStateNames = []string{"reset", "init", "ready to receive", "ready to send", "send queue drained", "send queue error", "error"}

func (s QPState) String() string { return name("queue pair state", qpStateNames, int(s)) }

// An AsyncEventType tells what happened to a device or one of its objects
// (enum ibv_event_type).
type AsyncEventType uint32

const (
	AsyncCQError          AsyncEventType = 0  // IBV_EVENT_CQ_ERR
	AsyncQPFatal          AsyncEventType = 1  // IBV_EVENT_QP_FATAL
	AsyncQPRequestError   AsyncEventType = 2  // IBV_EVENT_QP_REQ_ERR
	AsyncQPAccessError    AsyncEventType = 3  // IBV_EVENT_QP_ACCESS_ERR
	AsyncCommEstablished  AsyncEventType = 4  // IBV_EVENT_COMM_EST
	AsyncSendQueueDrained AsyncEventType = 5  // IBV_EVENT_SQ_DRAINED
	AsyncPathMigrated     AsyncEventType = 6  // IBV_EVENT_PATH_MIG
	AsyncPathMigrateError AsyncEventType = 7  // IBV_EVENT_PATH_MIG_ERR
	AsyncDeviceFatal      AsyncEventType = 8  // IBV_EVENT_DEVICE_FATAL
	AsyncPortActive       AsyncEventType = 9  // IBV_EVENT_PORT_ACTIVE
	AsyncPortError        AsyncEventType = 10 // IBV_EVENT_PORT_ERR
	AsyncLIDChange        AsyncEventType = 11 // IBV_EVENT_LID_CHANGE
	AsyncPKeyChange       AsyncEventType = 12 // IBV_EVENT_PKEY_CHANGE
	AsyncSMChange         AsyncEventType = 13 // IBV_EVENT_SM_CHANGE
	AsyncSRQError         AsyncEventType = 14 // IBV_EVENT_SRQ_ERR
	AsyncSRQLimitReached  AsyncEventType = 15 // IBV_EVENT_SRQ_LIMIT_REACHED
	AsyncQPLastWQEReached AsyncEventType = 16 // IBV_EVENT_QP_LAST_WQE_REACHED
	AsyncClientReregister AsyncEventType = 17 // IBV_EVENT_CLIENT_REREGISTER
	AsyncGIDChange        AsyncEventType = 18 // IBV_EVENT_GID_CHANGE
	AsyncWQFatal          AsyncEventType = 19 // IBV_EVENT_WQ_FATAL
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
	CMAddrResolved    CMEventType = 0  // RDMA_CM_EVENT_ADDR_RESOLVED
	CMAddrError       CMEventType = 1  // RDMA_CM_EVENT_ADDR_ERROR
	CMRouteResolved   CMEventType = 2  // RDMA_CM_EVENT_ROUTE_RESOLVED
	CMRouteError      CMEventType = 3  // RDMA_CM_EVENT_ROUTE_ERROR
	CMConnectRequest  CMEventType = 4  // RDMA_CM_EVENT_CONNECT_REQUEST
	CMConnectResponse CMEventType = 5  // RDMA_CM_EVENT_CONNECT_RESPONSE
	CMConnectError    CMEventType = 6  // RDMA_CM_EVENT_CONNECT_ERROR
	CMUnreachable     CMEventType = 7  // RDMA_CM_EVENT_UNREACHABLE
	CMRejected        CMEventType = 8  // RDMA_CM_EVENT_REJECTED
	CMEstablished     CMEventType = 9  // RDMA_CM_EVENT_ESTABLISHED
	CMDisconnected    CMEventType = 10 // RDMA_CM_EVENT_DISCONNECTED
	CMDeviceRemoval   CMEventType = 11 // RDMA_CM_EVENT_DEVICE_REMOVAL
	CMMulticastJoin   CMEventType = 12 // RDMA_CM_EVENT_MULTICAST_JOIN
	CMMulticastError  CMEventType = 13 // RDMA_CM_EVENT_MULTICAST_ERROR
	CMAddrChange      CMEventType = 14 // RDMA_CM_EVENT_ADDR_CHANGE
	CMTimewaitExit    CMEventType = 15 // RDMA_CM_EVENT_TIMEWAIT_EXIT
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
