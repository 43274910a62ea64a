package namenode

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// InSafeMode tells whether the NameNode still waits for DataNodes' reports
// after its start.
func (nn *NameNode) InSafeMode() bool { return nn.blocks.inSafeMode() }

func (m *blockMap) inSafeMode() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.safeMode
}

func (m *blockMap) checkSafeMode(ns *namespace.Namespace, now time.Time) {
	if now.Sub(m.started) < m.cfg.SafeModeTimeout {
		for _, n := range m.nodes {
			if (n.expected || n.alive) && !n.reported && n.inService() {
				return
			}
		}
	}
	m.leaveSafeMode(ns)
}

func (m *blockMap) leaveSafeMode(ns *namespace.Namespace) {
	m.safeMode = false
	m.cfg.Logger.Info("namenode: leaving safe mode", "after", m.cfg.now().Sub(m.started))
	ns.EachBlock(func(id uint64) bool {
		m.ready = append(m.ready, id)
		return true
	})
	for id := range m.replicas {
		if _, ok := ns.Block(id); !ok {
			m.ready = append(m.ready, id)
		}
	}
}

// setSafeMode tells whether the NameNode still waits for reports, or ends the
// wait. It can't be made to wait again.
func (nn *NameNode) setSafeMode(ctx context.Context, req *hdfspb.SetSafeModeRequestProto) (*hdfspb.SetSafeModeResponseProto, error) {
	switch req.GetAction() {
	case hdfspb.SafeModeActionProto_SAFEMODE_GET:
	case hdfspb.SafeModeActionProto_SAFEMODE_LEAVE, hdfspb.SafeModeActionProto_SAFEMODE_FORCE_EXIT:
		if c := nn.callFrom(ctx); !c.caller.GetSuperuser() {
			return nil, exception.New(exception.AccessControl, "Access denied for user %s. Superuser privilege is required for operation leaveSafeMode", c.caller.GetUser())
		}
		nn.read(func(ns *namespace.Namespace) {
			nn.blocks.mu.Lock()
			defer nn.blocks.mu.Unlock()
			if nn.blocks.safeMode {
				nn.blocks.leaveSafeMode(ns)
			}
		})
		nn.wakeMonitor()
	default:
		return nil, exception.New(exception.UnsupportedOperation, "setSafeMode(%s): this NameNode has safe mode only after its start", req.GetAction())
	}
	return &hdfspb.SetSafeModeResponseProto{Result: proto.Bool(nn.InSafeMode() || nn.lowOnRoom())}, nil
}
