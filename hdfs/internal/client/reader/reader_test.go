package reader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/locations"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testBlock = 10_000

// cluster has one file, in memory. The hooks, which may be nil, make things go wrong.
type cluster struct {
	data.Path
	content []byte
	nodes   []*hdfspb.DatanodeInfoProto
	open    bool // the last block is being written

	read    func(req *data.ReadRequest, n int) error // before the n-th read begins
	next    func(req *data.ReadRequest, n int) error // before the n-th piece of all
	visible func(node string) (int64, error)
	answer  func(resp *hdfspb.LocatedBlocksProto) // before it goes out

	mu       sync.Mutex
	counts   map[string]int
	asked    []time.Time // when the NameNode was
	reported []string    // DataNodes with bad replicas
	from     []string    // DataNodes that were read from
}

func newCluster(size, nodes int) *cluster {
	c := &cluster{content: make([]byte, size), counts: map[string]int{}}
	_, _ = rand.NewChaCha8([32]byte{1}).Read(c.content) // never fails
	for i := range nodes {
		uuid, ip := fmt.Sprintf("uuid-%d", i+1), fmt.Sprintf("192.0.2.%d", i+1)
		c.nodes = append(c.nodes, &hdfspb.DatanodeInfoProto{Id: &hdfspb.DatanodeIDProto{DatanodeUuid: &uuid, IpAddr: &ip, HostName: &uuid, XferPort: proto.Uint32(9866), InfoPort: proto.Uint32(0), IpcPort: proto.Uint32(9867)}})
	}
	return c
}

func (c *cluster) config() *Config {
	return &Config{Names: c, Path: c, Client: "client", Prefetch: 2 * testBlock, Failures: 5, Window: time.Second, Logger: slog.New(slog.DiscardHandler)}
}

func (c *cluster) count(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[what]++
	return c.counts[what]
}

func (c *cluster) located(at int) *hdfspb.LocatedBlockProto {
	n := min(testBlock, len(c.content)-at)
	lb := &hdfspb.LocatedBlockProto{
		B:      &hdfspb.ExtendedBlockProto{PoolId: proto.String("pool"), BlockId: proto.Uint64(uint64(100 + at/testBlock)), GenerationStamp: proto.Uint64(1), NumBytes: proto.Uint64(uint64(n))},
		Offset: proto.Uint64(uint64(at)), Locs: slices.Clone(c.nodes), Corrupt: proto.Bool(false), BlockToken: &hdfspb.TokenProto{Identifier: []byte{}, Password: []byte{}, Kind: proto.String(""), Service: proto.String("")},
	}
	for range c.nodes {
		lb.StorageIDs, lb.StorageTypes = append(lb.StorageIDs, "storage"), append(lb.StorageTypes, hdfspb.StorageTypeProto_DISK)
	}
	return lb
}

// Blocks are kept in the order of the file, each once, in whatever order they are told of.
func TestBlocksAreKeptInOrder(t *testing.T) {
	const size = 10
	at := func(starts ...int64) (list []*located) {
		for _, s := range starts {
			list = append(list, &located{start: s * size, length: size})
		}
		return list
	}
	for _, told := range [][][]*located{{at(0, 1, 2)}, {at(2, 0, 1)}, {at(0, 1, 1, 2)}, {at(1), at(0, 2)}, {at(0, 2), at(1, 2)}, {at(0, 1), at(2)}} {
		var bs blocks
		for _, more := range told {
			bs.add(more)
		}
		for off := range int64(3 * size) {
			if b := bs.find(off); b == nil || b.start != off/size*size {
				t.Fatalf("block of %d: %+v", off, b)
			}
		}
		if len(bs.list) != 3 || bs.find(3*size) != nil {
			t.Errorf("%d blocks", len(bs.list))
		}
	}
}

// Call is the NameNode.
func (c *cluster) Call(ctx context.Context, _ string, req, resp proto.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch req := req.(type) {
	case *hdfspb.ReportBadBlocksRequestProto:
		c.counts["reports"]++
		for _, b := range req.GetBlocks() {
			c.reported = append(c.reported, b.GetLocs()[0].GetId().GetDatanodeUuid())
		}
	case *hdfspb.GetBlockLocationsRequestProto:
		c.asked = append(c.asked, time.Now())
		out := &hdfspb.LocatedBlocksProto{FileLength: proto.Uint64(uint64(len(c.content))), UnderConstruction: proto.Bool(c.open), IsLastBlockComplete: proto.Bool(!c.open)}
		last := (len(c.content) - 1) / testBlock * testBlock
		if c.open {
			out.FileLength = proto.Uint64(uint64(last))
		}
		for at := 0; at < len(c.content); at += testBlock {
			if c.open && at == last {
				break
			}
			if uint64(at+testBlock) > req.GetOffset() && uint64(at) < req.GetOffset()+req.GetLength() {
				out.Blocks = append(out.Blocks, c.located(at))
			}
		}
		out.LastBlock = c.located(last)
		if c.answer != nil {
			c.answer(out)
		}
		resp.(*locations.Blocks).Locations = out
	}
	return nil
}

