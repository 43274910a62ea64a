package writer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hdfs/internal/client/data"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

func randomBytes(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b) // never fails
	return b
}

// write stores content with a new stream and returns the first error.
func (c *cluster) write(cfg *Config, content []byte) error {
	s := New(c.t.Context(), cfg, c.file, nil)
	_, err := s.Write(content)
	return errors.Join(err, s.Close(c.t.Context()))
}

// mustWrite stores content and compares what came of it.
func (c *cluster) mustWrite(cfg *Config, content []byte) {
	c.t.Helper()
	if err := c.write(cfg, content); err != nil {
		c.t.Fatal(err)
	}
	if !bytes.Equal(c.content(), content) {
		c.t.Fatalf("%d bytes were stored, %d written, or others", len(c.content()), len(content))
	}
	if want := int64((len(content)-1)%testBlock) + 1; c.length != want {
		c.t.Errorf("the last block is said to have %d bytes, want %d", c.length, want)
	}
}

// Files are cut into blocks and packets, of which the last of each block is empty and
// goes when all others are acknowledged.
func TestBlocksAndPackets(t *testing.T) {
	for _, size := range []int{1, 511, 512, 513, testPacket, testBlock - 1, testBlock, testBlock + 1, 3*testBlock + 777} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, false)
			c.send = func(l *line, k *data.Packet, _ int) error {
				if k.Last && (k.DataLen != 0 || len(l.acks) != 0 || k.Offset != int64(len(c.blocks[l.req.Block.GetBlockId()]))) {
					t.Errorf("the last packet has %d bytes at %d", k.DataLen, k.Offset)
				}
				if k.DataLen > testPacket {
					t.Errorf("a packet of %d bytes", k.DataLen)
				}
				return nil
			}
			c.mustWrite(c.config(), randomBytes(size))
			if blocks := (size + testBlock - 1) / testBlock; len(c.order) != blocks || len(c.pipelines) != blocks {
				t.Errorf("%d bytes: %d blocks by %d pipelines", size, len(c.order), len(c.pipelines))
			}
			for i, req := range callsOf[*hdfspb.AddBlockRequestProto](c) {
				if (req.Previous == nil) != (i == 0) || i > 0 && req.Previous.GetNumBytes() != testBlock {
					t.Errorf("block %d is asked for after %v", i, req.Previous)
				}
			}
		})
	}
}

