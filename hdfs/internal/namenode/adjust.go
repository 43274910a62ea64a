package namenode

import (
	"cmp"
	"context"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/reconfigure"
)

// Adjustment are the settings that may change while a NameNode runs; [Config] describes them. Zero
// values stand for the defaults.
type Adjustment struct {
	HeartbeatInterval, DeadAfter, StaleAfter, RedundancyInterval, CopyTimeout time.Duration
	ReplicationWork, ReplicationStreams, DeletesPerHeartbeat                  int
}

// Adjustment returns those settings.
func (c *Config) Adjustment() Adjustment {
	return Adjustment{
		HeartbeatInterval: c.HeartbeatInterval, DeadAfter: c.DeadAfter, StaleAfter: c.StaleAfter, RedundancyInterval: c.RedundancyInterval, CopyTimeout: c.CopyTimeout,
		ReplicationWork: c.ReplicationWork, ReplicationStreams: c.ReplicationStreams, DeletesPerHeartbeat: c.DeletesPerHeartbeat,
	}
}

// adjust changes the settings. DataNodes hear of another interval of heartbeats when they register.
func (m *blockMap) adjust(a *Adjustment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.cfg
	c.HeartbeatInterval = cmp.Or(a.HeartbeatInterval, defaultHeartbeat)
	c.DeadAfter = cmp.Or(a.DeadAfter, defaultDeadAfter)
	c.StaleAfter = cmp.Or(a.StaleAfter, defaultStaleAfter)
	c.RedundancyInterval = cmp.Or(a.RedundancyInterval, defaultRedundancyInterval)
	c.CopyTimeout = cmp.Or(a.CopyTimeout, defaultCopyTimeout)
	c.ReplicationWork = cmp.Or(a.ReplicationWork, defaultReplicationWork)
	c.ReplicationStreams = cmp.Or(a.ReplicationStreams, defaultReplicationStreams)
	c.DeletesPerHeartbeat = cmp.Or(a.DeletesPerHeartbeat, defaultDeletes)
}

func (m *blockMap) heartbeatInterval() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cfg.HeartbeatInterval
}

// newReconfiguration makes what answers to ReconfigurationProtocol.
func (nn *NameNode) newReconfiguration() *reconfigure.Service {
	var settings []reconfigure.Setting
	for _, name := range nn.cfg.Adjustable {
		settings = append(settings, reconfigure.Setting{Name: name, Take: func(p *conf.Properties) error {
			a, err := nn.cfg.Again(p)
			if err == nil {
				nn.blocks.adjust(&a)
			}
			return err
		}})
	}
	return reconfigure.New(reconfigure.Config{
		Settings: settings, Properties: nn.cfg.Properties, Logger: nn.log,
		Allowed: func(ctx context.Context) error { return nn.superuser(ctx, "reconfiguration") },
	})
}
