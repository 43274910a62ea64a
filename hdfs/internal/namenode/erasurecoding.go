package namenode

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// Erasure coding is not there: every policy of HDFS is known and disabled, which HDFS
// itself can be told, and none can be enabled.
func (nn *NameNode) erasureMethods() rpc.Methods {
	return rpc.Methods{
		"addErasureCodingPolicies":       rpc.Handle(nn.addErasureCodingPolicies),
		"disableErasureCodingPolicy":     rpc.Handle(nn.disableErasureCodingPolicy),
		"enableErasureCodingPolicy":      rpc.Handle(nn.enableErasureCodingPolicy),
		"getECTopologyResultForPolicies": rpc.Handle(nn.getECTopologyResultForPolicies),
		"getErasureCodingCodecs":         rpc.Handle(nn.getErasureCodingCodecs),
		"getErasureCodingPolicies":       rpc.Handle(nn.getErasureCodingPolicies),
		"getErasureCodingPolicy":         rpc.Handle(nn.getErasureCodingPolicy),
		"removeErasureCodingPolicy":      rpc.Handle(nn.removeErasureCodingPolicy),
		"setErasureCodingPolicy":         rpc.Handle(nn.setErasureCodingPolicy),
		"unsetErasureCodingPolicy":       rpc.Handle(nn.unsetErasureCodingPolicy),
	}
}

// erasurePolicy is one that HDFS has by itself. All have cells of 1 MiB.
type erasurePolicy struct {
	name, codec  string
	id           uint32
	data, parity uint32 // cells of a stripe
}

// erasurePolicies are in HDFS's order.
var erasurePolicies = []erasurePolicy{
	{"RS-10-4-1024k", "rs", 5, 10, 4},
	{"RS-3-2-1024k", "rs", 2, 3, 2},
	{"RS-6-3-1024k", "rs", 1, 6, 3},
	{"RS-LEGACY-6-3-1024k", "rs-legacy", 3, 6, 3},
	{"XOR-2-1-1024k", "xor", 4, 2, 1},
}

func (p *erasurePolicy) pb() *hdfspb.ErasureCodingPolicyProto {
	return &hdfspb.ErasureCodingPolicyProto{
		Name: &p.name, Id: &p.id, CellSize: proto.Uint32(1 << 20), State: hdfspb.ErasureCodingPolicyState_DISABLED.Enum(),
		Schema: &hdfspb.ECSchemaProto{CodecName: &p.codec, DataUnits: &p.data, ParityUnits: &p.parity},
	}
}

func erasurePolicyNamed(name string) *erasurePolicy {
	for i := range erasurePolicies {
		if erasurePolicies[i].name == name {
			return &erasurePolicies[i]
		}
	}
	return nil
}

// disabledPolicy tells that a policy can't be used.
func disabledPolicy(name string) error {
	return exception.New(exception.IllegalArgument, "Policy '%s' does not match any enabled erasure coding policies: []. An erasure coding policy can be enabled by enableErasureCodingPolicy API.", name)
}

func (nn *NameNode) getErasureCodingPolicies(context.Context, *hdfspb.GetErasureCodingPoliciesRequestProto) (*hdfspb.GetErasureCodingPoliciesResponseProto, error) {
	out := &hdfspb.GetErasureCodingPoliciesResponseProto{}
	for i := range erasurePolicies {
		out.EcPolicies = append(out.EcPolicies, erasurePolicies[i].pb())
	}
	return out, nil
}

// getErasureCodingCodecs lists none: there is no coder.
func (nn *NameNode) getErasureCodingCodecs(context.Context, *hdfspb.GetErasureCodingCodecsRequestProto) (*hdfspb.GetErasureCodingCodecsResponseProto, error) {
	return &hdfspb.GetErasureCodingCodecsResponseProto{}, nil
}

func (nn *NameNode) getErasureCodingPolicy(ctx context.Context, req *hdfspb.GetErasureCodingPolicyRequestProto) (*hdfspb.GetErasureCodingPolicyResponseProto, error) {
	c := nn.callFrom(ctx)
	if req.GetSrc() == namespace.ReservedPath {
		return &hdfspb.GetErasureCodingPolicyResponseProto{}, nil
	}
	var (
		exists bool
		err    error
	)
	nn.read(func(ns *namespace.Namespace) { exists, err = ns.CanRead(c.who(), req.GetSrc()) })
	if err == nil && !exists {
		err = exception.New(exception.FileNotFound, "Path not found: %s", req.GetSrc())
	}
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetErasureCodingPolicyResponseProto{}, nil
}

func (nn *NameNode) setErasureCodingPolicy(_ context.Context, req *hdfspb.SetErasureCodingPolicyRequestProto) (*hdfspb.SetErasureCodingPolicyResponseProto, error) {
	name := req.GetEcPolicyName()
	if name == "" {
		name = "RS-6-3-1024k" // HDFS's default
	}
	return nil, disabledPolicy(name)
}