// When DataNodes are replaced, as HDFS's ReplaceDatanodeOnFailure has it.
func TestReplacePolicies(t *testing.T) {
	for _, test := range []struct {
		policy             Replace
		replication, nodes int
		flushed, want      bool
	}{
		{ReplaceDefault, 3, 3, true, false},
		{ReplaceDefault, 3, 2, false, false},
		{ReplaceDefault, 3, 2, true, true},
		{ReplaceDefault, 3, 1, false, true},
		{ReplaceDefault, 2, 1, true, false},
		{ReplaceDefault, 1, 0, true, false},
		{ReplaceDefault, 10, 6, false, false},
		{ReplaceDefault, 10, 5, false, true},
		{ReplaceAlways, 2, 1, false, true},
		{ReplaceAlways, 2, 2, false, false},
		{ReplaceNever, 3, 1, true, false},
	} {
		if got := test.policy.wants(test.replication, test.nodes, test.flushed); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// Whom an acknowledgement blames.
func TestBlame(t *testing.T) {
	const (
		ok   = hdfspb.Status_SUCCESS
		bad  = hdfspb.Status_ERROR
		sum  = hdfspb.Status_ERROR_CHECKSUM
		back = hdfspb.Status_OOB_RESTART
	)
	three := []*hdfspb.DatanodeInfoProto{node(1, false), node(2, false), node(3, false)}
	for _, test := range []struct {
		replies    []hdfspb.Status
		bad        int // -1: nobody
		restarting bool
	}{
		{[]hdfspb.Status{ok, ok, ok}, -1, false},
		{[]hdfspb.Status{bad, ok, ok}, 0, false},
		{[]hdfspb.Status{ok, bad, ok}, 1, false},
		{[]hdfspb.Status{ok, bad, bad}, 2, false}, // as DFSClient: from the end of the pipeline
		{[]hdfspb.Status{ok, ok, sum}, 2, false},
		{[]hdfspb.Status{ok, back, ok}, 1, true},
		{[]hdfspb.Status{ok, ok}, 2, false},
		{[]hdfspb.Status{ok, bad}, 1, false},
		{nil, 0, false},
		{[]hdfspb.Status{ok, ok, ok, bad}, 2, false}, // there is no fourth: the last one of three has failed
		{[]hdfspb.Status{ok, ok, ok, ok}, 2, false},
	} {
		f := blame(&transfer.Ack{Replies: test.replies}, three)
		switch {
		case (f == nil) != (test.bad < 0):
			t.Errorf("%v: %+v", test.replies, f)
		case f != nil && (f.bad != test.bad || f.restarting != test.restarting || f.err == nil):
			t.Errorf("%v: %+v", test.replies, f)
		}
	}
}

// After a failure the next pipeline has the other DataNodes, a new generation, and what
// was not acknowledged; the NameNode hears of it.
func TestRecovery(t *testing.T) {
	for victim := range 3 {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, false)
			c.ack = func(l *line, seqno int64) *transfer.Ack {
				if seqno == 5 && len(l.req.Nodes) == 3 {
					return replies(l, seqno, victim, hdfspb.Status_ERROR)
				}
				return nil
			}
			c.mustWrite(c.config(), randomBytes(testBlock))
			if len(c.pipelines) != 2 {
				t.Fatalf("%d pipelines", len(c.pipelines))
			}
			p := c.pipelines[1]
			if p.Stage != stageStreamingRecovery || p.Block.GetNumBytes() != 5*testPacket || p.Sent < 6*testPacket || p.Sent > testBlock ||
				p.Block.GetGenerationStamp() != 1000 || p.Generation != 1001 {
				t.Errorf("%+v", p)
			}
			want := slices.Delete([]string{"uuid-1", "uuid-2", "uuid-3"}, victim, victim+1)
			if !slices.Equal(uuids(p.Nodes), want) || p.Storages[0] != "storage of "+want[0] || len(p.Storages) != 2 || len(p.Types) != 2 {
				t.Errorf("DataNodes %v, storages %v, types %v", uuids(p.Nodes), p.Storages, p.Types)
			}
			told := callsOf[*hdfspb.UpdatePipelineRequestProto](c)
			if len(told) != 1 || told[0].GetNewBlock().GetGenerationStamp() != 1001 || len(told[0].GetNewNodes()) != 2 || len(told[0].GetStorageIDs()) != 2 {
				t.Errorf("the NameNode is told %v", told)
			}
		})
	}
}

// A broken connection is the first DataNode's fault. A failure at the end of a block sends
// nothing again.
func TestRecoveryOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		c.send = func(l *line, k *data.Packet, _ int) error {
			if k.Last && len(l.req.Nodes) == 3 {
				return errors.New("connection reset")
			}
			return nil
		}
		c.mustWrite(c.config(), randomBytes(3*testPacket))
		if len(c.pipelines) != 2 || c.pipelines[1].Stage != stageCloseRecovery || !slices.Equal(uuids(c.pipelines[1].Nodes), []string{"uuid-2", "uuid-3"}) {
			t.Errorf("%+v", c.pipelines)
		}
		if c.counts["packet"] != 4 {
			t.Errorf("%d packets", c.counts["packet"])
		}
	})
}

