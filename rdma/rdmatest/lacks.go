package rdmatest

import (
	"path"

	"github.com/verbena-data/verbena/rdma"
)

// A Feature is something that a device may lack.
type Feature string

// The features. Those of package rdma's capabilities have their names.
const (
	FeatureSendImmediate    Feature = "send-immediate"
	FeatureWriteImmediate   Feature = "write-immediate"
	FeatureAtomics          Feature = "atomics"
	FeatureSharedReceive    Feature = "shared-receive"
	FeaturePolledWrites     Feature = "polled-writes"
	FeatureReceiverNotReady Feature = "receiver-not-ready"
	FeatureReceiverWaits    Feature = "receiver-waits"
	FeatureSendInvalidate   Feature = "send-invalidate"
	FeatureInline           Feature = "inline"
	// FeatureReadScatter is a Read with more than one local entry.
	FeatureReadScatter Feature = "read-scatter"
	// FeaturePrivateData is private data with Connect, Accept and Reject.
	FeaturePrivateData Feature = "private-data"
	// FeatureRandomKeys are keys that cannot be guessed.
	FeatureRandomKeys Feature = "random-keys"
	// FeatureRefusalReason makes Err wrap rdma.ErrRemoteAccess on the iWARP class.
	FeatureRefusalReason Feature = "refusal-reason"
	// FeatureLengthStatus tells a message that is too long by
	// rdma.StatusLocalLength at the receiver and, on the InfiniBand class,
	// rdma.StatusRemoteInvalid at the sender.
	FeatureLengthStatus Feature = "length-status"
	// FeatureReadRight refuses a Read of memory without rdma.AccessRemoteRead.
	FeatureReadRight Feature = "read-right"
	// FeatureRefusedReadStops delivers nothing that stands behind a refused Read.
	FeatureRefusedReadStops Feature = "refused-read-stops"
	// FeatureReadsBothWays lets both ends have fenced requests, or more Reads than
	// fit, waiting at the same time.
	FeatureReadsBothWays Feature = "reads-both-ways"
	// FeatureAtomicsOnce carries out an atomic once, whatever the network loses.
	FeatureAtomicsOnce Feature = "atomics-once"
	// FeatureFenceRepeated sends a fenced request again that the network has lost, or
	// that stands behind a Send whose receiver was not ready, whatever is behind it.
	FeatureFenceRepeated Feature = "fence-repeated"
	// FeatureWholeRefusal places nothing of a Write that is refused because it ends
	// outside of its target.
	FeatureWholeRefusal Feature = "whole-refusal"
	// FeatureDeathTold tells a peer that was killed by a disconnection, whatever
	// was under way: Err wraps rdma.ErrDisconnected. Without it a request that
	// reached into the peer's memory may have been refused just before.
	FeatureDeathTold Feature = "death-told"
	// FeatureSolicitedOnly tells solicited completions from others: who arms for
	// them alone is not woken by others.
	FeatureSolicitedOnly Feature = "solicited-only"
	// FeatureTargetFirst lets the target of a connection send before the
	// initiator has.
	FeatureTargetFirst Feature = "target-first"
	// FeatureAllocationFree posts and polls without allocating.
	FeatureAllocationFree Feature = "allocation-free"
	// FeaturePeer is a peer that the suite can kill and stop.
	FeaturePeer Feature = "peer"
	// FeatureMemory is direct access to the memory of a side, which a
	// [RemoteDevice] cannot give.
	FeatureMemory Feature = "memory"
)

// A Lack allows a device not to have a feature.
type Lack struct {
	Provider string // a pattern of path.Match for [rdma.Provider.Name]
	Device   string // one for [rdma.Attributes.Name]
	Feature  Feature
	Reason   string
}