func (c *cluster) VisibleLength(_ context.Context, node *hdfspb.DatanodeInfoProto, _ *hdfspb.ExtendedBlockProto, _ *hdfspb.TokenProto) (int64, error) {
	return c.visible(node.GetId().GetDatanodeUuid())
}

type ranged struct {
	c   *cluster
	ctx context.Context
	req *data.ReadRequest
	at  int
	end int
}

func (c *cluster) Read(ctx context.Context, req *data.ReadRequest) (data.BlockReader, error) {
	n := c.count("read")
	c.mu.Lock()
	c.from = append(c.from, req.Node.GetId().GetDatanodeUuid())
	c.mu.Unlock()
	if c.read != nil {
		if err := c.read(req, n); err != nil {
			return nil, err
		}
	}
	at := int(req.Block.GetBlockId()-100)%1000*testBlock + int(req.Offset)
	return &ranged{c, ctx, req, at, at + int(req.Length)}, nil
}

func (r *ranged) Next() ([]byte, error) {
	if r.ctx.Err() != nil {
		return nil, context.Cause(r.ctx)
	}
	if r.at == r.end {
		return nil, io.EOF
	}
	if n := r.c.count("next"); r.c.next != nil {
		if err := r.c.next(r.req, n); err != nil {
			return nil, err
		}
	}
	n := min(777, r.end-r.at)
	p := r.c.content[r.at : r.at+n]
	r.at += n
	return p, nil
}

func (r *ranged) Close() error { return nil }

