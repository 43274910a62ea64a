//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import "unsafe"

// The structures of libibverbs and librdmacm, by offset in bytes. Those that
// are only ever written and read by this side and hold nothing whose size
// differs between platforms are Go structures (see SendWR, RecvWR, SGE, WC); the
// others are reached through these offsets. What differs between amd64 and
// arm64 is in the files of these names.
const (
	offContextDevice         = 0
	offContextPollCQ         = 96
	offContextReqNotifyCQ    = 104
	offContextPostSRQRecv    = 168
	offContextPostSend       = 208
	offContextPostRecv       = 216
	offContextCmdFD          = 264
	offContextAsyncFD        = 268
	offContextNumCompVectors = 272

	offDeviceNodeType  = 16
	offDeviceTransport = 20
	offDeviceName      = 24
	offDeviceDevName   = 88
	sizeDeviceName     = 64

	offPDContext = 0

	offMRAddr   = 16
	offMRLength = 24
	offMRLKey   = 36
	offMRRKey   = 40

	offCompChannelFD = 8

	offCQContext   = 0
	offCQCQContext = 16
	offCQCQE       = 28

	offSRQContext    = 0
	offSRQSRQContext = 8

	offQPContext   = 0
	offQPQPContext = 8
	offQPNumber    = 52

	sizeDeviceAttr             = 232
	offDeviceAttrFWVer         = 0
	offDeviceAttrNodeGUID      = 64
	offDeviceAttrMaxMRSize     = 80
	offDeviceAttrVendorID      = 96
	offDeviceAttrVendorPartID  = 100
	offDeviceAttrHWVer         = 104
	offDeviceAttrMaxQP         = 108
	offDeviceAttrMaxQPWR       = 112
	offDeviceAttrCapFlags      = 116
	offDeviceAttrMaxSGE        = 120
	offDeviceAttrMaxSGERD      = 124
	offDeviceAttrMaxCQ         = 128
	offDeviceAttrMaxCQE        = 132
	offDeviceAttrMaxMR         = 136
	offDeviceAttrMaxPD         = 140
	offDeviceAttrMaxQPRDAtom   = 144
	offDeviceAttrMaxInitRDAtom = 156
	offDeviceAttrAtomicCap     = 164
	offDeviceAttrMaxSRQ        = 208
	offDeviceAttrMaxSRQWR      = 212
	offDeviceAttrMaxSRQSGE     = 216
	offDeviceAttrPhysPortCnt   = 223

	sizePortAttr           = 56 // room; the header's is smaller
	offPortAttrState       = 0
	offPortAttrMaxMTU      = 4
	offPortAttrActiveMTU   = 8
	offPortAttrGIDTblLen   = 12
	offPortAttrMaxMsgSize  = 20
	offPortAttrLID         = 34
	offPortAttrActiveWidth = 43
	offPortAttrActiveSpeed = 44
	offPortAttrPhysState   = 45
	offPortAttrLinkLayer   = 46

	sizeQPInitAttr         = 64
	offQPInitAttrQPContext = 0
	offQPInitAttrSendCQ    = 8
	offQPInitAttrRecvCQ    = 16
	offQPInitAttrSRQ       = 24
	offQPInitAttrCap       = 32
	offQPInitAttrQPType    = 52
	offQPInitAttrSQSigAll  = 56

	offQPCapMaxSendWR  = 0
	offQPCapMaxRecvWR  = 4
	offQPCapMaxSendSGE = 8
	offQPCapMaxRecvSGE = 12
	offQPCapMaxInline  = 16

	sizeQPAttr               = 144
	offQPAttrState           = 0
	offQPAttrAccessFlags     = 32
	offQPAttrPKeyIndex       = 120
	offQPAttrMaxRDAtomic     = 126
	offQPAttrMaxDestRDAtomic = 127
	offQPAttrPortNum         = 129
	offQPAttrTimeout         = 130
	offQPAttrRetryCnt        = 131
	offQPAttrRNRRetry        = 132
	offQPAttrMinRNRTimer     = 128

	sizeSRQInitAttr          = 24
	offSRQInitAttrSRQContext = 0
	offSRQInitAttrAttr       = 8
	sizeSRQAttr              = 12
	offSRQAttrMaxWR          = 0
	offSRQAttrMaxSGE         = 4
	offSRQAttrLimit          = 8

	sizeAsyncEvent       = 16
	offAsyncEventElement = 0
	offAsyncEventType    = 8

	offCMIDVerbs   = 0
	offCMIDChannel = 8
	offCMIDContext = 16
	offCMIDQP      = 24
	offCMIDRoute   = 32
	offCMIDSrcAddr = 32  // route.addr.src_storage
	offCMIDDstAddr = 160 // route.addr.dst_storage
	offCMIDPortNum = 348
	offCMIDEvent   = 352
	offCMIDPD      = 400

	offCMEventID       = 0
	offCMEventListenID = 8
	offCMEventType     = 16
	offCMEventStatus   = 20
	offCMEventParam    = 24

	sizeConnParam                  = 24
	offConnParamPrivateData        = 0
	offConnParamPrivateDataLen     = 8
	offConnParamResponderResources = 9
	offConnParamInitiatorDepth     = 10
	offConnParamFlowControl        = 11
	offConnParamRetryCount         = 12
	offConnParamRNRRetryCount      = 13
	offConnParamSRQ                = 14
	offConnParamQPNum              = 16

	offEventChannelFD = 0
)

// Constants that the calls take.
const (
	qpTypeRC       = 2
	portSpaceTCP   = 0x0106
	maskQPState    = 1 << 0
	maskQPAccess   = 1 << 3
	maskQPPKey     = 1 << 4
	maskQPPort     = 1 << 5
	maskQPTimeout  = 1 << 9
	maskQPRetryCnt = 1 << 10
	maskQPRNRRetry = 1 << 11
	maskQPMinRNR   = 1 << 15
	maskQPCap      = 1 << 19
	maskSRQLimit   = 1 << 1

	optionLevelID      = 0
	optionIDTOS        = 0
	optionIDReuseAddr  = 1
	optionIDAFOnly     = 2
	optionIDAckTimeout = 3
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
