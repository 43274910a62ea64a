package datanode

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/reconfigure"
)

// operatorMethods are those of ClientDatanodeProtocol that operators call. What is not there
// (the balancer, the disk balancer) answers as an HDFS in which it is switched off.
func (dn *DataNode) operatorMethods() rpc.Methods {
	return rpc.Methods{
		"cancelDiskBalancerPlan": rpc.Handle(refusal[hdfspb.CancelPlanRequestProto, hdfspb.CancelPlanResponseProto](dn, errNoDiskBalancer)),
		"deleteBlockPool":        rpc.Handle(dn.deleteBlockPool),
		"evictWriters":           rpc.Handle(dn.evictWriters),
		"getBalancerBandwidth":   rpc.Handle(getBalancerBandwidth),
		"getBlockLocalPathInfo":  rpc.Handle(getBlockLocalPathInfo),
		"getDatanodeInfo":        rpc.Handle(dn.getDatanodeInfo),
		"getDiskBalancerSetting": rpc.Handle(refusal[hdfspb.DiskBalancerSettingRequestProto, hdfspb.DiskBalancerSettingResponseProto](dn, errNoDiskBalancer)),
		"getVolumeReport":        rpc.Handle(dn.getVolumeReport),
		"queryDiskBalancerPlan":  rpc.Handle(refusal[hdfspb.QueryPlanStatusRequestProto, hdfspb.QueryPlanStatusResponseProto](dn, errNoDiskBalancer)),
		"refreshNamenodes":       rpc.Handle(dn.refreshNamenodes),
		"shutdownDatanode":       rpc.Handle(dn.shutdownDatanode),
		"submitDiskBalancerPlan": rpc.Handle(refusal[hdfspb.SubmitDiskBalancerPlanRequestProto, hdfspb.SubmitDiskBalancerPlanResponseProto](dn, errNoDiskBalancer)),
		"triggerBlockReport":     rpc.Handle(dn.triggerBlockReport),
	}
}

// newReconfiguration makes what answers to ReconfigurationProtocol, whose methods are also ones of
// ClientDatanodeProtocol.
func (dn *DataNode) newReconfiguration() *reconfigure.Service {
	var settings []reconfigure.Setting
	for _, name := range dn.cfg.Adjustable {
		settings = append(settings, reconfigure.Setting{Name: name, Take: dn.adjust})
	}
	return reconfigure.New(reconfigure.Config{Settings: settings, Properties: dn.cfg.Properties, Allowed: dn.superuser, Logger: dn.log})
}

var errNoDiskBalancer = exception.New(exception.DiskBalancer, "Disk Balancer is not enabled.")

// refusal makes a method that superusers call in vain, and others may not.
func refusal[Req, Resp any](dn *DataNode, why error) func(context.Context, *Req) (*Resp, error) {
	return func(ctx context.Context, _ *Req) (*Resp, error) {
		if err := dn.superuser(ctx); err != nil {
			return nil, err
		}
		return nil, why
	}
}

// superuser refuses all but the user of this process and the members of the supergroup.
func (dn *DataNode) superuser(ctx context.Context) error {
	c := rpc.FromContext(ctx)
	if c != nil && (c.User == dn.cfg.Superuser || slices.Contains(dn.cfg.Groups(c.User), dn.cfg.Supergroup)) {
		return nil
	}
	return exception.New(exception.AccessControl, "Permission denied.")
}

func (dn *DataNode) getDatanodeInfo(context.Context, *hdfspb.GetDatanodeInfoRequestProto) (*hdfspb.GetDatanodeInfoResponseProto, error) {
	version := dn.cfg.Version
	if version == "" {
		version = "verbena"
	}
	info := &hdfspb.DatanodeLocalInfoProto{
		SoftwareVersion: &version, ConfigVersion: proto.String("core-default, hdfs-default"), Uptime: proto.Uint64(uint64(time.Since(dn.started).Seconds())),
	}
	if dn.cfg.LocalSocket != "" {
		info.LocalSocket, info.LocalUser = &dn.cfg.LocalSocket, proto.Uint32(uint32(os.Geteuid()))
	}
	return &hdfspb.GetDatanodeInfoResponseProto{LocalInfo: info}, nil
}

// triggerBlockReport has the NameNode told at once: of changes, or of all replicas.
func (dn *DataNode) triggerBlockReport(ctx context.Context, req *hdfspb.TriggerBlockReportRequestProto) (*hdfspb.TriggerBlockReportResponseProto, error) {
	if err := dn.superuser(ctx); err != nil {
		return nil, err
	}
	if !req.GetIncremental() {
		dn.reportAll()
	}
	dn.names.poke()
	return &hdfspb.TriggerBlockReportResponseProto{}, nil
}

// refreshNamenodes has nothing to read again: there is one NameNode.
func (dn *DataNode) refreshNamenodes(ctx context.Context, _ *hdfspb.RefreshNamenodesRequestProto) (*hdfspb.RefreshNamenodesResponseProto, error) {
	if err := dn.superuser(ctx); err != nil {
		return nil, err
	}
	return &hdfspb.RefreshNamenodesResponseProto{}, nil
}

