package hdfs

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/clusterpb"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// firstBlock is the id of a file system's first block.
const firstBlock = 1 << 30

// attacked is a file system with a secret, /secret of mode 0600, and somebody who
// can reach its ports and has nothing else.
type attacked struct {
	*system
	attacker *verbena.CallPool
	content  []byte
}

func startAttacked(t *testing.T) *attacked {
	t.Helper()
	a := &attacked{system: startSystem(t, 2, 2), content: randomBytes(300_000)}
	write(t, a.connect(plain), "/secret", a.content, 2, 1<<20)
	if err := a.connect(plain).Chmod("/secret", 0o600); err != nil {
		t.Fatal(err)
	}
	rt, err := verbena.New(verbena.Config{}) // TCP alone
	if err != nil {
		t.Fatal(err)
	}
	a.attacker, err = rt.NewCallPool(verbena.CallPoolConfig{PoolConfig: verbena.PoolConfig{Service: cluster.Service}, Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(a.attacker.Close(), rt.Close()); err != nil {
			t.Error(err)
		}
	})
	return a
}

// refused makes a call as the protocol had it before it asked for a proof, and wants it
// to be refused for want of one.
func (a *attacked) refused(address string, method uint32, req proto.Message) {
	a.t.Helper()
	b, err := proto.Marshal(req)
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(a.t.Context(), 20*time.Second)
	defer cancel()
	answer, err := a.attacker.Call(ctx, address, verbena.Intent{}, method, b)
	if err == nil {
		a.t.Errorf("method %d answers anybody with %q", method, answer.Bytes())
		answer.Release()
		return
	}
	var told *verbena.CallError
	if !errors.As(err, &told) || told.Code != verbena.CodeApplication+5 {
		a.t.Errorf("method %d: %v", method, err)
	}
}

func (a *attacked) intact() {
	a.t.Helper()
	if got := readAll(a.t, a.connect(plain), "/secret"); !bytes.Equal(got, a.content) {
		a.t.Errorf("/secret has %d bytes, had %d, or others", len(got), len(a.content))
	}
}

// TestNobodyRegistersAsDataNode has somebody without the cluster's secret register a
// DataNode, and report for one that is there that it has no block.
func TestNobodyRegistersAsDataNode(t *testing.T) {
	a := startAttacked(t)
	nn := a.NameNode.Addr()
	a.refused(nn, 1, &clusterpb.RegisterRequest{Datanode: &clusterpb.Datanode{
		Uuid: proto.String("mine"), Host: proto.String("127.0.0.1"), Port: proto.Uint32(1), Hostname: proto.String("localhost"),
	}})
	host, port, err := advertised(a.DataNodes[0].Addr(), "")
	if err != nil {
		t.Fatal(err)
	}
	a.refused(nn, 1, &clusterpb.RegisterRequest{Datanode: &clusterpb.Datanode{
		Uuid: proto.String(a.DataNodes[0].state.UUID()), Host: &host, Port: proto.Uint32(uint32(port)),
	}})
	for method := range uint32(5) {
		a.refused(nn, 1+method, &clusterpb.BlockReportRequest{})
	}
	a.intact()
}

// TestNobodyCutsByRecovery has somebody without the secret lead a recovery of a block,
// whose id is easily guessed, to no bytes.
func TestNobodyCutsByRecovery(t *testing.T) {
	a := startAttacked(t)
	block := &clusterpb.Block{Id: proto.Uint64(firstBlock), Generation: proto.Uint64(0)}
	for _, dn := range a.DataNodes {
		a.refused(dn.Addr(), 6, &clusterpb.InitRecoveryRequest{Block: block, NewGeneration: proto.Uint64(1 << 40)})
		a.refused(dn.Addr(), 7, &clusterpb.UpdateRecoveryRequest{Block: block, NewGeneration: proto.Uint64(1 << 40), Length: proto.Uint64(0)})
	}
	a.intact()
}

