//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import "unsafe"

// The structures of libibverbs and librdmacm, by offset and size in bytes, each
// with the C expression that it stands for; a test evaluates the expressions
// against the installed headers. All the fields that are used lie before the
// first one whose size differs between amd64 and arm64 (the pthread types in
// contexts and queues), so that one table does for both.
//
// Structures of the data path, which hold nothing of that kind, are Go structures
// of the same layout instead: SendWR, RecvWR, SGE and WC, checked by the same test.
const (
	offContextDevice         = 0   // offsetof(struct ibv_context, device)
	offContextPollCQ         = 96  // offsetof(struct ibv_context, ops.poll_cq)
	offContextReqNotifyCQ    = 104 // offsetof(struct ibv_context, ops.req_notify_cq)
	offContextPostSRQRecv    = 168 // offsetof(struct ibv_context, ops.post_srq_recv)
	offContextPostSend       = 208 // offsetof(struct ibv_context, ops.post_send)
	offContextPostRecv       = 216 // offsetof(struct ibv_context, ops.post_recv)
	offContextCmdFD          = 264 // offsetof(struct ibv_context, cmd_fd)
	offContextAsyncFD        = 268 // offsetof(struct ibv_context, async_fd)
	offContextNumCompVectors = 272 // offsetof(struct ibv_context, num_comp_vectors)

	offDeviceTransport = 20 // offsetof(struct ibv_device, transport_type)
	offDeviceName      = 24 // offsetof(struct ibv_device, name)
	offDeviceDevName   = 88 // offsetof(struct ibv_device, dev_name)
	sizeDeviceName     = 64 // sizeof(((struct ibv_device *)0)->name)

	offPDContext = 0 // offsetof(struct ibv_pd, context)

	offMRContext = 0  // offsetof(struct ibv_mr, context)
	offMRPD      = 8  // offsetof(struct ibv_mr, pd)
	offMRAddr    = 16 // offsetof(struct ibv_mr, addr)
	offMRLength  = 24 // offsetof(struct ibv_mr, length)
	offMRLKey    = 36 // offsetof(struct ibv_mr, lkey)
	offMRRKey    = 40 // offsetof(struct ibv_mr, rkey)

	offCompChannelContext = 0 // offsetof(struct ibv_comp_channel, context)
	offCompChannelFD      = 8 // offsetof(struct ibv_comp_channel, fd)

	offCQContext   = 0  // offsetof(struct ibv_cq, context)
	offCQChannel   = 8  // offsetof(struct ibv_cq, channel)
	offCQCQContext = 16 // offsetof(struct ibv_cq, cq_context)
	offCQCQE       = 28 // offsetof(struct ibv_cq, cqe)

	offSRQContext    = 0  // offsetof(struct ibv_srq, context)
	offSRQSRQContext = 8  // offsetof(struct ibv_srq, srq_context)
	offSRQPD         = 16 // offsetof(struct ibv_srq, pd)

	offQPContext   = 0  // offsetof(struct ibv_qp, context)
	offQPQPContext = 8  // offsetof(struct ibv_qp, qp_context)
	offQPPD        = 16 // offsetof(struct ibv_qp, pd)
	offQPSendCQ    = 24 // offsetof(struct ibv_qp, send_cq)
	offQPRecvCQ    = 32 // offsetof(struct ibv_qp, recv_cq)
	offQPSRQ       = 40 // offsetof(struct ibv_qp, srq)
	offQPNumber    = 52 // offsetof(struct ibv_qp, qp_num)
	offQPState     = 56 // offsetof(struct ibv_qp, state)
	offQPType      = 60 // offsetof(struct ibv_qp, qp_type)

	sizeDeviceAttr             = 232 // sizeof(struct ibv_device_attr)
	offDeviceAttrFWVer         = 0   // offsetof(struct ibv_device_attr, fw_ver)
	offDeviceAttrNodeGUID      = 64  // offsetof(struct ibv_device_attr, node_guid)
	offDeviceAttrMaxMRSize     = 80  // offsetof(struct ibv_device_attr, max_mr_size)
	offDeviceAttrVendorID      = 96  // offsetof(struct ibv_device_attr, vendor_id)
	offDeviceAttrVendorPartID  = 100 // offsetof(struct ibv_device_attr, vendor_part_id)
	offDeviceAttrHWVer         = 104 // offsetof(struct ibv_device_attr, hw_ver)
	offDeviceAttrMaxQP         = 108 // offsetof(struct ibv_device_attr, max_qp)
	offDeviceAttrMaxQPWR       = 112 // offsetof(struct ibv_device_attr, max_qp_wr)
	offDeviceAttrCapFlags      = 116 // offsetof(struct ibv_device_attr, device_cap_flags)
	offDeviceAttrMaxSGE        = 120 // offsetof(struct ibv_device_attr, max_sge)
	offDeviceAttrMaxSGERD      = 124 // offsetof(struct ibv_device_attr, max_sge_rd)
	offDeviceAttrMaxCQ         = 128 // offsetof(struct ibv_device_attr, max_cq)
	offDeviceAttrMaxCQE        = 132 // offsetof(struct ibv_device_attr, max_cqe)
	offDeviceAttrMaxMR         = 136 // offsetof(struct ibv_device_attr, max_mr)
	offDeviceAttrMaxPD         = 140 // offsetof(struct ibv_device_attr, max_pd)
	offDeviceAttrMaxQPRDAtom   = 144 // offsetof(struct ibv_device_attr, max_qp_rd_atom)
	offDeviceAttrMaxInitRDAtom = 156 // offsetof(struct ibv_device_attr, max_qp_init_rd_atom)
	offDeviceAttrAtomicCap     = 164 // offsetof(struct ibv_device_attr, atomic_cap)
	offDeviceAttrMaxSRQ        = 212 // offsetof(struct ibv_device_attr, max_srq)
	offDeviceAttrMaxSRQWR      = 216 // offsetof(struct ibv_device_attr, max_srq_wr)
	offDeviceAttrMaxSRQSGE     = 220 // offsetof(struct ibv_device_attr, max_srq_sge)
	offDeviceAttrPhysPortCnt   = 227 // offsetof(struct ibv_device_attr, phys_port_cnt)

	sizePortAttr           = 52 // sizeof(struct ibv_port_attr)
	offPortAttrState       = 0  // offsetof(struct ibv_port_attr, state)
	offPortAttrMaxMTU      = 4  // offsetof(struct ibv_port_attr, max_mtu)
	offPortAttrActiveMTU   = 8  // offsetof(struct ibv_port_attr, active_mtu)
	offPortAttrGIDTblLen   = 12 // offsetof(struct ibv_port_attr, gid_tbl_len)
	offPortAttrMaxMsgSize  = 20 // offsetof(struct ibv_port_attr, max_msg_sz)
	offPortAttrLID         = 34 // offsetof(struct ibv_port_attr, lid)
	offPortAttrActiveWidth = 43 // offsetof(struct ibv_port_attr, active_width)
	offPortAttrActiveSpeed = 44 // offsetof(struct ibv_port_attr, active_speed)
	offPortAttrPhysState   = 45 // offsetof(struct ibv_port_attr, phys_state)
	offPortAttrLinkLayer   = 46 // offsetof(struct ibv_port_attr, link_layer)

	sizeQPInitAttr         = 64 // sizeof(struct ibv_qp_init_attr)
	offQPInitAttrQPContext = 0  // offsetof(struct ibv_qp_init_attr, qp_context)
	offQPInitAttrSendCQ    = 8  // offsetof(struct ibv_qp_init_attr, send_cq)
	offQPInitAttrRecvCQ    = 16 // offsetof(struct ibv_qp_init_attr, recv_cq)
	offQPInitAttrSRQ       = 24 // offsetof(struct ibv_qp_init_attr, srq)
	offQPInitAttrCap       = 32 // offsetof(struct ibv_qp_init_attr, cap)
	offQPInitAttrQPType    = 52 // offsetof(struct ibv_qp_init_attr, qp_type)
	offQPInitAttrSQSigAll  = 56 // offsetof(struct ibv_qp_init_attr, sq_sig_all)

	offQPCapMaxSendWR  = 0  // offsetof(struct ibv_qp_cap, max_send_wr)
	offQPCapMaxRecvWR  = 4  // offsetof(struct ibv_qp_cap, max_recv_wr)
	offQPCapMaxSendSGE = 8  // offsetof(struct ibv_qp_cap, max_send_sge)
	offQPCapMaxRecvSGE = 12 // offsetof(struct ibv_qp_cap, max_recv_sge)
	offQPCapMaxInline  = 16 // offsetof(struct ibv_qp_cap, max_inline_data)

	sizeQPAttr               = 144 // sizeof(struct ibv_qp_attr)
	offQPAttrState           = 0   // offsetof(struct ibv_qp_attr, qp_state)
	offQPAttrAccessFlags     = 32  // offsetof(struct ibv_qp_attr, qp_access_flags)
	offQPAttrPKeyIndex       = 120 // offsetof(struct ibv_qp_attr, pkey_index)
	offQPAttrMaxRDAtomic     = 126 // offsetof(struct ibv_qp_attr, max_rd_atomic)
	offQPAttrMaxDestRDAtomic = 127 // offsetof(struct ibv_qp_attr, max_dest_rd_atomic)
	offQPAttrMinRNRTimer     = 128 // offsetof(struct ibv_qp_attr, min_rnr_timer)
	offQPAttrPortNum         = 129 // offsetof(struct ibv_qp_attr, port_num)
	offQPAttrTimeout         = 130 // offsetof(struct ibv_qp_attr, timeout)
	offQPAttrRetryCnt        = 131 // offsetof(struct ibv_qp_attr, retry_cnt)
	offQPAttrRNRRetry        = 132 // offsetof(struct ibv_qp_attr, rnr_retry)

	sizeSRQInitAttr          = 24 // sizeof(struct ibv_srq_init_attr)
	offSRQInitAttrSRQContext = 0  // offsetof(struct ibv_srq_init_attr, srq_context)
	offSRQInitAttrAttr       = 8  // offsetof(struct ibv_srq_init_attr, attr)

	sizeSRQAttr      = 12 // sizeof(struct ibv_srq_attr)
	offSRQAttrMaxWR  = 0  // offsetof(struct ibv_srq_attr, max_wr)
	offSRQAttrMaxSGE = 4  // offsetof(struct ibv_srq_attr, max_sge)
	offSRQAttrLimit  = 8  // offsetof(struct ibv_srq_attr, srq_limit)

	sizeAsyncEvent       = 16 // sizeof(struct ibv_async_event)
	offAsyncEventElement = 0  // offsetof(struct ibv_async_event, element)
	offAsyncEventType    = 8  // offsetof(struct ibv_async_event, event_type)

	offCMIDVerbs   = 0   // offsetof(struct rdma_cm_id, verbs)
	offCMIDChannel = 8   // offsetof(struct rdma_cm_id, channel)
	offCMIDContext = 16  // offsetof(struct rdma_cm_id, context)
	offCMIDQP      = 24  // offsetof(struct rdma_cm_id, qp)
	offCMIDSrcAddr = 32  // offsetof(struct rdma_cm_id, route.addr.src_storage)
	offCMIDDstAddr = 160 // offsetof(struct rdma_cm_id, route.addr.dst_storage)
	offCMIDPortNum = 348 // offsetof(struct rdma_cm_id, port_num)
	offCMIDEvent   = 352 // offsetof(struct rdma_cm_id, event)

	offCMEventID       = 0  // offsetof(struct rdma_cm_event, id)
	offCMEventListenID = 8  // offsetof(struct rdma_cm_event, listen_id)
	offCMEventType     = 16 // offsetof(struct rdma_cm_event, event)
	offCMEventStatus   = 20 // offsetof(struct rdma_cm_event, status)
	offCMEventParam    = 24 // offsetof(struct rdma_cm_event, param)

	sizeConnParam                  = 24 // sizeof(struct rdma_conn_param)
	offConnParamPrivateData        = 0  // offsetof(struct rdma_conn_param, private_data)
	offConnParamPrivateDataLen     = 8  // offsetof(struct rdma_conn_param, private_data_len)
	offConnParamResponderResources = 9  // offsetof(struct rdma_conn_param, responder_resources)
	offConnParamInitiatorDepth     = 10 // offsetof(struct rdma_conn_param, initiator_depth)
	offConnParamFlowControl        = 11 // offsetof(struct rdma_conn_param, flow_control)
	offConnParamRetryCount         = 12 // offsetof(struct rdma_conn_param, retry_count)
	offConnParamRNRRetryCount      = 13 // offsetof(struct rdma_conn_param, rnr_retry_count)
	offConnParamSRQ                = 14 // offsetof(struct rdma_conn_param, srq)
	offConnParamQPNum              = 16 // offsetof(struct rdma_conn_param, qp_num)

	offEventChannelFD = 0 // offsetof(struct rdma_event_channel, fd)
)

