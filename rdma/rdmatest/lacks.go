package rdmatest

// A Feature is something that a device may lack.
type Feature string

const (
	FeatureSendImmediate    Feature = "send-immediate"
	FeatureWriteImmediate   Feature = "write-immediate"
	FeatureAtomics          Feature = "atomics"
	FeatureSharedReceive    Feature = "shared-receive"
	FeaturePolledWrites     Feature = "polled-writes"
	FeatureReceiverNotReady Feature = "receiver-not-ready"
	FeatureInline           Feature = "inline"
	// FeatureReadScatter is a Read with more than one local entry.
	FeatureReadScatter Feature = "read-scatter"
	// FeaturePrivateData is private data with Connect, Accept and Reject.
	FeaturePrivateData Feature = "private-data"
	// FeatureOverrun is the detection of completion queue overruns.
	FeatureOverrun Feature = "overrun"
	// FeatureRefusalReason makes Err wrap rdma.ErrRemoteAccess on the iWARP class.
	FeatureRefusalReason Feature = "refusal-reason"
	// FeaturePeer is a peer that the suite can kill and stop.
	FeaturePeer Feature = "peer"
	// FeatureMemory is direct access to the memory of a side, which a
	// [RemoteDevice] cannot give.
	FeatureMemory Feature = "memory"
)

// A Lack allows a device not to have a feature.
type Lack struct {
	Provider string // [rdma.Provider.Name]; "*" matches any
	Device   string // a pattern of path.Match for [rdma.Attributes.Name]
	Feature  Feature
	Reason   string
}

// lacks is the table of what each provider and device may lack.
var lacks = []Lack{
	{"shm", "*", "", ""},
}
