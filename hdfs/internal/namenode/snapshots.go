package namenode

import (
	"context"
	"strings"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode/internal/namespace"
)

// There are no snapshots of directories: no directory can be made snapshottable, and all
// other answers are HDFS's for directories that are not. The root is one in HDFS from the start, with
// room for no snapshot.
func (nn *NameNode) snapshotMethods() rpc.Methods {
	return rpc.Methods{
		"allowSnapshot":                rpc.Handle(nn.allowSnapshot),
		"createSnapshot":               rpc.Handle(nn.createSnapshot),
		"deleteSnapshot":               rpc.Handle(nn.deleteSnapshot),
		"disallowSnapshot":             rpc.Handle(nn.disallowSnapshot),
		"getSnapshotDiffReport":        rpc.Handle(nn.getSnapshotDiffReport),
		"getSnapshotDiffReportListing": rpc.Handle(nn.getSnapshotDiffReportListing),
		"getSnapshotListing":           rpc.Handle(nn.getSnapshotListing),
		"getSnapshottableDirListing":   rpc.Handle(nn.getSnapshottableDirListing),
		"renameSnapshot":               rpc.Handle(nn.renameSnapshot),
	}
}

func (nn *NameNode) allowSnapshot(ctx context.Context, req *hdfspb.AllowSnapshotRequestProto) (*hdfspb.AllowSnapshotResponseProto, error) {
	if err := nn.superuser(ctx, "allowSnapshot"); err != nil {
		return nil, err
	}
	if _, err := nn.directory(req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.UnsupportedOperation, "allow snapshots of %s: this NameNode has no snapshots of directories", req.GetSnapshotRoot())
}