// Acknowledgements that make no sense end a pipeline, and not the write.
func TestMalformedAcknowledgements(t *testing.T) {
	for name, wrong := range map[string]*transfer.Ack{
		"too few":       {Seqno: 2, Replies: make([]hdfspb.Status, 1)},
		"too many":      {Seqno: 2, Replies: make([]hdfspb.Status, 4)},
		"another":       {Seqno: 3, Replies: make([]hdfspb.Status, 3)},
		"an old one":    {Seqno: 0, Replies: make([]hdfspb.Status, 3)},
		"of no packet":  {Seqno: -7, Replies: make([]hdfspb.Status, 3)},
		"largest seqno": {Seqno: 1<<63 - 1, Replies: make([]hdfspb.Status, 3)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, 3, false)
				c.ack = func(_ *line, seqno int64) *transfer.Ack {
					if seqno == 2 && len(c.pipelines) == 1 {
						return wrong
					}
					return nil
				}
				c.mustWrite(c.config(), randomBytes(testBlock))
				if len(c.pipelines) != 2 {
					t.Errorf("%d pipelines", len(c.pipelines))
				}
			})
		})
	}
}

// Who fails at the same packet again and again may be the client: the write ends.
func TestFailuresAtOnePacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 12, false)
		c.ack = func(l *line, seqno int64) *transfer.Ack {
			if seqno == 3 {
				return replies(l, seqno, 0, hdfspb.Status_ERROR_CHECKSUM)
			}
			return nil
		}
		cfg := c.config()
		cfg.Replace = ReplaceAlways
		if err := c.write(cfg, randomBytes(testBlock)); !errors.Is(err, errTooOften) {
			t.Errorf("%v", err)
		}
		if len(c.pipelines) != 1+maxRecoveries {
			t.Errorf("%d pipelines", len(c.pipelines))
		}
	})
	// With progress in between there is no bound.
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 20, false)
		c.ack = func(l *line, seqno int64) *transfer.Ack {
			if n := len(c.pipelines); n <= 8 && seqno == int64(2*n-1) {
				return replies(l, seqno, 1, hdfspb.Status_ERROR)
			}
			return nil
		}
		cfg := c.config()
		cfg.Replace = ReplaceAlways
		c.mustWrite(cfg, randomBytes(testBlock))
		if len(c.pipelines) != 9 || len(c.copies) != 8 {
			t.Errorf("%d pipelines, %d copies", len(c.pipelines), len(c.copies))
		}
	})
}

// A DataNode that says it restarts is waited for if it is of this host or alone, for so
// long as is configured, and left out otherwise.
func TestRestartingDataNodes(t *testing.T) {
	const away = 11 * time.Second
	for _, test := range []struct {
		name        string
		nodes       int
		local       bool
		back        time.Duration // when it is; 0: never
		fail        bool
		left        int // DataNodes in the last pipeline
		least, most time.Duration
	}{
		{name: "of this host", nodes: 3, local: true, back: away, left: 3, least: away, most: away + 5*time.Second},
		{name: "of another", nodes: 3, back: away, left: 2, most: time.Second},
		{name: "alone", nodes: 1, back: away, left: 1, least: away, most: away + 5*time.Second},
		{name: "never back", nodes: 3, local: true, left: 2, least: 28 * time.Second, most: 36 * time.Second},
		{name: "alone and never back", nodes: 1, fail: true, left: 1, least: 28 * time.Second, most: 36 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, test.nodes, test.local)
				c.file.Replication = test.nodes
				began := time.Now()
				c.ack = func(l *line, seqno int64) *transfer.Ack {
					if seqno == 4 && len(c.pipelines) == 1 {
						began = time.Now()
						return replies(l, seqno, 0, hdfspb.Status_OOB_RESTART)
					}
					return nil
				}
				c.setup = func(req *data.WriteRequest, n int) error {
					if n > 1 && uuid(req.Nodes[0]) == "uuid-1" && (test.back == 0 || time.Since(began) < test.back) {
						return &data.PipelineError{Node: 0, Err: errors.New("connection refused")}
					}
					return nil
				}
				content := randomBytes(testBlock)
				if test.fail {
					if err := c.write(c.config(), content); err == nil {
						t.Error("written without a DataNode")
					}
				} else {
					c.mustWrite(c.config(), content)
				}
				last := c.pipelines[len(c.pipelines)-1]
				if took := time.Since(began); len(last.Nodes) != test.left || took < test.least || took > test.most {
					t.Errorf("%d DataNodes after %v, %d pipelines", len(last.Nodes), took, len(c.pipelines))
				}
			})
		})
	}
}