func (nn *NameNode) unsetErasureCodingPolicy(ctx context.Context, req *hdfspb.UnsetErasureCodingPolicyRequestProto) (*hdfspb.UnsetErasureCodingPolicyResponseProto, error) {
	c := nn.callFrom(ctx)
	var err error
	nn.read(func(ns *namespace.Namespace) {
		var exists bool
		if exists, err = ns.CanWrite(c.who(), req.GetSrc()); err != nil {
			return
		}
		if !exists {
			err = exception.New(exception.FileNotFound, "Path not found: %s", req.GetSrc())
		} else if _, file := ns.Directory(req.GetSrc()); file != nil {
			err = exception.New(exception.IO, "Cannot unset an erasure coding policy on a file %s", req.GetSrc())
		}
	})
	if err == nil {
		err = exception.New(exception.NoErasureCodingPolicy, "No erasure coding policy explicitly set on %s", req.GetSrc())
	}
	return nil, err
}

func (nn *NameNode) addErasureCodingPolicies(ctx context.Context, req *hdfspb.AddErasureCodingPoliciesRequestProto) (*hdfspb.AddErasureCodingPoliciesResponseProto, error) {
	if err := nn.superuser(ctx, "addErasureCodingPolicies"); err != nil {
		return nil, err
	}
	out := &hdfspb.AddErasureCodingPoliciesResponseProto{}
	for _, p := range req.GetEcPolicies() {
		out.Responses = append(out.Responses, &hdfspb.AddErasureCodingPolicyResponseProto{
			Policy: p, Succeed: proto.Bool(false), ErrorMsg: proto.String("this NameNode has no erasure coding"),
		})
	}
	return out, nil
}

// knownErasurePolicy is for operators.
func (nn *NameNode) knownErasurePolicy(ctx context.Context, operation, name string) error {
	if err := nn.superuser(ctx, operation); err != nil {
		return err
	}
	if erasurePolicyNamed(name) == nil {
		return exception.New(exception.IllegalArgument, "The policy name %s does not exist", name)
	}
	return nil
}

func (nn *NameNode) enableErasureCodingPolicy(ctx context.Context, req *hdfspb.EnableErasureCodingPolicyRequestProto) (*hdfspb.EnableErasureCodingPolicyResponseProto, error) {
	if err := nn.knownErasurePolicy(ctx, "enableErasureCodingPolicy", req.GetEcPolicyName()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.UnsupportedOperation, "enable %s: this NameNode has no erasure coding", req.GetEcPolicyName())
}

func (nn *NameNode) disableErasureCodingPolicy(ctx context.Context, req *hdfspb.DisableErasureCodingPolicyRequestProto) (*hdfspb.DisableErasureCodingPolicyResponseProto, error) {
	if err := nn.knownErasurePolicy(ctx, "disableErasureCodingPolicy", req.GetEcPolicyName()); err != nil {
		return nil, err
	}
	return &hdfspb.DisableErasureCodingPolicyResponseProto{}, nil // it is
}

func (nn *NameNode) removeErasureCodingPolicy(ctx context.Context, req *hdfspb.RemoveErasureCodingPolicyRequestProto) (*hdfspb.RemoveErasureCodingPolicyResponseProto, error) {
	if err := nn.knownErasurePolicy(ctx, "removeErasureCodingPolicy", req.GetEcPolicyName()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.IllegalArgument, "System erasure coding policy %s cannot be removed", req.GetEcPolicyName())
}

// getECTopologyResultForPolicies tells whether there are enough racks and DataNodes for
// policies, by default for those that are enabled.
func (nn *NameNode) getECTopologyResultForPolicies(ctx context.Context, req *hdfspb.GetECTopologyResultForPoliciesRequestProto) (*hdfspb.GetECTopologyResultForPoliciesResponseProto, error) {
	if err := nn.superuser(ctx, "getECTopologyResultForPolicies"); err != nil {
		return nil, err
	}
	answer := func(supported bool, text string) (*hdfspb.GetECTopologyResultForPoliciesResponseProto, error) {
		return &hdfspb.GetECTopologyResultForPoliciesResponseProto{Response: &hdfspb.ECTopologyVerifierResultProto{IsSupported: &supported, ResultMessage: &text}}, nil
	}
	if len(req.GetPolicies()) == 0 {
		return answer(true, "No erasure coding policy is given.")
	}
	var cells, racks uint32
	for _, name := range req.GetPolicies() {
		p := erasurePolicyNamed(name)
		if p == nil {
			return nil, exception.New(exception.IllegalArgument, "The given erasure coding policy %s does not exist.", name)
		}
		cells = max(cells, p.data+p.parity)
		racks = max(racks, (p.data+p.parity+p.parity-1)/p.parity)
	}
	nodes, known := nn.blocks.size()
	names := strings.Join(req.GetPolicies(), ", ")
	switch {
	case nodes < int(cells):
		return answer(false, fmt.Sprintf("%d DataNodes are required for the erasure coding policies: %s. The number of DataNodes is only %d.", cells, names, nodes))
	case known < int(racks):
		return answer(false, fmt.Sprintf("%d racks are required for the erasure coding policies: %s. The number of racks is only %d.", racks, names, known))
	}
	return answer(true, "The cluster setup can support EC policies: "+names)
}

// size tells how many DataNodes there are, and on how many racks.
func (m *blockMap) size() (nodes, racks int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seen := make(map[string]struct{})
	for _, n := range m.nodes {
		seen[n.rack] = struct{}{}
	}
	return len(m.nodes), len(seen)
}