// whole reads the file with WriteTo, and with Read, and compares.
func (c *cluster) whole(t *testing.T, cfg *Config) {
	t.Helper()
	f, err := Open(t.Context(), cfg, "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out bytes.Buffer
	if n, err := f.WriteTo(&out); err != nil || n != int64(len(c.content)) || !bytes.Equal(out.Bytes(), c.content) {
		t.Errorf("WriteTo: %d bytes of %d, %v", n, len(c.content), err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(struct{ io.Reader }{f})
	if err != nil || !bytes.Equal(got, c.content) {
		t.Errorf("Read: %d bytes of %d, %v", len(got), len(c.content), err)
	}
}

func TestReads(t *testing.T) {
	for _, size := range []int{0, 1, testBlock - 1, testBlock, testBlock + 1, 5*testBlock + 123} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(size, 3)
			c.whole(t, c.config())
		})
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(5*testBlock+123, 2)
		f, err := Open(t.Context(), c.config(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		random := rand.New(rand.NewPCG(1, 2))
		for range 300 {
			off, p := random.IntN(len(c.content)+100), make([]byte, random.IntN(3*testBlock))
			n, err := f.ReadAt(t.Context(), p, int64(off))
			want := c.content[min(off, len(c.content)):min(off+len(p), len(c.content))]
			if !bytes.Equal(p[:n], want) || (err == io.EOF) != (len(want) < len(p)) || err != nil && err != io.EOF {
				t.Fatalf("ReadAt(%d, %d): %d, %v", len(p), off, n, err)
			}
		}
		if _, err := f.ReadAt(t.Context(), make([]byte, 1), -1); err == nil {
			t.Error("a read before the start")
		}
		for whence, ok := range map[int]bool{io.SeekStart: false, io.SeekCurrent: false, io.SeekEnd: true, 7: false} {
			if _, err := f.Seek(-1, whence); (err == nil) != ok {
				t.Errorf("Seek(-1, %d): %v", whence, err)
			}
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// filling is a cluster that fills memory of the caller, if answer says so.
type filling struct {
	*cluster
	answer func(n int) (bool, error) // to the n-th request
}

func (c *filling) Fill(_ context.Context, req *data.ReadRequest, p []byte) (bool, error) {
	done, err := c.answer(c.count("fill"))
	if done && err == nil {
		copy(p, c.content[int(req.Block.GetBlockId()-100)*testBlock+int(req.Offset):])
	}
	return done, err
}

// A long Read is filled by the path, if that will: up to a block's end. A refusal or a failure
// has the same bytes come in pieces, up to the same end, and short Reads do from the start.
func TestLongReadsAreFilled(t *testing.T) {
	const blocks = 5
	for _, k := range []struct {
		name   string
		buffer int
		answer func(n int) (bool, error)
		fills  int // that are asked for
		reads  int // that the other way takes
	}{
		{"all", leastFill, func(int) (bool, error) { return true, nil }, blocks, 0},
		{"none", leastFill, func(int) (bool, error) { return false, nil }, blocks, blocks},
		{"some", leastFill, func(n int) (bool, error) { return n%2 == 0, nil }, blocks, (blocks + 1) / 2},
		{"failures", leastFill, func(n int) (bool, error) { return false, fmt.Errorf("at 512: %w", transfer.ErrChecksum) }, blocks, blocks},
		{"short", leastFill - 1, func(int) (bool, error) { return true, nil }, 0, blocks},
	} {
		t.Run(k.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &filling{newCluster(blocks*testBlock, 3), k.answer}
				cfg := c.config()
				cfg.Path = c
				f, err := Open(t.Context(), cfg, "/file")
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				var got []byte
				p := make([]byte, k.buffer)
				for {
					n, err := f.Read(p)
					got = append(got, p[:n]...)
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(got, c.content) {
					t.Errorf("%d bytes, not those of the file", len(got))
				}
				if c.counts["fill"] != k.fills || c.counts["read"] != k.reads {
					t.Errorf("%d fills, %d reads; want %d, %d", c.counts["fill"], c.counts["read"], k.fills, k.reads)
				}
			})
		})
	}
}

// A seek within what has come already asks nobody.
func TestShortSeeks(t *testing.T) {
	c := newCluster(testBlock, 1)
	f, err := Open(t.Context(), c.config(), "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := make([]byte, 10)
	for _, at := range []int64{0, 100, 700} {
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(f, p); err != nil || !bytes.Equal(p, c.content[at:at+10]) {
			t.Fatal(err)
		}
	}
	if c.counts["read"] != 1 {
		t.Errorf("%d reads were begun", c.counts["read"])
	}
}

// A DataNode that fails at any piece is left for another one, which goes on where it was.
func TestReadsGoOnElsewhere(t *testing.T) {
	for at := 1; at <= 26; at += 5 {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(testBlock+testBlock/2, 2)
			c.next = func(req *data.ReadRequest, n int) error {
				if n == at {
					return errors.New("connection reset")
				}
				return nil
			}
			c.whole(t, c.config())
			if !slices.Contains(c.from, "uuid-2") {
				t.Errorf("read from %v", c.from)
			}
		})
	}
}

// When all DataNodes fail, the NameNode is asked again after pauses that grow, and the
// error names the block.
func TestReadsGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(100, 3)
		broken := errors.New("connection refused")
		c.read = func(*data.ReadRequest, int) error { return broken }
		f, err := Open(t.Context(), c.config(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		began := time.Now()
		_, err = f.ReadAt(t.Context(), make([]byte, 10), 0)
		if !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		if c.counts["read"] != 3*6 || len(c.asked) != 1+5 {
			t.Errorf("%d reads, the NameNode was asked %d times", c.counts["read"], len(c.asked))
		}
		// The pauses are 0 to 1 s, 1 to 3, 2 to 5, 3 to 7 and 4 to 9.
		if took := time.Since(began); took < 10*time.Second || took > 25*time.Second {
			t.Errorf("it took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began = time.Now()
		if _, err := f.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// A replica that moved is found by asking the NameNode again.
func TestReadsFindMovedReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(100, 1)
		gone := c.nodes[0].GetId().GetDatanodeUuid()
		c.read = func(req *data.ReadRequest, _ int) error {
			if req.Node.GetId().GetDatanodeUuid() == gone {
				return &data.StatusError{Status: hdfspb.Status_ERROR, Message: "there is no such replica"}
			}
			return nil
		}
		f, err := Open(t.Context(), c.config(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c.nodes = newCluster(0, 2).nodes[1:]
		p := make([]byte, 100)
		if _, err := f.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, c.content) {
			t.Error(err)
		}
	})
}

// Bytes that do not match their checksums are read elsewhere. The NameNode hears of the replica
// when another one's match, or if there is no other: a client that finds all of them bad may be
// what is broken.
func TestCorruptReplicasAreReported(t *testing.T) {
	for _, k := range []struct {
		replicas int
		bad      []string // DataNodes
		want     []string
	}{
		{3, []string{"uuid-1"}, []string{"uuid-1"}},
		{3, []string{"uuid-1", "uuid-2"}, []string{"uuid-1", "uuid-2"}},
		{2, []string{"uuid-1", "uuid-2"}, nil},
		{1, []string{"uuid-1"}, []string{"uuid-1"}},
	} {
		for _, hedge := range []time.Duration{0, time.Hour} {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(testBlock, k.replicas)
				c.next = func(req *data.ReadRequest, _ int) error {
					if slices.Contains(k.bad, req.Node.GetId().GetDatanodeUuid()) {
						return fmt.Errorf("at 512: %w", transfer.ErrChecksum)
					}
					return nil
				}
				cfg := c.config()
				cfg.Hedge, cfg.Hedges = hedge, NewHedges(1)
				f, err := Open(t.Context(), cfg, "/file")
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				if hedge > 0 {
					_, err = f.ReadAt(t.Context(), make([]byte, 100), 0)
				} else {
					_, err = io.Copy(io.Discard, f)
				}
				if (err == nil) != (len(k.bad) < k.replicas) {
					t.Error(err)
				}
				f.Close() // waits for the report
				if !slices.Equal(c.reported, k.want) || c.counts["reports"] > 1 {
					t.Errorf("%d replicas, bad at %v: reported %v, want %v", k.replicas, k.bad, c.reported, k.want)
				}
			})
		}
	}
}

// Of a read from two DataNodes at once that finds one replica bad the NameNode hears, too.
func TestCorruptLosersOfAHedgeAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(100, 2)
		c.next = func(req *data.ReadRequest, _ int) error {
			if req.Node.GetId().GetDatanodeUuid() == "uuid-1" {
				time.Sleep(2 * time.Second)
				return fmt.Errorf("at 512: %w", transfer.ErrChecksum)
			}
			time.Sleep(3 * time.Second)
			return nil
		}
		cfg := c.config()
		cfg.Hedge, cfg.Hedges = time.Second, NewHedges(1)
		f, err := Open(t.Context(), cfg, "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_, err = f.ReadAt(t.Context(), make([]byte, 100), 0)
		synctest.Wait()
		if err != nil || !slices.Equal(c.reported, []string{"uuid-1"}) {
			t.Errorf("reported %v, %v", c.reported, err)
		}
		// The file is not read there any more.
		c.from = nil
		for range 2 {
			if _, err := f.ReadAt(t.Context(), make([]byte, 100), 0); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if !slices.Equal(c.from, []string{"uuid-2", "uuid-2"}) || len(c.reported) != 1 {
			t.Errorf("read from %v, reported %v", c.from, c.reported)
		}
	})
}

// A replica that did not match, and does when all were read again, proves that those may be good
// which did not match meanwhile: of none of them the NameNode hears.
func TestReplicasThatTurnGoodAreNotReported(t *testing.T) {
	for _, k := range []struct {
		name string
		fail func(node string, n int) error // of the n-th read
		want []string
	}{
		{"all bad", func(_ string, n int) error { return mismatch(n <= 3) }, nil},
		{"all bad, and then moved", func(node string, n int) error {
			if node != "uuid-4" && n > 3 {
				return errors.New("connection refused")
			}
			return mismatch(n <= 3)
		}, nil},
		{"one unreachable", func(node string, n int) error {
			if node == "uuid-3" {
				return errors.New("connection refused")
			}
			return mismatch(n <= 3)
		}, nil},
		{"one good later", func(node string, n int) error {
			if node == "uuid-3" {
				return map[bool]error{true: errors.New("connection refused")}[n <= 3]
			}
			return mismatch(true)
		}, []string{"uuid-1", "uuid-2"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(100, 3)
			c.next = func(req *data.ReadRequest, n int) error { return k.fail(req.Node.GetId().GetDatanodeUuid(), n) }
			c.answer = func(resp *hdfspb.LocatedBlocksProto) {
				if len(c.asked) > 1 {
					resp.Blocks[0].Locs = append(resp.Blocks[0].Locs, newCluster(0, 4).nodes[3])
				}
			}
			f, err := Open(t.Context(), c.config(), "/file")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.ReadAt(t.Context(), make([]byte, 100), 0); err != nil {
				t.Errorf("%s: %v", k.name, err)
			}
			f.Close()
			if !slices.Equal(c.reported, k.want) || c.counts["reports"] > 1 {
				t.Errorf("%s: reported %v in %d calls, want %v", k.name, c.reported, c.counts["reports"], k.want)
			}
		})
	}
}

func mismatch(bad bool) error {
	if bad {
		return fmt.Errorf("at 512: %w", transfer.ErrChecksum)
	}
	return nil
}

// A silent is a NameNode that does not answer reports.
type silent struct{ *cluster }

func (s silent) Call(ctx context.Context, method string, req, resp proto.Message) error {
	if method == "reportBadBlocks" {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return s.cluster.Call(ctx, method, req, resp)
}

// A read that has its bytes does not wait for the report of a bad replica. Close does, for a
// while, and the end of the read's context does not end the report.
func TestReadsDoNotWaitForReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(100, 2)
		c.next = func(req *data.ReadRequest, _ int) error {
			return mismatch(req.Node.GetId().GetDatanodeUuid() == "uuid-1")
		}
		cfg := c.config()
		cfg.Names = silent{c}
		f, err := Open(t.Context(), cfg, "/file")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := f.ReadAt(ctx, make([]byte, 100), 0); err != nil || time.Since(began) != 0 {
			t.Errorf("a read took %v: %v", time.Since(began), err)
		}
		cancel()
		if err := f.Close(); err != nil || time.Since(began) != reportTimeout {
			t.Errorf("closed after %v: %v", time.Since(began), err)
		}
	})
}