// TestNobodyReadsWithoutToken asks a DataNode for a block without having asked the
// NameNode.
func TestNobodyReadsWithoutToken(t *testing.T) {
	a := startAttacked(t)
	header := &hdfspb.BaseHeaderProto{
		Block: &hdfspb.ExtendedBlockProto{PoolId: proto.String(a.NameNode.state.BlockPoolID()), BlockId: proto.Uint64(firstBlock), GenerationStamp: proto.Uint64(0), NumBytes: proto.Uint64(100)},
		Token: &hdfspb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: proto.String(""), Service: proto.String("")},
	}
	whole := &hdfspb.ClientOperationHeaderProto{BaseHeader: header, ClientName: proto.String("me")}
	for op, req := range map[transfer.Op]proto.Message{
		transfer.OpReadBlock:     &hdfspb.OpReadBlockProto{Header: whole, Offset: proto.Uint64(0), Len: proto.Uint64(100)},
		transfer.OpBlockChecksum: &hdfspb.OpBlockChecksumProto{Header: header},
		transfer.OpTransferBlock: &hdfspb.OpTransferBlockProto{Header: whole, Targets: []*hdfspb.DatanodeInfoProto{{Id: &hdfspb.DatanodeIDProto{
			IpAddr: proto.String("127.0.0.1"), HostName: proto.String("localhost"), DatanodeUuid: proto.String("mine"), XferPort: proto.Uint32(1), InfoPort: proto.Uint32(0), IpcPort: proto.Uint32(0),
		}}}},
		transfer.OpWriteBlock: &hdfspb.OpWriteBlockProto{
			Header: whole, Stage: hdfspb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY.Enum(), PipelineSize: proto.Uint32(1),
			MinBytesRcvd: proto.Uint64(0), MaxBytesRcvd: proto.Uint64(0), LatestGenerationStamp: proto.Uint64(1 << 40),
			RequestedChecksum: &hdfspb.ChecksumProto{Type: hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C.Enum(), BytesPerChecksum: proto.Uint32(512)},
		},
	} {
		conn, err := net.DialTimeout("tcp", a.DataNodes[0].Addr(), 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := errors.Join(conn.SetDeadline(time.Now().Add(20*time.Second)), transfer.WriteRequest(conn, op, req)); err != nil {
			t.Fatal(err)
		}
		r := transfer.NewReader(conn, nil)
		answer := &hdfspb.BlockOpResponseProto{}
		if err := r.ReadMessage(answer); err != nil {
			t.Errorf("%v: %v", op, err)
		} else if answer.GetStatus() != hdfspb.Status_ERROR_ACCESS_TOKEN {
			t.Errorf("%v: %v", op, answer)
		}
		r.Release()
	}
	a.intact()
}

// TestDataNodeWithAnotherSecret stays out, and says why.
func TestDataNodeWithAnotherSecret(t *testing.T) {
	a := startAttacked(t)
	dir := t.TempDir()
	if _, err := cluster.LoadSecret(filepath.Join(dir, SecretFile), true); err != nil {
		t.Fatal(err)
	}
	said := make(chan struct{})
	var once sync.Once
	log := slog.New(slog.NewTextHandler(writerFunc(func(line []byte) {
		if bytes.Contains(line, []byte("do not know the same secret")) {
			once.Do(func() { close(said) })
		}
	}), nil))
	cfg := DataNodeConfig{Runtime: a.rt, Logger: log, Dir: dir, Listen: "127.0.0.1:0", NameNode: a.NameNode.Addr()}
	dn, err := StartDataNode(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer dn.Close()
	select {
	case <-said:
	case <-dn.state.Reported():
		t.Error("the NameNode takes it")
	case <-time.After(30 * time.Second):
		t.Error("nothing is said")
	}
	cfg.Dir = t.TempDir()
	if _, err := StartDataNode(t.Context(), cfg); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "copy the NameNode's") {
		t.Errorf("without a secret: %v", err)
	}
	a.intact()
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) {
	f(b)
	return len(b), nil
}
