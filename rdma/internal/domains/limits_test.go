package domains

import (
	"errors"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

var attributes = rdma.Attributes{
	MaxInline: 64, MaxSendSGE: 4, MaxReadSGE: 1, MaxRecvSGE: 8, MaxQueueDepth: 128, MaxCompletions: 256, MaxReads: 4, MaxRegion: 1 << 20,
	Capabilities: rdma.CapAtomics | rdma.CapSharedReceive,
}

func TestQueuePairLimits(t *testing.T) {
	got, err := QueuePair(rdma.QueuePairConfig{}, &attributes)
	if err != nil || got.SendDepth != 1 || got.RecvDepth != 1 || got.MaxSGE != 1 || got.MaxReads != 4 || got.MaxInline != 0 {
		t.Errorf("by default %+v, %v", got, err)
	}
	many := attributes
	many.MaxReads = 1000
	if got, err := QueuePair(rdma.QueuePairConfig{}, &many); err != nil || got.MaxReads != defaultReads {
		t.Errorf("%d Reads by default, %v", got.MaxReads, err)
	}
	most := rdma.QueuePairConfig{SendDepth: 128, RecvDepth: 128, MaxSGE: 8, MaxInline: 64, MaxReads: 4}
	if got, err := QueuePair(most, &attributes); err != nil || got != most {
		t.Errorf("the most: %+v, %v", got, err)
	}
	for name, c := range map[string]rdma.QueuePairConfig{
		"sends": {SendDepth: 129}, "receives": {RecvDepth: 129}, "entries": {MaxSGE: 9}, "inline": {MaxInline: 65}, "Reads": {MaxReads: 5},
		"negative sends": {SendDepth: -1}, "negative receives": {RecvDepth: -1}, "negative entries": {MaxSGE: -1},
		"negative inline": {MaxInline: -1}, "negative Reads": {MaxReads: -1},
	} {
		if _, err := QueuePair(c, &attributes); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
}

func TestSharedReceiveLimits(t *testing.T) {
	got, err := SharedReceive(rdma.SharedReceiveConfig{Depth: 16, LimitEvent: 16}, &attributes, 16, 2)
	if err != nil || got.MaxSGE != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	for name, c := range map[string]rdma.SharedReceiveConfig{
		"no depth": {}, "depth": {Depth: 17}, "entries": {Depth: 1, MaxSGE: 3}, "negative entries": {Depth: 1, MaxSGE: -1},
		"limit": {Depth: 4, LimitEvent: 5}, "negative limit": {Depth: 4, LimitEvent: -1},
	} {
		if _, err := SharedReceive(c, &attributes, 16, 2); !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := SharedReceive(rdma.SharedReceiveConfig{Depth: 1}, &rdma.Attributes{}, 16, 2); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("a device without any: %v", err)
	}
}

func TestDepthsOfCompletionQueues(t *testing.T) {
	for depth, fits := range map[int]bool{-1: false, 0: false, 1: true, 256: true, 257: false} {
		if err := CompletionQueue(depth, &attributes); (err == nil) != fits || err != nil && !errors.Is(err, rdma.ErrInvalid) {
			t.Errorf("%d: %v", depth, err)
		}
	}
}

func TestRegionLimits(t *testing.T) {
	for _, c := range []struct {
		size   int
		access rdma.Access
		want   error
	}{
		{1, 0, nil}, {1 << 20, rdma.AccessLocalWrite | rdma.AccessRemoteRead | rdma.AccessRemoteWrite | rdma.AccessRemoteAtomic, nil},
		{0, 0, rdma.ErrInvalid}, {-1, 0, rdma.ErrInvalid}, {1<<20 + 1, 0, rdma.ErrInvalid},
		{1, rdma.AccessRemoteInvalidate, rdma.ErrUnsupported}, {1, 1 << 7, rdma.ErrInvalid},
	} {
		if err := Region(c.size, c.access, &attributes); !errors.Is(err, c.want) {
			t.Errorf("%d bytes with %#x: %v, want %v", c.size, c.access, err, c.want)
		}
	}
	if err := Region(1, rdma.AccessRemoteAtomic, &rdma.Attributes{MaxRegion: 1}); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("atomics on a device without: %v", err)
	}
}