// A DataNode that has no room for one client more has not failed, whichever fails after it: the
// read goes on for longer than after failures.
func TestFullDataNodesHaveNotFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(100, 2)
		cfg := c.config()
		rounds := 3 * cfg.Failures
		c.read = func(req *data.ReadRequest, n int) error {
			switch {
			case req.Node.GetId().GetDatanodeUuid() == "uuid-2":
				return errors.New("connection refused")
			case n < 2*rounds:
				return data.ErrNoRoom
			}
			return nil
		}
		f, err := Open(t.Context(), cfg, "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.ReadAt(t.Context(), make([]byte, 10), 0); err != nil || len(c.asked) != 1+rounds {
			t.Errorf("asked %d times, %v", len(c.asked), err)
		}
		c.read = func(_ *data.ReadRequest, n int) error {
			if n == 1 {
				return data.ErrNoRoom
			}
			return errors.New("connection refused")
		}
		c.counts["read"] = 0
		if _, err := f.ReadAt(t.Context(), make([]byte, 10), 0); !errors.Is(err, ErrMissing) {
			t.Errorf("%v", err)
		}
		c.read = func(*data.ReadRequest, int) error { return data.ErrNoRoom }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := f.ReadAt(ctx, make([]byte, 10), 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// become has the NameNode tell of another file at the path from now on, all of whose blocks but the
// first kept are others, by their ids. It is the n-th one.
func (c *cluster) become(n, kept int) {
	c.answer = func(resp *hdfspb.LocatedBlocksProto) {
		for _, lb := range append(resp.Blocks, resp.LastBlock) {
			if id := lb.GetB().GetBlockId(); id >= uint64(100+kept) && id < 1000 {
				lb.B.BlockId = proto.Uint64(id + uint64(1000*n))
			}
		}
	}
}

// A file in whose place another one comes while it is read ends the read: never are the bytes of
// both mixed.
func TestReplacedFilesAreNotMixed(t *testing.T) {
	replaced := func(t *testing.T, err error) {
		t.Helper()
		if !errors.Is(err, ErrReplaced) {
			t.Errorf("%v", err)
		}
	}
	open := func(t *testing.T, c *cluster) *File {
		f, err := Open(t.Context(), c.config(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	p := make([]byte, 100)
	t.Run("where nothing was known", func(t *testing.T) {
		c := newCluster(5*testBlock, 2)
		f := open(t, c)
		c.become(1, 0)
		_, err := f.ReadAt(t.Context(), p, 4*testBlock)
		replaced(t, err)
		_, err = io.Copy(io.Discard, f)
		replaced(t, err)
	})
	t.Run("where a block was known", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(5*testBlock, 2)
			f := open(t, c)
			c.become(1, 0)
			c.read = func(*data.ReadRequest, int) error { return errors.New("there is no such replica") }
			_, err := f.ReadAt(t.Context(), p, testBlock)
			replaced(t, err)
		})
	})
	t.Run("while it grows", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(2*testBlock, 2)
			c.open, c.visible = true, func(string) (int64, error) { return 1000, nil }
			f := open(t, c)
			c.become(1, 0)
			c.read = func(*data.ReadRequest, int) error { return errors.New("there is no such replica") }
			_, err := f.ReadAt(t.Context(), p, testBlock)
			replaced(t, err)
			replaced(t, f.Refresh(t.Context()))
			c.answer, c.content, c.open = nil, nil, false // by an empty one
			c.answer = func(resp *hdfspb.LocatedBlocksProto) { resp.LastBlock = nil }
			replaced(t, f.Refresh(t.Context()))
			if f.Length() != testBlock+1000 {
				t.Errorf("%d bytes", f.Length())
			}
		})
	})
}

