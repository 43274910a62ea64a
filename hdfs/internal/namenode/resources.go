package namenode

import (
	"sync"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// resources tells whether the disk has room for the log. When it has less than
// ReservedSpace, changes are refused as HDFS's safe mode refuses them, instead of
// waiting for a log that can't be written; they are taken again once there is
// room. (HDFS enters safe mode at the same point, by default 100 MiB, and since
// the operator ends it there, its message asks for that.)
type resources struct {
	mu  sync.Mutex
	low string // why changes are refused; empty: they are not
}

// checkResources looks at the disk. A file system that can't tell has room.
func (nn *NameNode) checkResources() {
	usage, err := nn.cfg.FS.GetDiskUsage(nn.cfg.Dir)
	if err != nil {
		return
	}
	r := &nn.resources
	r.mu.Lock()
	defer r.mu.Unlock()
	low := usage.AvailBytes < nn.cfg.ReservedSpace
	switch {
	case low && r.low == "":
		nn.log.Error("namenode: low on available disk space, entering safe mode: changes are refused until there is room", "dir", nn.cfg.Dir, "available", usage.AvailBytes, "reserved", nn.cfg.ReservedSpace)
		r.low = "Resources are low on NN. Please add or free up more resources in " + nn.cfg.Dir + ": safe mode ends by itself when there is room."
	case !low && r.low != "":
		nn.log.Info("namenode: the disk has room again, leaving safe mode", "dir", nn.cfg.Dir, "available", usage.AvailBytes)
		r.low = ""
	}
}

// refusal is the error for changes while the disk is full, else nil.
func (nn *NameNode) refusal() error {
	r := &nn.resources
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.low == "" {
		return nil
	}
	return exception.New(exception.SafeMode, "Cannot change the namespace. Name node is in safe mode.\n%s", r.low)
}