func (dn *DataNode) deleteBlockPool(ctx context.Context, req *hdfspb.DeleteBlockPoolRequestProto) (*hdfspb.DeleteBlockPoolResponseProto, error) {
	if err := dn.superuser(ctx); err != nil {
		return nil, err
	}
	if req.GetBlockPool() == dn.store.Identity().BlockPoolID {
		return nil, exception.New(exception.IO, "The block pool is still running. First do a refreshNamenodes to shutdown the block pool service")
	}
	return &hdfspb.DeleteBlockPoolResponseProto{}, nil // there is no other
}

// getBlockLocalPathInfo lets nobody at a block's file, as HDFS unless users are named.
func getBlockLocalPathInfo(ctx context.Context, _ *hdfspb.GetBlockLocalPathInfoRequestProto) (*hdfspb.GetBlockLocalPathInfoResponseProto, error) {
	return nil, exception.New(exception.AccessControl, "Can't continue with getBlockLocalPathInfo() authorization. The user %s is not configured in dfs.block.local-path-access.user", rpc.FromContext(ctx).User)
}

func getBalancerBandwidth(context.Context, *hdfspb.GetBalancerBandwidthRequestProto) (*hdfspb.GetBalancerBandwidthResponseProto, error) {
	return nil, exception.New(exception.UnsupportedOperation, "there is no balancer, and nothing that would bound its copies")
}

// shutdownDatanode ends this DataNode, soon after it has answered. For an upgrade writers are
// told that it will be back.
func (dn *DataNode) shutdownDatanode(ctx context.Context, req *hdfspb.ShutdownDatanodeRequestProto) (*hdfspb.ShutdownDatanodeResponseProto, error) {
	if err := dn.superuser(ctx); err != nil {
		return nil, err
	}
	if dn.cfg.Shutdown == nil {
		return nil, exception.New(exception.UnsupportedOperation, "this DataNode shares its process with the NameNode: stop that process")
	}
	if dn.ending.Swap(true) {
		return nil, exception.New(exception.IO, "Shutdown already in progress.")
	}
	dn.log.Info("an operator ends this DataNode", "user", rpc.FromContext(ctx).User, "upgrade", req.GetForUpgrade())
	dn.goBackground(func() {
		dn.sleep(shutdownDelay)
		if req.GetForUpgrade() {
			dn.AnnounceRestart()
		}
		dn.cfg.Shutdown()
	})
	return &hdfspb.ShutdownDatanodeResponseProto{}, nil
}

// shutdownDelay lets the answer to who asked for the end get away.
const shutdownDelay = 200 * time.Millisecond

// evictWriters ends the connections of all who write, who go on with other DataNodes.
func (dn *DataNode) evictWriters(ctx context.Context, _ *hdfspb.EvictWritersRequestProto) (*hdfspb.EvictWritersResponseProto, error) {
	if err := dn.superuser(ctx); err != nil {
		return nil, err
	}
	dn.mu.Lock()
	writers := len(dn.writers)
	for nc := range dn.writers {
		nc.Close()
	}
	dn.mu.Unlock()
	dn.log.Info("an operator evicts all writers", "writers", writers+dn.failNatives(hdfspb.Status_ERROR, errors.New("an operator evicts all writers")))
	return &hdfspb.EvictWritersResponseProto{}, nil
}

// writing runs what writes a block over a connection.
func (dn *DataNode) writing(nc net.Conn, write func() error) error {
	dn.mu.Lock()
	dn.writers[nc] = struct{}{}
	dn.mu.Unlock()
	defer func() {
		dn.mu.Lock()
		delete(dn.writers, nc)
		dn.mu.Unlock()
	}()
	return write()
}

// getVolumeReport tells about the directories of replicas.
func (dn *DataNode) getVolumeReport(ctx context.Context, _ *hdfspb.GetVolumeReportRequestProto) (*hdfspb.GetVolumeReportResponseProto, error) {
	if err := dn.superuser(ctx); err != nil {
		return nil, err
	}
	storages := dn.store.Storages()
	blocks := make([]uint64, len(storages))
	for _, i := range dn.store.Replicas() {
		if i.State == store.Finalized {
			blocks[i.Storage]++
		}
	}
	resp := &hdfspb.GetVolumeReportResponseProto{}
	for i, s := range storages {
		if s.Failed != nil {
			continue
		}
		resp.VolumeInfo = append(resp.VolumeInfo, &hdfspb.DatanodeVolumeInfoProto{
			Path: &s.Dir, StorageType: s.Type.Enum(), UsedSpace: &s.Used, FreeSpace: proto.Uint64(min(s.Remaining, math.MaxInt64)),
			ReservedSpace: proto.Uint64(0), ReservedSpaceForReplicas: &s.Reserved, NumBlocks: &blocks[i],
		})
	}
	return resp, nil
}
