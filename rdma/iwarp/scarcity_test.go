package iwarp

import (
	"context"
	"errors"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

// What fails for want of descriptors or memory says that it may pass, and passes.
// A domain itself needs neither.
func TestWithoutDescriptors(t *testing.T) {
	device := testDevice(t, Config{})
	listener, err := device.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var open rdma.Domain
	rdmatest.WithoutDescriptors(t, func() {
		if open, err = device.OpenDomain(rdma.DomainConfig{}); err != nil {
			t.Fatalf("OpenDomain without descriptors: %v", err)
		}
		if _, err := device.Listen(context.Background(), "127.0.0.1:0"); !rdma.Temporary(err) {
			t.Errorf("Listen without descriptors: %v, want an error that is temporary", err)
		}
		queue, err := open.NewCompletionQueue(1)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := open.NewQueuePair(rdma.QueuePairConfig{SendCompletions: queue, RecvCompletions: queue})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pair.Connect(t.Context(), listener.Address(), nil); !rdma.Temporary(err) {
			t.Errorf("Connect without descriptors: %v, want an error that is temporary", err)
		}
	})
	defer open.Close()
	// No host has so much address space in one piece twice.
	var regions []rdma.Region
	for range 1 << 13 {
		r, err := open.Allocate(maxRegion, 0)
		if err != nil {
			if !rdma.Temporary(err) || errors.Is(err, rdma.ErrInvalid) {
				t.Errorf("Allocate without memory: %v, want an error that is temporary", err)
			}
			break
		}
		regions = append(regions, r)
	}
	for _, r := range regions {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	again, err := device.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatalf("Listen with descriptors again: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
