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
	if m.enoughNodes() && m.enoughBlocks(ns, now) {
		m.leaveSafeMode(ns)
	}
}

func (m *blockMap) enoughNodes() bool {
	live := 0
	for _, n := range m.nodes {
		if n.alive && n.registered {
			live++
		}
	}
	return live >= m.cfg.SafeModeNodes
}

// safeCount counts the blocks that are safe, in steps: the share is known a while after it was asked.
type safeCount struct {
	begun  time.Time // the last count, zero: there was none
	under  bool      // way
	enough bool      // said the last count
}

// enoughBlocks tells whether the share of the blocks is safe that is asked for. It counts them, and
// again at each CheckInterval while they are too few.
func (m *blockMap) enoughBlocks(ns *namespace.Namespace, now time.Time) bool {
	if m.cfg.SafeModeShare == 0 || m.safe.enough {
		return true
	}
	if m.safe.under || now.Sub(m.safe.begun) < m.cfg.CheckInterval {
		return false
	}
	m.safe.begun, m.safe.under = now, true
	safe, all := 0, 0
	m.begin(ns, &scan{
		files:   true,
		useless: func() bool { return !m.safeMode },
		visit: func(id uint64) {
			b, ok := ns.Block(id)
			if !ok || b.Writing {
				return // as in HDFS, what is being written does not count
			}
			all++
			good := 0
			for r := range m.replicas.of(id) {
				if m.good(b, r) {
					good++
				}
			}
			if good >= m.cfg.SafeModeReplicas {
				safe++
			}
		},
		over: func() {
			m.safe.under = false
			m.safe.enough = float64(safe) >= m.cfg.SafeModeShare*float64(all)
			if !m.safe.enough {
				m.cfg.Logger.Info("namenode: safe mode goes on", "blocks", all, "reported", safe, "share asked for", m.cfg.SafeModeShare)
			}
		},
	})
	return m.safe.enough
}

func (m *blockMap) leaveSafeMode(ns *namespace.Namespace) {
	m.safeMode = false
	m.cfg.Logger.Info("namenode: leaving safe mode", "after", m.cfg.now().Sub(m.started))
	m.begin(ns, &scan{files: true, visit: m.look})
	m.begin(ns, &scan{visit: m.look}) // what no file has
}

// setSafeMode tells whether the NameNode still waits for reports or refuses
// changes. Superusers end that, but for a full disk, and turn on that changes are
// refused, until they turn it off or the NameNode starts anew.
func (nn *NameNode) setSafeMode(ctx context.Context, req *hdfspb.SetSafeModeRequestProto) (*hdfspb.SetSafeModeResponseProto, error) {
	switch req.GetAction() {
	case hdfspb.SafeModeActionProto_SAFEMODE_GET:
	case hdfspb.SafeModeActionProto_SAFEMODE_ENTER:
		if err := nn.superuser(ctx, "enterSafeMode"); err != nil {
			return nil, err
		}
		nn.setByHand(true)
		nn.log.Warn("namenode: safe mode is turned on: changes are refused until an operator ends it")
	case hdfspb.SafeModeActionProto_SAFEMODE_LEAVE, hdfspb.SafeModeActionProto_SAFEMODE_FORCE_EXIT:
		if err := nn.superuser(ctx, "leaveSafeMode"); err != nil {
			return nil, err
		}
		nn.setByHand(false)
		nn.read(func(ns *namespace.Namespace) {
			nn.blocks.mu.Lock()
			defer nn.blocks.mu.Unlock()
			if nn.blocks.safeMode {
				nn.blocks.leaveSafeMode(ns)
			}
		})
		nn.wakeMonitor()
	default:
		return nil, exception.New(exception.UnsupportedOperation, "setSafeMode(%s): there is no such action", req.GetAction())
	}
	return &hdfspb.SetSafeModeResponseProto{Result: proto.Bool(nn.InSafeMode() || nn.refuses())}, nil
}

// saveNamespace writes a snapshot, as in HDFS only while changes are refused.
func (nn *NameNode) saveNamespace(ctx context.Context, req *hdfspb.SaveNamespaceRequestProto) (*hdfspb.SaveNamespaceResponseProto, error) {
	if err := nn.superuser(ctx, "saveNamespace"); err != nil {
		return nil, err
	}
	if !nn.refuses() && !nn.InSafeMode() {
		return nil, exception.New(exception.IO, "Safe mode should be turned ON in order to create namespace image.")
	}
	if err := nn.journal.Snapshot(); err != nil {
		return nil, exception.New(exception.IO, "save the namespace: %v", err)
	}
	return &hdfspb.SaveNamespaceResponseProto{Saved: proto.Bool(true)}, nil
}
