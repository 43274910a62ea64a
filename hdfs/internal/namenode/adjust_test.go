package namenode

import (
	"testing"
	"time"
)

// What is adjusted counts at once; what an adjustment does not name is as by default.
func TestAdjust(t *testing.T) {
	m := newBlockMap(&Config{DeadAfter: time.Hour, now: newClock().now, Clock: newClock().now})
	a := Adjustment{DeadAfter: time.Minute, HeartbeatInterval: 5 * time.Second, ReplicationStreams: 7}
	m.adjust(&a)
	if m.heartbeatInterval() != 5*time.Second {
		t.Errorf("heartbeats are asked for each %v", m.heartbeatInterval())
	}
	got := m.cfg.Adjustment()
	want := Adjustment{
		DeadAfter: time.Minute, HeartbeatInterval: 5 * time.Second, ReplicationStreams: 7,
		StaleAfter: defaultStaleAfter, RedundancyInterval: defaultRedundancyInterval, CopyTimeout: defaultCopyTimeout, ReplicationWork: defaultReplicationWork, DeletesPerHeartbeat: defaultDeletes,
	}
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