// A DataNode that says at set-up that it restarts is treated alike.
func TestRestartAtSetUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, true)
		c.file.Replication = 2
		c.ack = func(l *line, seqno int64) *transfer.Ack {
			if seqno == 4 && len(c.pipelines) == 1 {
				return replies(l, seqno, 1, hdfspb.Status_ERROR)
			}
			return nil
		}
		c.setup = func(_ *data.WriteRequest, n int) error {
			if n == 2 {
				return &data.PipelineError{Node: 0, Restarting: true, Err: errors.New("restarting")}
			}
			return nil
		}
		c.mustWrite(c.config(), randomBytes(testBlock))
		if len(c.pipelines) != 3 || !slices.Equal(uuids(c.pipelines[2].Nodes), []string{"uuid-1"}) {
			t.Errorf("%d pipelines, the last of %v", len(c.pipelines), uuids(c.pipelines[len(c.pipelines)-1].Nodes))
		}
	})
}

// fails returns a refusal for the first n calls of a method.
func fails(what string, times int, err error) func(string, proto.Message, int) error {
	return func(method string, _ proto.Message, n int) error {
		if method == what && n <= times {
			return err
		}
		return nil
	}
}

// The NameNode is asked again for a block, after pauses that double, while the one before
// waits for its replicas.
func TestNotReplicatedYet(t *testing.T) {
	notYet := exception.New(exception.NotReplicatedYet, "Not replicated yet: /file")
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		c.call = fails("addBlock", 5, notYet)
		began := time.Now()
		c.mustWrite(c.config(), randomBytes(1000))
		if took := time.Since(began); took != (1+2+4+8+16)*400*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		c.call = fails("addBlock", 100, notYet)
		err := c.write(c.config(), randomBytes(1000))
		var refused *exception.Error
		if !errors.As(err, &refused) || refused.Class != exception.NotReplicatedYet || c.counts["addBlock"] != 6 {
			t.Errorf("%v after %d calls", err, c.counts["addBlock"])
		}
	})
}