// A file that was appended to, or whose blocks have got other generations, is the same one.
func TestFilesThatGoOnAreTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(10*testBlock, 1)
		f, err := Open(t.Context(), c.config(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		p := make([]byte, 100)
		read := func(block, asked int) {
			t.Helper()
			if _, err := f.ReadAt(t.Context(), p, int64(block)*testBlock); err != nil || !bytes.Equal(p, c.content[block*testBlock:][:100]) {
				t.Errorf("block %d: %v", block, err)
			}
			if len(c.asked) != asked {
				t.Errorf("the NameNode was asked %d times, want %d", len(c.asked), asked)
			}
		}
		read(0, 1)
		read(2, 2) // and of the block behind it: the last one says that it is the same file
		c.become(1, 6)
		read(5, 4) // the last one is another, so from block 3 on
		read(4, 4)
		read(7, 5)
		c.become(2, 6)
		if _, err := f.ReadAt(t.Context(), p, 9*testBlock); !errors.Is(err, ErrReplaced) {
			t.Errorf("%v", err)
		}
		c.answer = func(resp *hdfspb.LocatedBlocksProto) {
			for _, lb := range append(resp.Blocks, resp.LastBlock) {
				lb.B.GenerationStamp = proto.Uint64(2)
			}
		}
		c.read = func(req *data.ReadRequest, _ int) error {
			if req.Block.GetGenerationStamp() < 2 {
				return errors.New("there is no such replica")
			}
			return nil
		}
		read(0, 8)
	})
}

