package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
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
