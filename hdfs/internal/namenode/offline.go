package namenode

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
	"github.com/verbena-data/verbena/internal/journal"
)

// Report tells what is on the disk of a NameNode that does not run.
type Report struct {
	journal.Report
	ClusterID                  string
	Files, Directories, Blocks int
}

// Check reads the snapshots and the log in dir, and in the directory second if there is
// one, and builds the namespace from them. With mend it makes of them what a NameNode can start with, see
// [journal.Recover]. An error says that there is no namespace to be had.
func Check(dir, second string, fs vfs.FS, logger *slog.Logger, mend bool) (*Report, error) {
	s := &state{ns: namespace.New(), blocks: newBlockMap(&Config{})}
	look := journal.Check
	if mend {
		look = journal.Recover
	}
	rep, err := look(journal.Config{Dir: dir, Second: second, FS: fs, Logger: logger}, s)
	out := &Report{}
	if rep != nil {
		out.Report = *rep
	}
	if err == nil {
		err = s.failed
	}
	if err != nil {
		return out, fmt.Errorf("namenode: %w", err)
	}
	for s.reap() { // what is deleted does not count
	}
	out.ClusterID = s.ns.ClusterID()
	out.Files, out.Directories, out.Blocks = s.ns.Counts()
	return out, nil
}