// A token that is refused is replaced once, and the DataNode is not to blame.
func TestTokensAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(100, 2)
		c.read = func(_ *data.ReadRequest, n int) error {
			if n == 1 {
				return &data.StatusError{Status: hdfspb.Status_ERROR_ACCESS_TOKEN}
			}
			return nil
		}
		f, err := Open(t.Context(), c.config(), "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		began := time.Now()
		if _, err := f.ReadAt(t.Context(), make([]byte, 100), 0); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(c.from, []string{"uuid-1", "uuid-1"}) || len(c.asked) != 2 || time.Since(began) != 0 {
			t.Errorf("read from %v, asked %d times, in %v", c.from, len(c.asked), time.Since(began))
		}
	})
}

// The length of a file that is being written is what its DataNodes say.
func TestGrowingFiles(t *testing.T) {
	notThere := exception.New(exception.ReplicaNotFound, "Replica not found")
	for _, test := range []struct {
		name    string
		visible func(string) (int64, error)
		length  int64
		bad     bool
	}{
		{"the first", func(string) (int64, error) { return 77, nil }, testBlock + 77, false},
		{"the second", func(node string) (int64, error) {
			if node == "uuid-1" {
				return 0, errors.New("connection refused")
			}
			return 78, nil
		}, testBlock + 78, false},
		{"not begun", func(string) (int64, error) { return 0, notThere }, testBlock, false},
		{"nobody knows", func(node string) (int64, error) {
			if node == "uuid-1" {
				return 0, notThere
			}
			return 0, errors.New("connection refused")
		}, 0, true},
		{"one makes no sense", func(node string) (int64, error) {
			if node == "uuid-1" {
				return -1, nil
			}
			return 79, nil
		}, testBlock + 79, false},
		{"none makes sense", func(string) (int64, error) { return math.MaxInt64, nil }, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newCluster(2*testBlock, 2)
			c.open, c.visible = true, test.visible
			f, err := Open(t.Context(), c.config(), "/file")
			if (err != nil) != test.bad {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			defer f.Close()
			c.read = func(req *data.ReadRequest, _ int) error {
				if grows := req.Block.GetBlockId() > 100; req.Growing != grows {
					t.Errorf("block %d grows: %t", req.Block.GetBlockId(), req.Growing)
				}
				return nil
			}
			got, err := io.ReadAll(f)
			if f.Length() != test.length || !f.Growing() || err != nil || !bytes.Equal(got, c.content[:test.length]) {
				t.Errorf("%d bytes of %d: %v", len(got), f.Length(), err)
			}
			c.open = false
			if err := f.Refresh(t.Context()); err != nil || f.Length() != 2*testBlock || f.Growing() {
				t.Errorf("closed, and it has %d bytes: %v", f.Length(), err)
			}
		})
	}
}

