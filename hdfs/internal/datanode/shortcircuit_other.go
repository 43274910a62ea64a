//go:build !linux

package datanode

import (
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// local is nothing where descriptors can't be handed over and taken back.
type local struct{}

func newLocal(*Config) *local { return &local{} }

func (*local) changing(uint64) {}

func (*DataNode) localOp(*peer, transfer.Op) (proto.Message, func() error) { return nil, nil }

func (*local) collect() LocalStats { return LocalStats{} }
