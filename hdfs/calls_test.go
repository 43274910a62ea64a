package hdfs

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
	"github.com/verbena-data/verbena/providers"
)

// Hadoop RPC's calls reach the NameNode as calls of the runtime, over every transport,
// and act as who makes them.
func TestNameNodeTakesCalls(t *testing.T) {
	s := startSystem(t, 1, 1)
	for _, transport := range callTransports(t) {
		pool, err := rpc.NewPool(s.rt, verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{Dial: verbena.DialConfig{Transport: transport}}})
		if err != nil {
			t.Fatal(err)
		}
		c := rpc.NewClient(rpc.ClientConfig{
			Pool: pool,
			Dial: func(context.Context, string) (net.Conn, error) { return nil, errors.New("no stream is to be dialled") },
		})
		nn := c.Proxy(rpc.Target{Address: s.NameNode.Addr(), Protocol: namenode.ClientProtocol, User: superuser(t)})
		name := "/made-over-" + transport
		var made hdfspb.MkdirsResponseProto
		if err := nn.Call(t.Context(), "mkdirs", &hdfspb.MkdirsRequestProto{
			Src: &name, Masked: &hdfspb.FsPermissionProto{Perm: proto.Uint32(0o750)}, CreateParent: proto.Bool(true),
		}, &made); err != nil || !made.GetResult() {
			t.Errorf("%s: mkdirs: %v, %v", transport, &made, err)
		}
		var info hdfspb.GetFileInfoResponseProto
		if err := nn.Call(t.Context(), "getFileInfo", &hdfspb.GetFileInfoRequestProto{Src: &name}, &info, rpc.Idempotent); err != nil || info.GetFs().GetOwner() != superuser(t) {
			t.Errorf("%s: getFileInfo: %v, %v", transport, &info, err)
		}
		c.Close()
	}
}

// callTransports are those that this machine has.
func callTransports(t testing.TB) []string {
	list := []string{verbena.TransportTCP}
	for _, p := range providers.Default() {
		if _, err := p.Devices(t.Context()); err == nil {
			list = append(list, p.Name())
		}
	}
	return list
}

// The clients that a dialer makes call the NameNode by calls: it sees no stream.
func TestClientsCall(t *testing.T) {
	s := startSystem(t, 1, 1)
	for _, transport := range callTransports(t) {
		c := s.connect(transport)
		name := "/made-over-" + transport
		write(t, c, name, []byte("hello"), 1, 1<<20)
		if b, err := c.ReadFile(name); err != nil || string(b) != "hello" {
			t.Errorf("%s: %q, %v", transport, b, err)
		}
		if _, err := c.Stat("/missing"); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a missing file: %v", transport, err)
		}
		calls := uint64(0)
		for _, p := range s.rt.Stats().EndpointPools {
			if strings.HasPrefix(p.Name, rpc.Service) {
				calls += p.Requests
			}
		}
		if calls < 5 {
			t.Errorf("%s: %d calls went over the pool", transport, calls)
		}
	}
}

// A client goes on when the NameNode has been away.
func TestClientsComeBack(t *testing.T) {
	s := systemIn(t, 1, 1, loopbackOfItsOwn(t))
	for _, transport := range callTransports(t) {
		c := s.connect(transport)
		name := "/made-over-" + transport
		if err := c.Mkdir(name, 0o755); err != nil {
			t.Fatal(err)
		}
		addr := s.NameNode.Addr()
		if err := s.NameNode.Close(); err != nil {
			t.Fatal(err)
		}
		nn, err := StartNameNode(t.Context(), NameNodeConfig{Runtime: s.rt, Dir: filepath.Join(s.cfg.Dir, "namenode"), Listen: addr, Replication: 1})
		if err != nil {
			t.Fatal(err)
		}
		s.NameNode = nn
		if info, err := c.Stat(name); err != nil || !info.IsDir() {
			t.Errorf("%s: %v, %v", transport, info, err)
		}
	}
}