// What the NameNode tells of a block that is being written, when it is asked for others, is not
// taken over what a DataNode has told of it.
func TestGrowingBlocksOutliveOthersRefresh(t *testing.T) {
	const visible = 5000
	for _, grown := range []bool{false, true} { // after it was opened, or before
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(3*testBlock, 1)
			refuse := false
			c.visible = func(string) (int64, error) { return visible, nil }
			c.answer = func(resp *hdfspb.LocatedBlocksProto) {
				if c.open {
					resp.LastBlock.B.NumBytes = proto.Uint64(100)
					resp.Blocks = append(resp.Blocks, resp.LastBlock)
				}
			}
			c.read = func(req *data.ReadRequest, _ int) error {
				last := req.Block.GetBlockId() == 102
				if refuse || last && c.open && !req.Growing {
					refuse = false
					return errors.New("there is no such replica")
				}
				return nil
			}
			c.open = !grown
			f, err := Open(t.Context(), c.config(), "/file")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			length := f.Length()
			c.open, refuse = true, true
			p := make([]byte, 100)
			for _, off := range []int64{0, 2*testBlock + 3000} {
				if _, err := f.ReadAt(t.Context(), p, off); err != nil || !bytes.Equal(p, c.content[off:][:100]) {
					t.Errorf("grown %v, at %d: %v", grown, off, err)
				}
				if off == 0 && f.Length() != length {
					t.Errorf("grown %v: the length was %d, and is %d", grown, length, f.Length())
				}
			}
			if want := map[bool]int{false: 2, true: 5}[grown]; len(c.asked) != want {
				t.Errorf("grown %v: the NameNode was asked %d times, want %d", grown, len(c.asked), want)
			}
			// Nor is it when the block was not among the first.
			f.known.list = f.known.list[:1]
			_, err = f.ReadAt(t.Context(), p, 2*testBlock+visible-100)
			if b := f.known.find(2 * testBlock); err != nil || b == nil || !b.growing || b.length != visible {
				t.Errorf("grown %v: %+v, %v", grown, b, err)
			}
		})
	}
}

// The NameNode is asked again for the DataNodes of a last block with bytes that is being
// written, and a file of which it knows none then is not opened without them.
func TestGrowingFilesWithoutDataNodes(t *testing.T) {
	for _, k := range []struct {
		name   string
		empty  bool
		after  int // so many answers DataNodes are known
		length int64
		asked  int
	}{
		{"for a while", false, 3, testBlock + 77, 4},
		{"for long", false, 4, -1, 4},
		{"of which nobody has a byte", true, 4, testBlock, 1},
	} {
		t.Run(k.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(2*testBlock, 2)
				c.open, c.visible = true, func(string) (int64, error) { return 77, nil }
				c.answer = func(resp *hdfspb.LocatedBlocksProto) {
					if len(c.asked) <= k.after {
						resp.LastBlock.Locs = nil
					}
					if k.empty {
						resp.LastBlock.B.NumBytes = proto.Uint64(0)
					}
				}
				began := time.Now()
				f, err := Open(t.Context(), c.config(), "/file")
				if k.length < 0 {
					if !errors.Is(err, errNoneKnown) {
						t.Errorf("%v", err)
					}
				} else if err != nil || f.Length() != k.length {
					t.Errorf("%+v, %v", f, err)
				}
				if took := time.Since(began); len(c.asked) != k.asked || took != time.Duration(k.asked-1)*lastPause {
					t.Errorf("asked %d times in %v", len(c.asked), took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), lastPause/2)
				defer cancel()
				c.asked = nil
				if _, err := Open(ctx, c.config(), "/file"); !k.empty && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// A read that takes long is begun at a second DataNode, if so many may be under way, and
// no goroutine stays.
func TestHedges(t *testing.T) {
	for _, room := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(100, 2)
			c.next = func(req *data.ReadRequest, _ int) error {
				if req.Node.GetId().GetDatanodeUuid() == "uuid-1" {
					time.Sleep(10 * time.Second)
				}
				return nil
			}
			cfg := c.config()
			cfg.Hedge, cfg.Hedges = time.Second, NewHedges(room)
			f, err := Open(t.Context(), cfg, "/file")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			p, began := make([]byte, 100), time.Now()
			if _, err := f.ReadAt(t.Context(), p, 0); err != nil || !bytes.Equal(p, c.content) {
				t.Error(err)
			}
			if took, want := time.Since(began), []time.Duration{10 * time.Second, time.Second}[room]; took != want {
				t.Errorf("it took %v, want %v", took, want)
			}
			cfg.Hedges.Close()
			if want := 1 + room; c.counts["read"] != want {
				t.Errorf("%d reads, want %d", c.counts["read"], want)
			}
		})
	}
}

