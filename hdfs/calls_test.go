package hdfs

import (
	"context"
	"errors"
	"net"
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
	transports := []string{verbena.TransportTCP}
	for _, p := range providers.Default() {
		if _, err := p.Devices(t.Context()); err == nil {
			transports = append(transports, p.Name())
		}
	}
	for _, transport := range transports {
		c := rpc.NewClient(rpc.ClientConfig{
			Endpoint: rpc.Endpoints(s.rt, verbena.DialConfig{Transport: transport}),
			Dial:     func(context.Context, string) (net.Conn, error) { return nil, errors.New("no stream is to be dialled") },
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
