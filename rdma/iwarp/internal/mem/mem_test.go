package mem

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

// owner unpins what it is asked to give up.
type owner struct {
	held   atomic.Bool
	breaks atomic.Int32
	forgot atomic.Int32
}

func (o *owner) BreakPins(r *Region) {
	o.breaks.Add(1)
	if o.held.Swap(false) {
		r.Unpin()
	}
}
func (o *owner) Forget(*Region) { o.forgot.Add(1) }

func TestRegion(t *testing.T) {
	table, o := NewTable(), &owner{}
	r, err := table.Allocate(o, 10000, rdma.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Bytes()) != 10000 || r.Size() != 10000 || r.Access() != rdma.AccessRemoteRead || r.Owner() != Owner(o) || r.Key() == 0 {
		t.Errorf("region %+v", r)
	}
	r.Bytes()[9999] = 1
	if table.Lookup(r.Key()) != r || table.Len() != 1 || table.Lookup(r.Key()+1) != nil {
		t.Error("the table does not find it")
	}
	if !r.Pin() {
		t.Fatal("an open region cannot be pinned")
	}
	r.Unpin()
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if r.Pin() || !r.Closed() || table.Lookup(r.Key()) != nil || table.Len() != 0 || o.forgot.Load() != 1 || o.breaks.Load() != 0 {
		t.Error("the region is not gone")
	}
}

func TestCloseBreaksPins(t *testing.T) {
	table, o := NewTable(), &owner{}
	r, err := table.Allocate(o, 4096, 0)
	if err != nil {
		t.Fatal(err)
	}
	o.held.Store(r.Pin())
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if o.breaks.Load() == 0 {
		t.Error("Close did not ask for the pin, though it was held")
	}
}

// TestCloseUnderPins closes a region that others pin and write all the time: a
// write to unmapped memory would end the test.
func TestCloseUnderPins(t *testing.T) {
	table, o := NewTable(), &owner{}
	for range 50 {
		r, err := table.Allocate(o, 4096, 0)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		var pinned atomic.Int64
		started := make(chan struct{})
		for k := range 2 {
			group.Go(func() {
				for r.Pin() {
					r.Bytes()[k]++
					r.Unpin()
					if pinned.Add(1) == 100 {
						close(started)
					}
				}
			})
		}
		<-started
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		group.Wait()
	}
}

func TestKeysDiffer(t *testing.T) {
	table, o := NewTable(), &owner{}
	keys, addresses := map[uint32]bool{}, map[uint64]bool{}
	for range 200 {
		r, err := table.Allocate(o, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		keys[r.Key()], addresses[r.Address()] = true, true
	}
	if len(keys) != 200 || len(addresses) < 190 {
		t.Errorf("%d keys and %d addresses", len(keys), len(addresses))
	}
}

// TestRevoke takes a key back while the region stays.
func TestRevoke(t *testing.T) {
	table, o := NewTable(), &owner{}
	r, err := table.Allocate(o, 100, rdma.AccessRemoteInvalidate)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Reachable() || r.Revoked() {
		t.Error("a new region is revoked")
	}
	for range 2 {
		r.Revoke()
	}
	if r.Reachable() || !r.Revoked() || r.Closed() || table.Lookup(r.Key()) != nil || table.Len() != 0 {
		t.Error("the key is not taken back")
	}
	if !r.Pin() {
		t.Error("the region is closed to its own side")
	}
	r.Unpin()
	// The key may be given to another region, which closing this one leaves alone.
	other, err := table.Allocate(o, 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	table.mu.Lock()
	delete(table.regions, other.key)
	other.key = r.key
	table.regions[r.key] = other
	table.mu.Unlock()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if table.Lookup(r.Key()) != other {
		t.Error("closing a revoked region takes another one's key")
	}
	if r.Reachable() {
		t.Error("a closed region is reachable")
	}
	if err := other.Close(); err != nil || table.Len() != 0 {
		t.Error(err, table.Len())
	}
}