// Whatever a NameNode answers, opening and reading end, without a panic and with no byte
// at a wrong place.
func FuzzLocatedBlocks(f *testing.F) {
	seed, err := proto.Marshal(&hdfspb.LocatedBlocksProto{
		FileLength: proto.Uint64(2 * testBlock), UnderConstruction: proto.Bool(false), IsLastBlockComplete: proto.Bool(true),
		Blocks: []*hdfspb.LocatedBlockProto{newCluster(testBlock, 1).located(0)}, LastBlock: newCluster(testBlock, 1).located(0),
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed, int64(0))
	f.Add([]byte{}, int64(5))
	f.Fuzz(func(t *testing.T, answer []byte, at int64) {
		var lbs hdfspb.LocatedBlocksProto
		if proto.Unmarshal(answer, &lbs) != nil {
			return
		}
		list, err := convert(lbs.GetBlocks())
		if err != nil {
			return
		}
		var known blocks
		known.add(list)
		for i, b := range known.list {
			if b.length < 1 || b.start < 0 || b.end() < b.start || i > 0 && known.list[i-1].start >= b.start {
				t.Fatalf("block %d is at %d with %d bytes", i, b.start, b.length)
			}
		}
		if b := known.find(at); b != nil && (b.start > at || b.end() <= at) {
			t.Fatalf("%d is found in the block at %d with %d bytes", at, b.start, b.length)
		}
	})
}

// Of several DataNodes on the host that the NameNode puts first, the one is read from that has
// been read from before. Other hosts' DataNodes are not: the NameNode knows which is near, and
// spreads who reads.
func TestReadsStayWithADataNodeOfTheHost(t *testing.T) {
	c := newCluster(4*testBlock, 3)
	c.nodes[1].Id.IpAddr = c.nodes[0].Id.IpAddr
	orders := [][]int{{0, 1, 2}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}}
	c.answer = func(resp *hdfspb.LocatedBlocksProto) {
		for _, lb := range resp.GetBlocks() {
			for i, at := range orders[lb.GetOffset()/testBlock] {
				lb.Locs[i] = c.nodes[at]
			}
		}
	}
	cfg := c.config()
	cfg.Prefetch = 4 * testBlock
	f, err := Open(t.Context(), cfg, "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 100)
	read := func(block int, want string) {
		t.Helper()
		if _, err := f.ReadAt(t.Context(), b, int64(block)*testBlock); err != nil {
			t.Fatal(err)
		}
		if got := c.from[len(c.from)-1]; got != want {
			t.Errorf("block %d was read from %s, want %s", block, got, want)
		}
	}
	read(0, "uuid-1")
	read(1, "uuid-1")
	read(3, "uuid-1")
	read(2, "uuid-3")
	read(1, "uuid-2") // nothing is known to be awake there any more
	read(0, "uuid-2")
	c.read = func(req *data.ReadRequest, _ int) error {
		if req.Node.GetId().GetDatanodeUuid() == "uuid-2" {
			return errors.New("it is gone")
		}
		return nil
	}
	read(3, "uuid-3") // the next one of the NameNode's order
	read(1, "uuid-1")
	read(0, "uuid-1")
}

// placing is a cluster whose readers put bytes into the caller's memory, but for each third
// time, and fail at times.
type placing struct {
	*cluster
	placed int
}

func (c *placing) Read(ctx context.Context, req *data.ReadRequest) (data.BlockReader, error) {
	r, err := c.cluster.Read(ctx, req)
	if err != nil {
		return nil, err
	}
	return &placer{r.(*ranged), c}, nil
}

type placer struct {
	*ranged
	to *placing
}

func (r *placer) Place(p []byte) (int, error) {
	n := r.c.count("place")
	if n%3 == 0 || r.at == r.end {
		return 0, nil
	}
	for i := range p {
		p[i] = 0xee
	}
	if n%7 == 0 {
		return 0, errors.New("the ring has failed")
	}
	n = copy(p, r.c.content[r.at:min(r.at+1234, r.end)])
	r.at += n
	r.to.placed += n
	return n, nil
}

func TestReadsArePlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &placing{cluster: newCluster(5*testBlock+123, 3)}
		cfg := c.config()
		cfg.Path = c
		f, err := Open(t.Context(), cfg, "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		var got []byte
		b := make([]byte, leastFill)
		for err == nil {
			var n int
			n, err = f.Read(b)
			got = append(got, b[:n]...)
		}
		if err != io.EOF || !bytes.Equal(got, c.content) {
			t.Errorf("%d bytes of %d, or others: %v", len(got), len(c.content), err)
		}
		if c.placed < len(got)/3 || c.placed >= len(got) {
			t.Errorf("%d of %d bytes were placed", c.placed, len(got))
		}
		placed := c.placed
		c.whole(t, cfg) // WriteTo has no memory of its own, and io.ReadAll little
		if c.placed != placed {
			t.Error("bytes were placed where there is little room")
		}
	})
}
