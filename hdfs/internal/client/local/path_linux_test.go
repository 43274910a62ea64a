package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
)

// farPath is the path that is taken instead.
type farPath struct{ data.Path }

var errFar = errors.New("read over a connection")

func (farPath) Read(context.Context, *data.ReadRequest) (data.BlockReader, error) { return nil, errFar }

// A DataNode whose process is away is asked again soon: it comes back under another name.
// One that has no socket is left alone for long.
func TestHowLongADataNodeIsLeftAlone(t *testing.T) {
	for _, c := range []struct {
		name   string
		socket string
		err    error
		long   bool
	}{
		{name: "nobody listens any more", socket: fmt.Sprintf("@verbena-nobody-%d", os.Getpid())},
		{name: "nobody answers", err: fmt.Errorf("call: %w", syscall.ECONNREFUSED)},
		{name: "no socket", long: true},
		{name: "does not know the question", err: errors.New("no such method"), long: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := New(Config{
				Ask: func(context.Context, *hdfspb.DatanodeInfoProto) (string, int, error) {
					return c.socket, os.Getuid(), c.err
				},
				Logger: slog.New(slog.DiscardHandler),
			}, farPath{})
			defer p.Close()
			info := &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{IpAddr: proto.String("127.0.0.1"), DatanodeUuid: proto.String("a")}}
			before := time.Now()
			if _, err := p.Read(t.Context(), &data.ReadRequest{Node: info, Block: &hdfspb.ExtendedBlockProto{}, Length: 1}); !errors.Is(err, errFar) {
				t.Fatal(err)
			}
			if pause := p.nodes["a"].until.Sub(before); pause <= 0 || (pause > time.Minute) != c.long {
				t.Errorf("left alone for %v", pause)
			}
		})
	}
}

// A DataNode of this host that says nothing holds readers of many blocks back once, and none whose context ends.
func TestReadersOfASilentDataNode(t *testing.T) {
	var asked atomic.Int32
	began := make(chan struct{}, 10)
	p := New(Config{
		Ask: func(ctx context.Context, _ *hdfspb.DatanodeInfoProto) (string, int, error) {
			asked.Add(1)
			began <- struct{}{}
			<-ctx.Done()
			return "", 0, context.Cause(ctx)
		},
		Timeout: 3 * time.Second, // the reader whose context has ended is seen not to wait for it
		Logger:  slog.New(slog.DiscardHandler),
	}, farPath{})
	defer p.Close()
	info := &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{IpAddr: proto.String("127.0.0.1"), DatanodeUuid: proto.String("a")}}
	read := func(ctx context.Context, id uint64) {
		if _, err := p.Read(ctx, &data.ReadRequest{Node: info, Block: &hdfspb.ExtendedBlockProto{BlockId: proto.Uint64(id)}, Length: 1}); !errors.Is(err, errFar) {
			t.Errorf("block %d: %v", id, err)
		}
	}
	var readers sync.WaitGroup
	readers.Go(func() { read(t.Context(), 0) })
	<-began
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	read(ended, 1)
	p.mu.Lock()
	n := p.node("a", info)
	p.mu.Unlock()
	if n == nil {
		t.Error("a reader whose context has ended waited until the DataNode had failed")
	}
	for id := range uint64(8) {
		readers.Go(func() { read(t.Context(), 2+id) })
	}
	readers.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("a DataNode that says nothing was asked %d times", n)
	}
}