// However many tries are allowed, the pauses grow to a minute and no further.
func TestPausesGrowToAMinute(t *testing.T) {
	const tries = 60
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		c.call = fails("addBlock", tries, exception.New(exception.NotReplicatedYet, "Not replicated yet: /file"))
		cfg := c.config()
		cfg.LocateRetries = tries
		began := time.Now()
		c.mustWrite(cfg, randomBytes(1000))
		const doubling = (1<<8 - 1) * 400 * time.Millisecond // 8 pauses of up to 51.2 s
		if took := time.Since(began); took != doubling+(tries-8)*time.Minute {
			t.Errorf("it took %v", took)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		cfg := c.config()
		cfg.LocateRetries, cfg.Names = tries, refusing{c, 1 << 30}
		began := time.Now()
		err := c.write(cfg, randomBytes(1000))
		if took := time.Since(began); err == nil || took < 50*time.Minute || took > 55*time.Minute {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// Close asks again until the NameNode has closed the file, and tells when it gives up.
func TestCompleteIsAskedAgain(t *testing.T) {
	for _, times := range []int{3, 1 << 30} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, false)
			names := refusing{c, times}
			cfg := c.config()
			cfg.Names = names
			began := time.Now()
			err := c.write(cfg, randomBytes(1000))
			took := time.Since(began)
			if times == 3 && (err != nil || took > 100*time.Millisecond) {
				t.Errorf("%v after %v", err, took)
			}
			if times > 3 && (!errors.Is(err, ErrTooFewReplicas) || !strings.Contains(err.Error(), "enough replicas") || took < 12*time.Second || took > 20*time.Second) {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
}

// refusing is a NameNode that does not close a file at once.
type refusing struct {
	*cluster
	times int
}

func (r refusing) Call(ctx context.Context, method string, req, resp proto.Message) error {
	err := r.cluster.Call(ctx, method, req, resp)
	if done, ok := resp.(*hdfspb.CompleteResponseProto); ok && r.counts[method] <= r.times {
		done.Result = proto.Bool(false)
	}
	return err
}

// A DataNode at which a block could not be begun is left out of the file's next blocks for
// a while; the NameNode is asked without exclusions if it has no other.
func TestExclusions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 4, false)
		c.setup = func(req *data.WriteRequest, n int) error {
			if n == 1 {
				return &data.PipelineError{Node: 1, Err: errors.New("no room")}
			}
			return nil
		}
		cfg := c.config()
		s := New(t.Context(), cfg, testFile, nil)
		content := randomBytes(3 * testBlock)
		for i := range 3 {
			if _, err := s.Write(content[i*testBlock : (i+1)*testBlock]); err != nil {
				t.Fatal(err)
			}
			if err := s.Flush(t.Context(), FlushOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(cfg.ExcludeFor * 6 / 10)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var excluded []int
		for _, req := range callsOf[*hdfspb.AddBlockRequestProto](c) {
			excluded = append(excluded, len(req.GetExcludeNodes()))
		}
		if !slices.Equal(excluded, []int{0, 1, 1, 0}) || !bytes.Equal(c.content(), content) || c.counts["abandonBlock"] != 1 {
			t.Errorf("excluded %v, %d abandoned", excluded, c.counts["abandonBlock"])
		}
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		c.setup = func(_ *data.WriteRequest, n int) error {
			if n == 1 {
				return &data.PipelineError{Node: 2, Err: errors.New("no room")}
			}
			return nil
		}
		c.call = func(method string, req proto.Message, _ int) error {
			if add, ok := req.(*hdfspb.AddBlockRequestProto); ok && len(add.GetExcludeNodes()) > 0 {
				return exception.New(exception.IO, "File /file could only be written to 0 of the 1 minReplication nodes")
			}
			return nil
		}
		c.mustWrite(c.config(), randomBytes(1000))
	})
}

// A NameNode that has just started may know no DataNode yet.
func TestBlocksWithoutDataNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 0, false)
		time.AfterFunc(time.Second, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.nodes = append(c.nodes, node(1, false))
		})
		c.mustWrite(c.config(), randomBytes(1000))
	})
}

// A pipeline may turn out not to be set up after packets were sent: then another block
// gets them, without the DataNode to blame, if there is one.
func TestPipelinesThatWereNeverSetUp(t *testing.T) {
	for _, test := range []struct {
		what     *transfer.Ack
		excluded int
	}{{neverSetUp, 1}, {refusedNow, 0}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 4, false)
			c.ack = func(l *line, seqno int64) *transfer.Ack {
				if len(c.pipelines) == 1 {
					return test.what
				}
				return nil
			}
			c.mustWrite(c.config(), randomBytes(testBlock+1))
			adds := callsOf[*hdfspb.AddBlockRequestProto](c)
			if len(adds) != 3 || len(adds[1].GetExcludeNodes()) != test.excluded || c.counts["abandonBlock"] != 1 {
				t.Errorf("%v", adds)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 40, false)
			c.ack = func(*line, int64) *transfer.Ack { return test.what }
			if err := c.write(c.config(), randomBytes(testBlock)); err == nil {
				t.Error("written without a pipeline")
			}
			if n := len(c.pipelines); test.excluded == 1 && n != 4 || test.excluded == 0 && n != maxRefused+1 {
				t.Errorf("%d pipelines", n)
			}
		})
	}
}

// Pipelines that are refused though no DataNode has failed leave as many as may be begun anew after
// failures.
func TestRefusalsAreNoFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 40, false)
		cfg := c.config()
		c.ack = func(*line, int64) *transfer.Ack {
			switch n := len(c.pipelines); {
			case n <= cfg.BlockRetries+1:
				return refusedNow
			case n <= 2*cfg.BlockRetries+1:
				return neverSetUp
			}
			return nil
		}
		c.mustWrite(cfg, randomBytes(1000))
		if n := len(c.pipelines); n != 2*cfg.BlockRetries+2 {
			t.Errorf("%d pipelines", n)
		}
	})
}

