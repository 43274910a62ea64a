package shm

import (
	"context"
	"testing"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
)

// What fails for want of descriptors says that it may pass, and passes.
func TestWithoutDescriptors(t *testing.T) {
	device, err := openForSuite()
	if err != nil {
		t.Skip(err)
	}
	open, err := device.OpenDomain(rdma.DomainConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	calls := map[string]func() (interface{ Close() error }, error){
		"OpenDomain": func() (interface{ Close() error }, error) { return device.OpenDomain(rdma.DomainConfig{}) },
		"Allocate":   func() (interface{ Close() error }, error) { return open.Allocate(4096, 0) },
		"Listen":     func() (interface{ Close() error }, error) { return device.Listen(context.Background(), "") },
	}
	rdmatest.WithoutDescriptors(t, func() {
		for name, call := range calls {
			if _, err := call(); !rdma.Temporary(err) {
				t.Errorf("%s without descriptors: %v, want an error that is temporary", name, err)
			}
		}
	})
	for name, call := range calls {
		made, err := call()
		if err != nil {
			t.Errorf("%s with descriptors again: %v", name, err)
			continue
		}
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	}
}