// Constants that the calls take.
const (
	qpTypeRC              = 2       // IBV_QPT_RC
	portSpaceTCP          = 0x0106  // RDMA_PS_TCP
	maskQPState           = 1 << 0  // IBV_QP_STATE
	maskQPAccess          = 1 << 3  // IBV_QP_ACCESS_FLAGS
	maskQPPKey            = 1 << 4  // IBV_QP_PKEY_INDEX
	maskQPPort            = 1 << 5  // IBV_QP_PORT
	maskQPTimeout         = 1 << 9  // IBV_QP_TIMEOUT
	maskQPRetryCnt        = 1 << 10 // IBV_QP_RETRY_CNT
	maskQPRNRRetry        = 1 << 11 // IBV_QP_RNR_RETRY
	maskQPMinRNR          = 1 << 15 // IBV_QP_MIN_RNR_TIMER
	maskQPMaxRDAtomic     = 1 << 13 // IBV_QP_MAX_QP_RD_ATOMIC
	maskQPMaxDestRDAtomic = 1 << 17 // IBV_QP_MAX_DEST_RD_ATOMIC
	maskQPCap             = 1 << 19 // IBV_QP_CAP
	maskSRQLimit          = 1 << 1  // IBV_SRQ_LIMIT
	optionLevelID         = 0       // RDMA_OPTION_ID
	optionIDTOS           = 0       // RDMA_OPTION_ID_TOS
	optionIDReuseAddr     = 1       // RDMA_OPTION_ID_REUSEADDR
	optionIDAckTimeout    = 3       // RDMA_OPTION_ID_ACK_TIMEOUT
	sizeSockaddrIn6       = 28      // sizeof(struct sockaddr_in6)
)

// at is the field of type T at base+offset in C's memory.
//
//go:nosplit
func at[T any](base, offset uintptr) *T {
	address := base + offset
	return *(**T)(unsafe.Pointer(&address))
}

// bytesAt is n bytes of C's memory.
//
//go:noinline
func bytesAt(base uintptr, n int) []byte {
	return unsafe.Slice(at[byte](base, 0), n)
}

// stringAt is a string of at most limit bytes that ends with a zero.
func stringAt(base uintptr, limit int) string {
	b := bytesAt(base, limit)
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