// A DataNode that takes another's place gets a copy from one that is left. If that fails,
// another one is tried; one that has the replica needs none.
func TestReplacements(t *testing.T) {
	exists := &data.StatusError{Status: hdfspb.Status_ERROR_EXISTS, Message: "finalized"}
	for _, test := range []struct {
		name   string
		nodes  int
		copy   func(*data.TransferRequest, int) error
		copies int
		last   []string
	}{
		{"copied", 4, nil, 1, []string{"uuid-2", "uuid-3", "uuid-4"}},
		{"the second", 5, func(_ *data.TransferRequest, n int) error {
			if n == 1 {
				return errors.New("no room")
			}
			return nil
		}, 2, []string{"uuid-2", "uuid-3", "uuid-5"}},
		{"it exists", 4, func(*data.TransferRequest, int) error { return fmt.Errorf("DataNode: %w", exists) }, 1, []string{"uuid-2", "uuid-3", "uuid-4"}},
		{"none", 9, func(*data.TransferRequest, int) error { return errors.New("no room") }, 3, nil},
		{"nobody is left", 3, nil, 0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, test.nodes, false)
				c.copy = test.copy
				c.ack = func(l *line, seqno int64) *transfer.Ack {
					if seqno == 5 && len(c.pipelines) == 1 {
						return replies(l, seqno, 0, hdfspb.Status_ERROR)
					}
					return nil
				}
				cfg := c.config()
				cfg.Replace = ReplaceAlways
				err := c.write(cfg, randomBytes(testBlock))
				if (err == nil) != (test.last != nil) || len(c.copies) != test.copies {
					t.Fatalf("%v after %d copies", err, len(c.copies))
				}
				for i, req := range c.copies {
					if from := []string{"uuid-2", "uuid-3"}[i%2]; uuid(req.From) != from || len(req.To) != 1 || req.Storages[0] != "storage of "+uuid(req.To[0]) || len(req.Types) != 1 {
						t.Errorf("copy %d is from %s to %v", i, uuid(req.From), uuids(req.To))
					}
				}
				if test.last == nil {
					cfg.BestEffort = true
					c2 := newCluster(t, test.nodes, false)
					c2.copy, c2.ack = test.copy, func(l *line, seqno int64) *transfer.Ack {
						if seqno == 5 && len(c2.pipelines) == 1 {
							return replies(l, seqno, 0, hdfspb.Status_ERROR)
						}
						return nil
					}
					cfg.Names, cfg.Path = c2, c2
					c2.mustWrite(cfg, randomBytes(testBlock))
				} else if last := c.pipelines[len(c.pipelines)-1]; !slices.Equal(uuids(last.Nodes), test.last) {
					t.Errorf("the pipeline has %v", uuids(last.Nodes))
				}
			})
		})
	}
}

// An append goes on in the last block, whose DataNodes are completed.
func TestAppendTakesMoreDataNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		before := randomBytes(1234)
		c.blocks[55], c.order = slices.Clone(before), []uint64{55}
		c.copy = func(*data.TransferRequest, int) error {
			return &data.StatusError{Status: hdfspb.Status_ERROR_EXISTS}
		}
		s, err := NewAppend(t.Context(), c.config(), testFile, c.located(55, len(before), c.nodes[:2]))
		if err != nil {
			t.Fatal(err)
		}
		more := randomBytes(10_000)
		if _, err := s.Write(more); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(c.content(), append(before, more...)) {
			t.Errorf("the file has %d bytes, or others", len(c.content()))
		}
		p := c.pipelines[0]
		if p.Stage != stageAppend || len(p.Nodes) != 3 || p.Block.GetNumBytes() != 1234 {
			t.Errorf("%+v", p)
		}
	})
	if _, err := NewAppend(t.Context(), newCluster(t, 0, false).config(), testFile, &hdfspb.LocatedBlockProto{}); err == nil {
		t.Error("a block of no DataNode is appended to")
	}
}

