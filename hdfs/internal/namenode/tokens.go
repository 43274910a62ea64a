package namenode

import (
	"encoding/binary"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// newIssuer makes the issuer of tokens for blocks, or none if they are not wanted. Its
// keys follow from the cluster's secret and the time: after a start they are the same.
func (nn *NameNode) newIssuer() (*blocktoken.Issuer, error) {
	if nn.cfg.Secret == nil || nn.cfg.NoBlockTokens {
		return nil, nil
	}
	every := binary.BigEndian.AppendUint64(nil, uint64(nn.cfg.BlockKeyInterval/time.Millisecond))
	file := []byte(nn.ClusterID() + " " + nn.BlockPoolID())
	return blocktoken.NewIssuer(func(id int32) []byte {
		return nn.cfg.Secret.Derive("block token key", blocktoken.Number(id), every, file)
	}, nn.cfg.BlockKeyInterval, nn.cfg.BlockTokenLifetime)
}

// grant gives a caller tokens for blocks that it may have access to.
func (nn *NameNode) grant(c *call, modes blocktoken.Mode, blocks ...*hdfspb.LocatedBlockProto) {
	if nn.tokens == nil {
		return
	}
	now := nn.cfg.Clock()
	for _, lb := range blocks {
		if lb == nil {
			continue
		}
		var types []string
		var storages []string
		if modes&blocktoken.Write != 0 { // DataNodes of Hadoop compare them
			for _, t := range lb.GetStorageTypes() {
				types = append(types, t.String())
			}
			storages = lb.GetStorageIDs()
		}
		lb.BlockToken = nn.tokens.Grant(now, c.caller.GetUser(), modes, lb.GetB(), types, storages)
	}
}

// blockKeys are the keys for a DataNode that knows those up to the one that signs, or
// nil if it needs none.
func (nn *NameNode) blockKeys(known *int32) ([]byte, error) {
	now := nn.cfg.Clock()
	if nn.tokens == nil || known != nil && *known == nn.tokens.Current(now) {
		return nil, nil
	}
	b, err := proto.Marshal(nn.tokens.Keys(now))
	if err != nil {
		return nil, fmt.Errorf("namenode: encode the keys of block tokens: %w", err)
	}
	return nn.cfg.Secret.Encrypt(b), nil
}