func (nn *NameNode) disallowSnapshot(ctx context.Context, req *hdfspb.DisallowSnapshotRequestProto) (*hdfspb.DisallowSnapshotResponseProto, error) {
	if err := nn.superuser(ctx, "disallowSnapshot"); err != nil {
		return nil, err
	}
	if _, err := nn.directory(req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	return &hdfspb.DisallowSnapshotResponseProto{}, nil
}

// directory tells whether path is the root, or why it is no directory.
func (nn *NameNode) directory(path string) (root bool, err error) {
	nn.read(func(ns *namespace.Namespace) { root, err = ns.Directory(path) })
	return root, err
}

// managed checks that the caller owns a directory, whose snapshots it wants to change.
func (nn *NameNode) managed(ctx context.Context, path string) error {
	c := nn.callFrom(ctx)
	var err error
	nn.read(func(ns *namespace.Namespace) { err = ns.CanManage(c.who(), path) })
	return err
}

// unlessRoot is the answer for all directories but the root, and for the root nil.
func (nn *NameNode) unlessRoot(path string) error {
	root, err := nn.directory(path)
	if err == nil && !root {
		err = exception.New(exception.Snapshot, "Directory is not a snapshottable directory: %s", path)
	}
	return err
}

func (nn *NameNode) createSnapshot(ctx context.Context, req *hdfspb.CreateSnapshotRequestProto) (*hdfspb.CreateSnapshotResponseProto, error) {
	if err := nn.managed(ctx, req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	if name := req.GetSnapshotName(); name == "." || name == ".." || strings.ContainsAny(name, "/:") {
		return nil, exception.New(exception.InvalidPath, "Invalid path name Invalid snapshot name: %s", name)
	}
	if err := nn.unlessRoot(req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.Snapshot, "Failed to add snapshot: there are already 0 snapshot(s) and the snapshot quota is 0")
}

func (nn *NameNode) renameSnapshot(ctx context.Context, req *hdfspb.RenameSnapshotRequestProto) (*hdfspb.RenameSnapshotResponseProto, error) {
	name := req.GetSnapshotNewName()
	if name == "" {
		return nil, exception.New(exception.IO, "The new snapshot name is null or empty.")
	}
	if err := nn.managed(ctx, req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	switch {
	case strings.Contains(name, "/"):
		return nil, exception.New(exception.IllegalArgument, "Snapshot name cannot contain \"/\"")
	case name == ".snapshot":
		return nil, exception.New(exception.IllegalArgument, "\"%s\" is a reserved name.", name)
	}
	if err := nn.unlessRoot(req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.Snapshot, "The snapshot %s does not exist for directory /", req.GetSnapshotOldName())
}

func (nn *NameNode) deleteSnapshot(ctx context.Context, req *hdfspb.DeleteSnapshotRequestProto) (*hdfspb.DeleteSnapshotResponseProto, error) {
	if req.GetSnapshotName() == "" {
		return nil, exception.New(exception.IO, "The snapshot name is null or empty.")
	}
	if err := nn.managed(ctx, req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	if err := nn.unlessRoot(req.GetSnapshotRoot()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.Snapshot, "Cannot delete snapshot %s from path /: the snapshot does not exist.", req.GetSnapshotName())
}

// difference answers for what has changed between two snapshots.
func (nn *NameNode) difference(ctx context.Context, path, from, to string) error {
	c := nn.callFrom(ctx)
	var err error
	nn.read(func(ns *namespace.Namespace) { _, err = ns.CanRead(c.who(), path+"/.snapshot/"+from) })
	if err != nil {
		return err
	}
	switch root, _ := nn.directory(path); {
	case !root:
		return exception.New(exception.Snapshot, "The path %s is neither snapshottable nor under a snapshot root!", path)
	case from != "":
		return exception.New(exception.Snapshot, "Cannot find the snapshot of directory / with name %s", from)
	case to != "":
		return exception.New(exception.Snapshot, "Cannot find the snapshot of directory / with name %s", to)
	}
	return nil
}

func (nn *NameNode) getSnapshotDiffReport(ctx context.Context, req *hdfspb.GetSnapshotDiffReportRequestProto) (*hdfspb.GetSnapshotDiffReportResponseProto, error) {
	if err := nn.difference(ctx, req.GetSnapshotRoot(), req.GetFromSnapshot(), req.GetToSnapshot()); err != nil {
		return nil, err
	}
	return &hdfspb.GetSnapshotDiffReportResponseProto{DiffReport: &hdfspb.SnapshotDiffReportProto{
		SnapshotRoot: req.SnapshotRoot, FromSnapshot: req.FromSnapshot, ToSnapshot: req.ToSnapshot,
	}}, nil
}

func (nn *NameNode) getSnapshotDiffReportListing(ctx context.Context, req *hdfspb.GetSnapshotDiffReportListingRequestProto) (*hdfspb.GetSnapshotDiffReportListingResponseProto, error) {
	if err := nn.difference(ctx, req.GetSnapshotRoot(), req.GetFromSnapshot(), req.GetToSnapshot()); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.UnsupportedOperation, "compare / with itself: this NameNode has no snapshots of directories")
}

func (nn *NameNode) getSnapshotListing(ctx context.Context, req *hdfspb.GetSnapshotListingRequestProto) (*hdfspb.GetSnapshotListingResponseProto, error) {
	c := nn.callFrom(ctx)
	var err error
	nn.read(func(ns *namespace.Namespace) {
		if _, err = ns.Directory(req.GetSnapshotRoot()); !refusedAs(err, exception.ParentNotDirectory) {
			_, err = ns.CanRead(c.who(), req.GetSnapshotRoot())
		}
	})
	if err == nil {
		err = nn.unlessRoot(req.GetSnapshotRoot())
	}
	if err != nil {
		return nil, err
	}
	return &hdfspb.GetSnapshotListingResponseProto{SnapshotList: &hdfspb.SnapshotListingProto{}}, nil
}

func (nn *NameNode) getSnapshottableDirListing(context.Context, *hdfspb.GetSnapshottableDirListingRequestProto) (*hdfspb.GetSnapshottableDirListingResponseProto, error) {
	return &hdfspb.GetSnapshottableDirListingResponseProto{}, nil
}