// A pipeline over which nothing is written gets heartbeats, and no other pipeline.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		s := New(t.Context(), c.config(), testFile, nil)
		content := randomBytes(2000)
		if _, err := s.Write(content[:1000]); err != nil {
			t.Fatal(err)
		}
		if err := s.Flush(t.Context(), FlushOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if _, err := s.Write(content[1000:]); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := c.counts["heartbeat"]; n < 13 || n > 20 || len(c.pipelines) != 1 || !bytes.Equal(c.content(), content) {
			t.Errorf("%d heartbeats in 20 intervals, %d pipelines", n, len(c.pipelines))
		}
	})
}

// Flush waits for the DataNodes; the NameNode hears of a block once, and of its length if
// that is wanted.
func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		s := New(t.Context(), c.config(), testFile, nil)
		var syncs int
		c.send = func(_ *line, k *data.Packet, _ int) error {
			if k.Sync {
				syncs++
			}
			return nil
		}
		content := randomBytes(2500)
		for i, o := range []FlushOptions{{}, {}, {Sync: true}, {Sync: true, UpdateLength: true}, {Sync: true}} {
			if i < 4 {
				if _, err := s.Write(content[i*600 : (i+1)*600]); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Flush(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if want := content[:min(i+1, 4)*600]; !bytes.Equal(c.content(), want) {
				t.Errorf("after flush %d the DataNodes have %d bytes", i, len(c.content()))
			}
		}
		told := callsOf[*hdfspb.FsyncRequestProto](c)
		if len(told) != 2 || told[0].LastBlockLength != nil && told[0].GetLastBlockLength() >= 0 || told[1].GetLastBlockLength() != 2400 {
			t.Errorf("the NameNode is told %v", told)
		}
		if syncs != 2 {
			t.Errorf("%d packets ask for the disk; the last flush had nothing new", syncs)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

// A sync at a block's end is one of that block, which has not ended then: it ends before the next
// byte, or with Close. A flush leaves that to a sync after it.
func TestSyncAtTheEndOfABlock(t *testing.T) {
	for _, way := range []string{"Write", "ReadFrom"} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, 3, false)
			s := New(t.Context(), c.config(), testFile, nil)
			var said []string
			c.send = func(l *line, k *data.Packet, _ int) error {
				if k.Sync || k.Last {
					said = append(said, fmt.Sprintf("block %d at %d: sync %t, last %t", l.req.Block.GetBlockId(), k.End(), k.Sync, k.Last))
				}
				return nil
			}
			content := randomBytes(3 * testBlock)
			expect := func(want ...string) {
				t.Helper()
				synctest.Wait()
				c.mu.Lock()
				defer c.mu.Unlock()
				if !slices.Equal(said, want) {
					t.Errorf("%s: the DataNodes are told %q, want %q", way, said, want)
				}
				said = nil
			}
			write := func(block int) {
				t.Helper()
				part := content[block*testBlock : (block+1)*testBlock]
				var err error
				if way == "Write" {
					_, err = s.Write(part)
				} else {
					_, err = s.ReadFrom(bytes.NewReader(part))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			flush := func(o FlushOptions) {
				t.Helper()
				if err := s.Flush(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			write(0)
			flush(FlushOptions{})
			expect()
			flush(FlushOptions{Sync: true, UpdateLength: true})
			flush(FlushOptions{Sync: true}) // of nothing new
			expect("block 101 at 65536: sync true, last false")
			write(1)
			flush(FlushOptions{})
			expect("block 101 at 65536: sync false, last true")
			write(2)
			flush(FlushOptions{Sync: true})
			expect("block 102 at 65536: sync false, last true", "block 103 at 65536: sync true, last false")
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			expect("block 103 at 65536: sync false, last true")
			if !bytes.Equal(c.content(), content) || len(c.order) != 3 {
				t.Errorf("%s: %d bytes in %d blocks", way, len(c.content()), len(c.order))
			}
			if told := callsOf[*hdfspb.FsyncRequestProto](c); told[1].GetLastBlockLength() != testBlock {
				t.Errorf("%s: the NameNode is told %v", way, told)
			}
		})
	}
}

// A reader that fails, or counts wrongly, behind a block's end fails the write, not the stream.
func TestReadersThatFailBehindABlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		s := New(t.Context(), c.config(), testFile, nil)
		content := randomBytes(testBlock + 100)
		broken := errors.New("the disk has failed")
		n, err := s.ReadFrom(io.MultiReader(bytes.NewReader(content[:testBlock]), iotest.ErrReader(broken)))
		if n != testBlock || !errors.Is(err, broken) {
			t.Errorf("%d bytes, %v", n, err)
		}
		if n, err := s.ReadFrom(liar{}); n != 0 || err == nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if n, err := s.ReadFrom(bytes.NewReader(content[testBlock:])); n != 100 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
		if err := s.Close(t.Context()); err != nil || !bytes.Equal(c.content(), content) {
			t.Errorf("%d bytes, %v", len(c.content()), err)
		}
		if _, err := s.ReadFrom(bytes.NewReader(content)); !errors.Is(err, ErrClosed) {
			t.Errorf("%v", err)
		}
	})
}

