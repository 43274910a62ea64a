package namenode

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// What operators ask about upgrades, the log and its directories. No upgrade is ever under
// way: a newer version reads what an older one wrote.
func (nn *NameNode) upgradeMethods() rpc.Methods {
	return rpc.Methods{
		"finalizeUpgrade":       rpc.Handle(nn.finalizeUpgrade),
		"getCurrentEditLogTxid": rpc.Handle(nn.getCurrentEditLogTxid),
		"getEditsFromTxid":      rpc.Handle(nn.getEditsFromTxid),
		"restoreFailedStorage":  rpc.Handle(nn.restoreFailedStorage),
		"rollEdits":             rpc.Handle(nn.rollEdits),
		"rollingUpgrade":        rpc.Handle(nn.rollingUpgrade),
		"upgradeStatus":         rpc.Handle(nn.upgradeStatus),
	}
}

func (nn *NameNode) rollingUpgrade(ctx context.Context, req *hdfspb.RollingUpgradeRequestProto) (*hdfspb.RollingUpgradeResponseProto, error) {
	operation := map[hdfspb.RollingUpgradeActionProto]string{
		hdfspb.RollingUpgradeActionProto_QUERY:    "queryRollingUpgrade",
		hdfspb.RollingUpgradeActionProto_START:    "startRollingUpgrade",
		hdfspb.RollingUpgradeActionProto_FINALIZE: "finalizeRollingUpgrade",
	}[req.GetAction()]
	if err := nn.superuser(ctx, operation); err != nil {
		return nil, err
	}
	if req.GetAction() == hdfspb.RollingUpgradeActionProto_START {
		return nil, exception.New(exception.UnsupportedAction, "%s is not yet supported.", req.GetAction())
	}
	return &hdfspb.RollingUpgradeResponseProto{}, nil
}

func (nn *NameNode) finalizeUpgrade(ctx context.Context, _ *hdfspb.FinalizeUpgradeRequestProto) (*hdfspb.FinalizeUpgradeResponseProto, error) {
	if err := nn.superuser(ctx, "finalizeUpgrade"); err != nil {
		return nil, err
	}
	return &hdfspb.FinalizeUpgradeResponseProto{}, nil
}

func (nn *NameNode) upgradeStatus(context.Context, *hdfspb.UpgradeStatusRequestProto) (*hdfspb.UpgradeStatusResponseProto, error) {
	return &hdfspb.UpgradeStatusResponseProto{UpgradeFinalized: proto.Bool(true)}, nil
}

// rollEdits answers with the number of the next entry of the log. The log needs no new
// file for that.
func (nn *NameNode) rollEdits(ctx context.Context, _ *hdfspb.RollEditsRequestProto) (*hdfspb.RollEditsResponseProto, error) {
	if err := nn.superuser(ctx, "rollEditLog"); err != nil {
		return nil, err
	}
	return &hdfspb.RollEditsResponseProto{NewSegmentTxId: proto.Uint64(nn.journal.LastIndex() + 1)}, nil
}

func (nn *NameNode) getCurrentEditLogTxid(ctx context.Context, _ *hdfspb.GetCurrentEditLogTxidRequestProto) (*hdfspb.GetCurrentEditLogTxidResponseProto, error) {
	if err := nn.superuser(ctx, "getCurrentEditLogTxid"); err != nil {
		return nil, err
	}
	return &hdfspb.GetCurrentEditLogTxidResponseProto{Txid: proto.Int64(int64(nn.journal.LastIndex()))}, nil
}

func (nn *NameNode) getEditsFromTxid(ctx context.Context, _ *hdfspb.GetEditsFromTxidRequestProto) (*hdfspb.GetEditsFromTxidResponseProto, error) {
	if err := nn.superuser(ctx, "getEditsFromTxid"); err != nil {
		return nil, err
	}
	return nil, exception.New(exception.UnsupportedOperation, "this NameNode does not tell what has changed (inotify)")
}

// restoreFailedStorage tells whether a directory that failed is tried again while the
// NameNode runs. It is not: the next start brings it up to date.
func (nn *NameNode) restoreFailedStorage(ctx context.Context, req *hdfspb.RestoreFailedStorageRequestProto) (*hdfspb.RestoreFailedStorageResponseProto, error) {
	operation := "disableRestoreFailedStorage"
	switch req.GetArg() {
	case "check":
		operation = "checkRestoreFailedStorage"
	case "true":
		operation = "enableRestoreFailedStorage"
	}
	if err := nn.superuser(ctx, operation); err != nil {
		return nil, err
	}
	if req.GetArg() == "true" {
		return nil, exception.New(exception.UnsupportedOperation, "a directory of this NameNode that failed comes back at its next start, not before")
	}
	return &hdfspb.RestoreFailedStorageResponseProto{Result: proto.Bool(false)}, nil
}
