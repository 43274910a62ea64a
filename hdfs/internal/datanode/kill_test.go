package datanode

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hdfs/internal/datanode/internal/store"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/port"
)

const killDir = "VERBENA_TEST_DATANODE_DIR"

// killChild is the process that TestKill kills: a DataNode without a NameNode
// that tells its port.
func killChild(dir string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	dn, err := Open(context.Background(), Config{Dirs: []Directory{{Path: dir}}, Host: "127.0.0.1", Port: 1,
		NameNode: &fakeNameNode{away: true}})
	if err != nil {
		return err
	}
	fmt.Printf("listening %s\n", l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // the parent is gone
		os.Exit(1)
	}()
	return port.Accept(context.Background(), l, dn.log, func(nc net.Conn) { go dn.ServeConn(nc) })
}

// TestKill kills a DataNode at random moments under writers that flush, and
// looks for every acknowledged byte afterwards.
func TestKill(t *testing.T) {
	rounds, dir := 12, t.TempDir()
	if testing.Short() {
		rounds = 3
	}
	acked := map[uint64]int{}   // bytes by block
	closed := map[uint64]bool{} // the end was acknowledged
	for round := range rounds {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killDir+"="+dir)
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		must(t, err)
		defer stdin.Close()
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		addr := ""
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if a, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
				addr = a
				break
			}
		}
		if addr == "" {
			t.Fatal("the child did not start")
		}
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			<-time.After(rand.N(60 * time.Millisecond))
			_ = cmd.Process.Kill()
		}()
		type result struct {
			id    uint64
			acked int
			final bool
		}
		results := make(chan result)
		const writers = 3
		for range writers {
			go func() {
				// Blocks one after the other, until the DataNode is dead.
				for {
					mine := rand.Uint64N(1 << 40)
					n, final, err := killWriter(addr, mine, 40)
					if err != nil {
						results <- result{mine, n, final}
						results <- result{acked: -1}
						return
					}
					results <- result{mine, n, final}
				}
			}()
		}
		for left := writers; left > 0; {
			r := <-results
			if r.acked < 0 {
				left--
				continue
			}
			if r.acked > 0 || r.final {
				acked[r.id], closed[r.id] = r.acked, r.final
			}
		}
		<-killed
		_ = cmd.Wait()

		s, err := store.Open(store.Config{FS: vfs.Default, Dirs: []Directory{{Path: dir}}})
		must(t, err)
		for id, n := range acked {
			r, err := s.Get(id)
			if err != nil {
				t.Fatalf("round %d: block %d with %d bytes acknowledged: %v", round, id, n, err)
			}
			info := r.Info()
			if info.Length < int64(n) || closed[id] != (info.State == store.Finalized) && closed[id] {
				t.Fatalf("round %d: block %d is %+v; %d bytes were acknowledged, the end %t", round, id, info, n, closed[id])
			}
			// The bytes, too, are those that were sent.
			rd, err := r.Open()
			must(t, err)
			got := make([]byte, rd.Length)
			must(t, rd.ReadVerified(got, make([]byte, 4*rd.Sum.Chunks(rd.Length)), 0))
			must(t, rd.Close())
			if !bytes.Equal(got, random(id, 1<<20)[:len(got)]) {
				t.Fatalf("round %d: wrong bytes in block %d", round, id)
			}
		}
		must(t, s.Close())
	}
	if len(acked) == 0 {
		t.Fatal("nothing was ever acknowledged")
	}
	t.Logf("%d blocks", len(acked))
}

// killWriter writes a block with small flushed packets of random size. It
// returns how many bytes were acknowledged, and whether the end was.
func killWriter(addr string, id uint64, packets int) (acked int, final bool, err error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return 0, false, err
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(patient)); err != nil {
		return 0, false, err
	}
	r := transfer.NewReader(nc, nil)
	defer r.Release()
	sum := transfer.CRC32C()
	zero := uint64(0)
	if err := transfer.WriteRequest(nc, transfer.OpWriteBlock, &hdfspb.OpWriteBlockProto{
		Header: &hdfspb.ClientOperationHeaderProto{BaseHeader: &hdfspb.BaseHeaderProto{Block: extended(id, 1001, 0)}, ClientName: proto.String("test")},
		Stage:  create.Enum(), PipelineSize: proto.Uint32(0), MinBytesRcvd: &zero, MaxBytesRcvd: &zero,
		LatestGenerationStamp: &zero, RequestedChecksum: sum.Proto(),
	}); err != nil {
		return 0, false, err
	}
	resp := &hdfspb.BlockOpResponseProto{}
	if err := r.ReadMessage(resp); err != nil {
		return 0, false, err
	}
	if resp.GetStatus() != hdfspb.Status_SUCCESS {
		return 0, false, errors.New(resp.GetMessage())
	}
	data := random(id, 1<<20)
	var a transfer.Ack
	for i := range packets + 1 {
		h := transfer.PacketHeader{Offset: int64(acked / 512 * 512), Seqno: int64(i)}
		end := min(acked+rand.IntN(20_000)+1, len(data))
		body := data[h.Offset:end]
		if i == packets {
			h.Last, h.Offset, body, end = true, int64(acked), nil, acked
		}
		if _, err := nc.Write(encodePacket(sum, h, body)); err != nil {
			return acked, false, err
		}
		if err := r.ReadAck(&a); err != nil {
			return acked, false, err
		}
		if !a.OK() {
			return acked, false, fmt.Errorf("acknowledgement %+v", a)
		}
		acked = end
	}
	return acked, true, nil
}