const (
	iwarpImmediate = "immediate data is an extension of RFC 7306"
	iwarpAtomics   = "atomics are an extension of RFC 7306"
	iwarpRNR       = "iWARP has no receiver-not-ready: the peers keep count"
	iwarpRead      = "the sink of an iWARP Read is one STag"
	iwarpPolled    = "iWARP promises nothing before a Send is delivered"
)

// lacks is the table of what each provider and device may lack.
var lacks = []Lack{
	{"iwarp", "*", FeatureSendImmediate, iwarpImmediate},
	{"iwarp", "*", FeatureWriteImmediate, iwarpImmediate},
	{"iwarp", "*", FeatureAtomics, iwarpAtomics},
	{"iwarp", "*", FeatureReceiverNotReady, iwarpRNR},
	{"iwarp", "*", FeatureReadScatter, iwarpRead},
	{"iwarp", "*", FeaturePolledWrites, iwarpPolled},
	{"shm", "*", FeatureReceiverWaits, "the sender waits"},
	{"shm", "*", FeatureSendInvalidate, "a peer's mapping cannot be taken from it by a message"},
	{"ibverbs", "*", FeatureReceiverWaits, "the sender waits, or the connection fails"},
	{"ibverbs", "*", FeatureSendInvalidate, "the keys of a program's regions cannot be revoked by a peer, only those of memory windows"},
	{"ibverbs", "siw*", FeatureSendImmediate, iwarpImmediate},
	{"ibverbs", "siw*", FeatureWriteImmediate, iwarpImmediate},
	{"ibverbs", "siw*", FeatureAtomics, "the driver has none"},
	{"ibverbs", "siw*", FeatureReceiverNotReady, iwarpRNR},
	{"ibverbs", "siw*", FeatureReadScatter, iwarpRead},
	{"ibverbs", "siw*", FeaturePolledWrites, iwarpPolled},
	{"ibverbs", "siw*", FeatureRefusalReason, "the driver does not tell what the Terminate said"},
	{"ibverbs", "siw*", FeatureReadRight, "the driver does not look at the right"},
	{"ibverbs", "siw*", FeatureRefusedReadStops, "the driver looks at a Read when it answers it, and goes on receiving meanwhile"},
	{"ibverbs", "siw*", FeatureReadsBothWays, "the driver answers no Read while its own request waits for one, so both ends can wait for ever"},
	{"ibverbs", "siw*", FeatureWholeRefusal, "each segment of a Write is placed or refused by itself (RFC 5041)"},
	{"ibverbs", "siw*", FeatureSolicitedOnly, "the driver raises no solicited events for receives, so all are asked for"},
	{"ibverbs", "rxe*", FeatureLengthStatus, "the driver reports operation errors of the two queue pairs"},
	{"ibverbs", "rxe*", FeatureAtomicsOnce, "if an atomic's answer and the next packet are lost, the driver takes the complaint about the packet for the answer (Linux 6.1, rxe_comp.c, check_ack), and repeats the atomic as a new one"},
	{"ibverbs", "rxe*", FeatureFenceRepeated, "when the driver repeats a fenced request, after a loss or because the receiver was not ready, it has it wait for all Reads and atomics, its own and those behind it that were sent before: for ever"},
	{"ibverbs", "rxe*", FeatureDeathTold, "the kernel frees what a dead process had the last made first, often the regions before the queue pairs, which refuse accesses for that moment"},
	{"ibverbs", "*", FeatureRandomKeys, "the driver chooses the keys"},
	{"*", "*", FeatureMemory, "a side in another process has its memory there"},
}

// allowed tells whether and why a device may lack f.
func (s *Suite) allowed(a rdma.Attributes, f Feature) (reason string, ok bool) {
	for _, table := range [][]Lack{lacks, s.MayLack} {
		for _, l := range table {
			provider, _ := path.Match(l.Provider, a.Provider)
			device, _ := path.Match(l.Device, a.Name)
			if provider && device && l.Feature == f {
				return l.Reason, true
			}
		}
	}
	return "", false
}