// liar says that it has read more than there was room for.
type liar struct{}

func (liar) Read(p []byte) (int, error) { return len(p) + 1, nil }

// A DataNode ends who has more packets in a window than it allows, however short they are.
func TestShortPacketsAreCounted(t *testing.T) {
	sum, err := transfer.NewChecksum(hdfspb.ChecksumTypeProto_CHECKSUM_CRC32C, 1)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		cfg := c.config()
		cfg.Packets = data.NewPool(1, sum)
		most := native.WindowPackets(int64(cfg.Window))
		if int64(cfg.Window/cfg.Packets.Memory()) <= most {
			t.Fatalf("the window has no bytes for %d packets", most)
		}
		sent, free := int64(0), make(chan struct{})
		c.send = func(*line, *data.Packet, int) error {
			if sent++; sent == most {
				close(free)
			}
			return nil
		}
		c.ack = func(*line, int64) *transfer.Ack {
			return &transfer.Ack{Seqno: transfer.HeartbeatSeqno, Replies: make([]hdfspb.Status, 3)}
		}
		s := New(t.Context(), cfg, testFile, nil)
		full := make(chan error)
		go func() {
			_, err := s.Write(randomBytes(int(2 * most)))
			full <- err
		}()
		<-free
		synctest.Wait()
		c.mu.Lock()
		if sent != most {
			t.Errorf("%d packets are on their way, want %d", sent, most)
		}
		c.mu.Unlock()
		why := errors.New("enough")
		s.Abort(why)
		if err := <-full; !errors.Is(err, why) {
			t.Error(err)
		}
		<-s.Done()
		if err := s.Close(t.Context()); !errors.Is(err, why) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // and with acknowledgements it goes on
		c := newCluster(t, 3, false)
		cfg := c.config()
		cfg.Packets = data.NewPool(1, sum)
		c.mustWrite(cfg, randomBytes(1000))
	})
}

// The end of a flush's context ends the wait; the end of the stream's, and Abort, end the
// writing.
func TestWritersEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, false)
		held := make(chan struct{})
		c.ack = func(*line, int64) *transfer.Ack {
			return &transfer.Ack{Seqno: transfer.HeartbeatSeqno, Replies: make([]hdfspb.Status, 3)}
		}
		s := New(t.Context(), c.config(), testFile, nil)
		if _, err := s.Write(randomBytes(1000)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Flush(ctx, FlushOptions{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		full := make(chan error)
		go func() {
			_, err := s.Write(randomBytes(testBlock)) // more than the window
			full <- err
		}()
		synctest.Wait()
		why := errors.New("enough")
		s.Abort(why)
		if err := <-full; !errors.Is(err, why) {
			t.Errorf("%v", err)
		}
		<-s.Done()
		if err := s.Close(t.Context()); !errors.Is(err, why) || c.length != -1 {
			t.Errorf("%v, and the file has %d bytes", err, c.length)
		}
		close(held)
	})
}
