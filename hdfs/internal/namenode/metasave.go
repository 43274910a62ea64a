package namenode

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// metaSave writes what concerns blocks' replicas into a file of the directory of logs, for
// an operator to read: HDFS's headings and lines.
func (nn *NameNode) metaSave(ctx context.Context, req *hdfspb.MetaSaveRequestProto) (*hdfspb.MetaSaveResponseProto, error) {
	if err := nn.superuser(ctx, "metaSave"); err != nil {
		return nil, err
	}
	if !filepath.IsLocal(req.GetFilename()) {
		return nil, exception.New(exception.IO, "metaSave: %q leads out of the directory of logs, %s", req.GetFilename(), nn.cfg.LogDir)
	}
	if err := nn.writeMeta(filepath.Join(nn.cfg.LogDir, req.GetFilename())); err != nil {
		return nil, exception.New(exception.IO, "metaSave: %v", err)
	}
	return &hdfspb.MetaSaveResponseProto{}, nil
}

func (nn *NameNode) writeMeta(file string) error {
	nn.metaSaving.Lock() // two would write into one file
	defer nn.metaSaving.Unlock()
	if err := nn.cfg.FS.MkdirAll(nn.cfg.LogDir, 0o755); err != nil {
		return err
	}
	f, err := nn.cfg.FS.Create(file, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	nn.read(func(ns *namespace.Namespace) { nn.blocks.metaSave(ns, w) })
	err = w.Flush()
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

func (m *blockMap) metaSave(ns *namespace.Namespace, w io.Writer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	files, directories, blocks := ns.Counts()
	fmt.Fprintf(w, "%d files and directories, %d blocks = %d total filesystem objects\n", files+directories, blocks, files+directories+blocks)
	alive := 0
	for _, n := range m.nodes {
		if n.alive {
			alive++
		}
	}
	fmt.Fprintf(w, "Live Datanodes: %d\nDead Datanodes: %d\n", alive, len(m.nodes)-alive)
	var lacking []uint64
	for u := range m.needed.sets {
		lacking = slices.AppendSeq(lacking, m.needed.sets[u].all())
	}
	slices.Sort(lacking)
	fmt.Fprintf(w, "Metasave: Blocks waiting for reconstruction: %d\n", len(lacking))
	m.metaBlocks(ns, w, lacking)
	fmt.Fprintf(w, "Metasave: Blocks currently missing: %d\n", m.missing.len())
	m.metaBlocks(ns, w, slices.Collect(m.missing.all()))
	fmt.Fprintln(w, "Mis-replicated blocks that have been postponed:")
	m.metaBlocks(ns, w, slices.Collect(m.postponed.all()))
	fmt.Fprintf(w, "Metasave: Blocks being reconstructed: %d\n", len(m.copying))
	for _, id := range slices.Sorted(maps.Keys(m.copying)) {
		tasks := m.copying[id]
		began := tasks[0].deadline.Add(-m.cfg.CopyTimeout)
		fmt.Fprintf(w, "%s StartTime: %s NumReconstructInProgress: %d\n", nameOf(ns, id), began.Format("15:04:05"), len(tasks))
	}
	m.metaDeletions(w)
	fmt.Fprintln(w, "Corrupt Blocks:")
	for id := range m.corrupt.all() {
		total := 0
		for range m.replicas.of(id) {
			total++
		}
		for r := range m.replicas.of(id) {
			if n := m.byIndex[r.node]; r.corrupt {
				in, _ := n.storages.named(r.storage)
				fmt.Fprintf(w, "Block=%s\tSize=%d\tNode=%s:%d\tStorageID=%s\tStorageState=NORMAL\tTotalReplicas=%d\tReason=CORRUPTION_REPORTED\n",
					blockName(id, r.generation), r.length, n.dn.Host, n.dn.Port, in, total)
			}
		}
	}
	m.metaNodes(w)
}

// blockName is how HDFS prints a block.
func blockName(id, generation uint64) string { return fmt.Sprintf("blk_%d_%d", id, generation) }

func nameOf(ns *namespace.Namespace, id uint64) string {
	b, _ := ns.Block(id)
	return blockName(id, b.Generation)
}

func (m *blockMap) metaBlocks(ns *namespace.Namespace, w io.Writer, ids []uint64) {
	for _, id := range ids {
		b, ok := ns.Block(id)
		if !ok {
			fmt.Fprintf(w, "Block blk_%d is Null\n", id)
			continue
		}
		s := m.standing(b)
		corrupt := 0
		for r := range m.replicas.of(id) {
			if r.corrupt {
				corrupt++
			}
		}
		missing := ""
		if len(s.live)+len(s.leaving) == 0 {
			missing = " MISSING"
		}
		fmt.Fprintf(w, "%s: %s%s (replicas: live: %d decommissioning and decommissioned: %d corrupt: %d in excess: %d maintenance mode: %d) ",
			ns.PathOf(b.File), nameOf(ns, id), missing, len(s.live), len(s.leaving), corrupt, max(len(s.live)-b.Replication, 0), s.maintenance)
		for r := range m.replicas.of(id) {
			n, state := m.byIndex[r.node], ""
			switch {
			case r.corrupt:
				state = "(corrupt)"
			case n.service == decommissioning || n.service == decommissioned:
				state = "(decommissioned)"
			case n.service == enteringMaintenance || n.service == inMaintenance:
				state = "(maintenance)"
			}
			if !n.reported {
				state += " (block deletions maybe out of date)"
			}
			fmt.Fprintf(w, " %s:%d%s : ", n.dn.Host, n.dn.Port, state)
		}
		fmt.Fprintln(w)
	}
}

func (m *blockMap) metaDeletions(w io.Writer) {
	total, nodes := 0, 0
	for _, n := range m.nodes {
		if len(n.deletions) > 0 {
			total, nodes = total+len(n.deletions), nodes+1
		}
	}
	fmt.Fprintf(w, "Metasave: Blocks %d waiting deletion from %d datanodes.\n", total, nodes)
	for _, uuid := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[uuid]
		if len(n.deletions) == 0 {
			continue
		}
		fmt.Fprintf(w, "%s:%d\n", n.dn.Host, n.dn.Port)
		for i, id := range slices.Sorted(maps.Keys(n.deletions)) {
			if i > 0 {
				fmt.Fprint(w, ",")
			}
			fmt.Fprint(w, blockName(id, n.deletions[id].generation))
		}
		fmt.Fprintln(w)
	}
}

// serviceMarks are HDFS's.
var serviceMarks = map[any]string{inService: "IN", decommissioning: "DP", decommissioned: "DD", enteringMaintenance: "EM", inMaintenance: "IM"}

func (m *blockMap) metaNodes(w io.Writer) {
	fmt.Fprintf(w, "Metasave: Number of datanodes: %d\n", len(m.nodes))
	for _, uuid := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[uuid]
		rack := ""
		if n.rack != "/default-rack" {
			rack = " " + n.rack
		}
		percent := 100.0 // as HDFS of one without room
		if n.capacity > 0 {
			percent = 100 * float64(n.used) / float64(n.capacity)
		}
		fmt.Fprintf(w, "%s:%d%s %s %d(%s) %d(%s) %.2f%% %d(%s) 0(0 B) 0(0 B) 100.00%% 0(0 B) %s", n.dn.Host, n.dn.Port, rack, serviceMarks[n.service],
			n.capacity, byteDesc(n.capacity), n.used, byteDesc(n.used), percent, n.remaining, byteDesc(n.remaining), n.lastSeen.Format(time.UnixDate))
		copies := 0
		for _, tasks := range m.copying {
			for _, t := range tasks {
				if t.source == n {
					copies++
				}
			}
		}
		if copies > 0 {
			fmt.Fprintf(w, " %d blocks to be replicated;", copies)
		}
		if len(n.deletions) > 0 {
			fmt.Fprintf(w, " %d blocks to be invalidated;", len(n.deletions))
		}
		fmt.Fprintln(w)
	}
}

// byteDesc prints a size as Hadoop does: 1536 is 1.50 KB.
func byteDesc(n uint64) string {
	unit := 0
	x := float64(n)
	for ; x >= 1024 && unit < 6; unit++ {
		x /= 1024
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.2f %cB", x, " KMGTPE"[unit])
}
