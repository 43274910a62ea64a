package hdfs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// onFakes starts a NameNode and DataNodes, each with a device of its own on one network,
// and returns a client's runtime there. memory bounds what a group receives and what it
// sends from, in bytes each; windows is NativeMemory, disk what keeps the blocks.
func onFakes(t *testing.T, dataNodes int, memory, windows int64, disk vfs.FS) (name string, nodes []*DataNode, client *verbena.Runtime) {
	t.Helper()
	const plenty = 128 << 20
	network, dir := fake.NewNetwork(), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	runtime := func(name string, memory int64) *verbena.Runtime {
		config := fake.InfiniBand(name)
		config.Capabilities &^= rdma.CapStreams
		rt, err := verbena.New(verbena.Config{
			Providers:    []rdma.Provider{fake.NewProvider("fakeband", network.NewDevice(config))},
			HelloTimeout: 20 * time.Second, ConnectTimeout: 20 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := rt.Close(); err != nil {
				t.Error(err)
			}
		})
		if _, err := rt.NewGroup(verbena.GroupConfig{Name: GroupName, Relay: true, ReceiveMemory: memory, SendMemory: memory}); err != nil {
			t.Fatal(err)
		}
		return rt
	}
	secret := filepath.Join(dir, "secret")
	nn, err := StartNameNode(ctx, NameNodeConfig{Runtime: runtime("namenode", plenty), Dir: filepath.Join(dir, "namenode"), ClusterSecret: secret, Listen: "127.0.0.1:0", Replication: dataNodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := nn.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := range dataNodes {
		name := fmt.Sprint("datanode-", i)
		dn, err := StartDataNode(ctx, DataNodeConfig{
			Runtime: runtime(name, memory), Dir: filepath.Join(dir, name), ClusterSecret: secret, Listen: "127.0.0.1:0",
			NameNode: nn.Addr(), NoLocalReads: true, NativeMemory: windows, shared: true, disk: disk,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := dn.Close(); err != nil {
				t.Error(err)
			}
		})
		nodes = append(nodes, dn)
	}
	for _, dn := range nodes {
		if err := dn.WaitReported(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return nn.Addr(), nodes, runtime("client", plenty)
}

// Writers whose pipelines go round three DataNodes in all orders, each of which has memory
// for one window or two, all come to their end: a reservation that finds no room is refused
// whole, and nobody waits for memory while he holds some.
func TestRelaysInARingDoNotDeadlock(t *testing.T) {
	t.Parallel()
	for _, windows := range []int64{1, 2} {
		t.Run(fmt.Sprint(windows), func(t *testing.T) {
			const window = 512 << 10
			name, nodes, rt := onFakes(t, 3, 8<<20, windows*window, nil)
			d := NewDialer(rt, "fakeband")
			defer d.Close()
			c, err := NewClient(ClientConfig{
				NameNodes: []string{name}, User: superuser(t), Dialer: d, NoLocalReads: true, BlockSize: 1 << 20, Window: window, PacketSize: 64 << 10,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			content := randomBytes(3<<20 + 777)
			var wg sync.WaitGroup
			errs := make([]error, 6)
			for i := range errs {
				wg.Go(func() {
					w, err := c.Create(ctx, fmt.Sprintf("/ring-%d", i), CreateOptions{})
					if err != nil {
						errs[i] = err
						return
					}
					_, err = w.Write(content)
					errs[i] = errors.Join(err, w.Close())
				})
			}
			wg.Wait()
			if err := errors.Join(errs...); err != nil {
				t.Fatal(err)
			}
			for i := range errs {
				expect(t, c, fmt.Sprintf("/ring-%d", i), content)
			}
			for i, dn := range nodes {
				native, legacy := dn.Writes()
				if native.Blocks+legacy.Blocks != 4*uint64(len(errs)) || native.Blocks == 0 {
					t.Errorf("DataNode %d: %d blocks by the native path and %d by the other", i, native.Blocks, legacy.Blocks)
				}
				if n := dn.Packets().Reserved; n != 0 {
					t.Errorf("DataNode %d: %d bytes of windows are reserved after all", i, n)
				}
			}
		})
	}
}

// A DataNode that does not write holds its client back: no more than the window is on its
// way, whatever the client has.
func TestAWindowHoldsTheClientBack(t *testing.T) {
	const window, packet = 256 << 10, 32 << 10
	var held atomic.Bool
	free := make(chan struct{})
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if held.Load() && op.Kind == errorfs.OpFileWriteAt {
			<-free
		}
		return nil
	}))
	name, nodes, rt := onFakes(t, 1, 8<<20, 4*window, disk)
	d := NewDialer(rt, "fakeband")
	defer d.Close()
	c, err := NewClient(ClientConfig{NameNodes: []string{name}, User: superuser(t), Dialer: d, NoLocalReads: true, Window: window, PacketSize: packet})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := c.Create(t.Context(), "/held", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := randomBytes(packet)
	if _, err := w.Write(first); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := nodes[0].Packets().Packets
	held.Store(true)
	content := randomBytes(1 << 20)
	done := make(chan error, 1)
	go func() {
		_, err := w.Write(content)
		done <- errors.Join(err, w.Close())
	}()
	// The receiver takes the first packet and can't write it; the others wait.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for nodes[0].Packets().Packets == before {
		if ctx.Err() != nil {
			t.Fatal("no packet has come")
		}
		time.Sleep(time.Millisecond)
	}
	select {
	case err := <-done:
		t.Fatalf("all was written past a DataNode that does not write: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if n := rt.Stats().Devices[0].Sent.Bytes; n > 2*packet+window {
		t.Errorf("%d bytes were sent, the window is %d", n, window)
	}
	held.Store(false)
	close(free)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/held", append(first, content...))
}

// A first packet that the last DataNode has not written is not acknowledged, though all
// before it have it.
func TestFlushWaitsForTheLastDataNode(t *testing.T) {
	var held atomic.Pointer[string] // the directory of the DataNode that does not write
	free := make(chan struct{})
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if dir := held.Load(); dir != nil && op.Kind == errorfs.OpFileWriteAt && strings.Contains(op.Path, *dir) && !strings.HasSuffix(op.Path, ".meta") {
			<-free
		}
		return nil
	}))
	name, nodes, rt := onFakes(t, 2, 8<<20, 8<<20, disk)
	d := NewDialer(rt, "fakeband")
	defer d.Close()
	c, err := NewClient(ClientConfig{NameNodes: []string{name}, User: superuser(t), Dialer: d, NoLocalReads: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	inject(c, &faulty{setup: func(req *data.WriteRequest, _ int) {
		last := req.Nodes[len(req.Nodes)-1].GetId().GetXferPort()
		for i, dn := range nodes {
			if strings.HasSuffix(dn.Addr(), fmt.Sprint(":", last)) {
				dir := fmt.Sprint("datanode-", i)
				held.Store(&dir)
			}
		}
	}})
	w, err := c.Create(t.Context(), "/last", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	content := randomBytes(1000)
	flushed := make(chan error, 1)
	go func() {
		_, err := w.Write(content)
		flushed <- errors.Join(err, w.Flush(t.Context()))
	}()
	select {
	case err := <-flushed:
		t.Errorf("flushed before the last DataNode wrote: %v", err)
		flushed <- err
	case <-time.After(500 * time.Millisecond):
		if held.Load() == nil {
			t.Error("no pipeline was set up")
		}
	}
	close(free)
	if err := errors.Join(<-flushed, w.Close()); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/last", content)
}

// A set-up travels with the first packets: a client that knows the DataNodes of a block sends
// them before any of these has made a file.
func TestSetUpsTravelWithPackets(t *testing.T) {
	var held atomic.Bool
	free := make(chan struct{})
	disk := errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if held.Load() && op.Kind == errorfs.OpCreate {
			<-free
		}
		return nil
	}))
	name, nodes, rt := onFakes(t, 2, 8<<20, 8<<20, disk)
	d := NewDialer(rt, "fakeband")
	defer d.Close()
	c, err := NewClient(ClientConfig{NameNodes: []string{name}, User: superuser(t), Dialer: d, NoLocalReads: true, PacketSize: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	store(t, c, "/known", randomBytes(1000), CreateOptions{})
	arrived := func() (n uint64) {
		for _, dn := range nodes {
			n += dn.Packets().Packets
		}
		return n
	}
	w, err := c.Create(t.Context(), "/sooner", CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	before, content := arrived(), randomBytes(20_000)
	held.Store(true)
	release := sync.OnceFunc(func() { held.Store(false); close(free) })
	defer release()
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	eventually(t, "packets come before files are made", func() error {
		if n := arrived() - before; n < 4 {
			return fmt.Errorf("%d have", n)
		}
		return nil
	})
	release()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, "/sooner", content)
}
