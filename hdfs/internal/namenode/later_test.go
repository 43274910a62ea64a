package namenode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// rpcClient returns a client of a rig's NameNode with a connection of its own.
func (r *rig) rpcClient() *rpc.Client {
	srv := rpc.NewServer(rpc.Config{})
	r.nn.RegisterRPC(srv)
	var conns sync.WaitGroup
	client := rpc.NewClient(rpc.ClientConfig{Dial: func(context.Context, string) (net.Conn, error) {
		here, there := net.Pipe()
		conns.Go(func() { srv.ServeConn(there) })
		return here, nil
	}})
	r.t.Cleanup(func() {
		client.Close()
		srv.Close()
		conns.Wait()
	})
	return client
}

func proxyOf(c *rpc.Client, user string) *rpc.Proxy {
	return c.Proxy(rpc.Target{Protocol: ClientProtocol, User: user})
}

// A change of a client on its way to a disk that fills up ends with the reason, although
// nobody waits for it, is carried out once there is room, and its client hears nothing twice.
func TestQueuedChangeWaitsForRoom(t *testing.T) {
	fs := &stoppedFS{roomFS: roomFS{FS: vfs.NewMem()}, waiting: make(chan struct{}, 1)}
	fs.available.Store(1 << 40)
	r := newRig(t, func(c *Config) { c.FS = fs })
	proxy := proxyOf(r.rpcClient(), "root")
	mkdirs := func(path string) error {
		return proxy.Call(t.Context(), "mkdirs", &hdfspb.MkdirsRequestProto{
			Src: &path, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o755)}, CreateParent: proto.Bool(true),
		}, &hdfspb.MkdirsResponseProto{}, rpc.Idempotent)
	}
	if err := mkdirs("/before"); err != nil {
		t.Fatal(err)
	}
	fs.gate.Lock()
	fs.stopped.Store(true)
	done := make(chan error, 1)
	go func() { done <- mkdirs("/d") }()
	<-fs.waiting
	fs.available.Store(0)
	r.nn.checkResources()
	select {
	case err := <-done:
		t.Fatalf("it did not wait for room: %v", err)
	default:
	}
	r.clock.advance(5 * time.Second)
	r.nn.checkResources()
	wantClass(t, <-done, exception.SafeMode)
	wantClass(t, mkdirs("/e"), exception.SafeMode)
	fs.stopped.Store(false)
	fs.gate.Unlock()
	fs.available.Store(1 << 40)
	r.nn.checkResources()
	if err := mkdirs("/e"); err != nil {
		t.Fatalf("with room again: %v", err)
	}
	info := &hdfspb.GetFileInfoResponseProto{}
	if err := proxy.Call(t.Context(), "getFileInfo", &hdfspb.GetFileInfoRequestProto{Src: proto.String("/d")}, info, rpc.Idempotent); err != nil || info.Fs == nil {
		t.Errorf("the change that waited was not carried out: %v, %v", info, err)
	}
}

// Changes of many clients are answered each with its own result, one after the other and in one
// journal's group.
func TestChangesOfManyClients(t *testing.T) {
	r := newRig(t)
	r.mkdirs("root", "/all")
	var clients sync.WaitGroup
	for c := range 8 {
		proxy := proxyOf(r.rpcClient(), "root")
		clients.Go(func() {
			call := func(method string, req, resp proto.Message) error {
				return proxy.Call(t.Context(), method, req, resp, rpc.AtMostOnce)
			}
			for n := range 20 {
				own, all := fmt.Sprintf("/all/%d-%d", c, n), fmt.Sprintf("/all/%d", n)
				created := &hdfspb.CreateResponseProto{}
				if err := call("create", createRequest(own, fmt.Sprint("client ", c), 1, flagCreate), created); err != nil || created.GetFs().GetFileId() == 0 {
					t.Errorf("create %s: %v, %v", own, created, err)
				}
				// All clients want the same name; one gets it.
				err := call("rename2", &hdfspb.Rename2RequestProto{Src: &own, Dst: &all, OverwriteDest: proto.Bool(false)}, &hdfspb.Rename2ResponseProto{})
				var refused *exception.Error
				deleted := &hdfspb.DeleteResponseProto{}
				switch {
				case err == nil:
					own = ""
				case !errors.As(err, &refused) || refused.Class != exception.FileAlreadyExists:
					t.Errorf("rename %s: %v", own, err)
				}
				if err := call("delete", &hdfspb.DeleteRequestProto{Src: proto.String(fmt.Sprintf("/all/%d-%d", c, n)), Recursive: proto.Bool(false)}, deleted); err != nil || deleted.GetResult() != (own != "") {
					t.Errorf("delete what was renamed (%t): %v, %v", own == "", deleted, err)
				}
			}
		})
	}
	clients.Wait()
	if n := r.list("/all"); n != 20 {
		t.Errorf("%d names are left, want 20", n)
	}
}

// list is how many names a directory has.
func (r *rig) list(path string) int {
	r.t.Helper()
	out := must[*hdfspb.GetListingResponseProto](r.t)(r.nn.getListing(r.as("root"), &hdfspb.GetListingRequestProto{Src: &path, StartAfter: []byte{}, NeedLocation: proto.Bool(false)}))
	return len(out.GetDirList().GetPartialListing())
}
