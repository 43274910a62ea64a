package hdfs

import (
	"context"

	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// CreateSnapshot makes a snapshot of a directory that is allowed to have some, and returns
// its path. Without a snapshot's name the NameNode finds one. Verbena's has no snapshots.
func (c *Client) CreateSnapshot(ctx context.Context, name, snapshot string) (string, error) {
	name = c.Abs(name)
	req, resp := &hdfspb.CreateSnapshotRequestProto{SnapshotRoot: &name}, &hdfspb.CreateSnapshotResponseProto{}
	if snapshot != "" {
		req.SnapshotName = &snapshot
	}
	err := c.call(ctx, "createSnapshot", name, "createSnapshot", req, resp)
	return resp.GetSnapshotPath(), err
}

// RenameSnapshot gives a snapshot of a directory another name.
func (c *Client) RenameSnapshot(ctx context.Context, name, from, to string) error {
	name = c.Abs(name)
	return c.call(ctx, "renameSnapshot", name, "renameSnapshot", &hdfspb.RenameSnapshotRequestProto{SnapshotRoot: &name, SnapshotOldName: &from, SnapshotNewName: &to}, &hdfspb.RenameSnapshotResponseProto{})
}

// DeleteSnapshot removes a snapshot of a directory.
func (c *Client) DeleteSnapshot(ctx context.Context, name, snapshot string) error {
	name = c.Abs(name)
	return c.call(ctx, "deleteSnapshot", name, "deleteSnapshot", &hdfspb.DeleteSnapshotRequestProto{SnapshotRoot: &name, SnapshotName: &snapshot}, &hdfspb.DeleteSnapshotResponseProto{})
}
