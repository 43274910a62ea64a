package simulate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

const (
	packetBytes = 8 << 10
	chunk512    = 512
)

// output writes a file, block after block.
type output struct {
	c    *client
	rng  *rand.Rand
	f    *modelFile
	path string
	size int // of a block

	block *hdfspb.ExtendedBlockProto // being written; nil: none
	token *hdfspb.TokenProto
	nodes []*hdfspb.DatanodeInfoProto
	line  line
	known map[string]losses // by host, before this pipeline was set up
	start int               // of the block in the file
	sent  int               // bytes of the block
	acked int
	ended bool // the last packet is acknowledged

	before *hdfspb.ExtendedBlockProto // the block before
	window int                        // bytes of packets that wait for acknowledgements at most
	seqno  int64                      // of the next packet
	due    int64                      // of the next acknowledgement
	held   int                        // bytes of the packets between
	sizes  []int                      // of each
}

func (u *user) newOutput(f *modelFile, path string) *output {
	// One packet at a time, some, or a whole block.
	window := []int{packetBytes + 256, 3 * packetBytes, 256 << 10}[u.rng.IntN(3)]
	return &output{c: u.c, rng: u.rng, f: f, path: path, size: int(u.s.cfg.blockSize), window: window}
}

type stage = hdfspb.OpWriteBlockProto_BlockConstructionStage

const (
	create            = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_CREATE
	appending         = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND
	appendRecovery    = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_APPEND_RECOVERY
	streamingRecovery = hdfspb.OpWriteBlockProto_PIPELINE_SETUP_STREAMING_RECOVERY
	closeRecovery     = hdfspb.OpWriteBlockProto_PIPELINE_CLOSE_RECOVERY
)

// setUp connects the pipeline under a generation stamp.
func (o *output) setUp(ctx context.Context, st stage, generation uint64, token *hdfspb.TokenProto) error {
	o.release()
	o.c.s.model.mu.Lock()
	o.known = maps.Clone(o.c.s.model.losses)
	o.c.s.model.mu.Unlock()
	w := way(o.rng.IntN(int(ways)))
	l, bad, err := o.connect(ctx, w, st, generation, token)
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		return &badNode{index: bad, err: fmt.Errorf("by %v: %w", w, err)}
	}
	if own, ok := l.(*ownLine); ok && own.lender == nil {
		w = ownLegacy // if one of the DataNodes does not have the native path, or no memory for a window
	}
	o.c.s.h.count("pipelines by "+w.String(), 1)
	o.line, o.seqno, o.due, o.held, o.sizes = l, 0, 0, 0, o.sizes[:0]
	return nil
}

// ofNow is the block with its present length.
func (o *output) ofNow() *hdfspb.ExtendedBlockProto {
	if o.block == nil {
		return nil
	}
	b := proto.Clone(o.block).(*hdfspb.ExtendedBlockProto)
	b.NumBytes = proto.Uint64(uint64(o.acked))
	return b
}

// newBlock asks for the next block and sets its pipeline up.
func (o *output) newBlock(ctx context.Context) error {
	o.before, o.start = o.ofNow(), o.start+o.acked
	return o.begin(ctx, nil)
}

// begin begins the block behind the one before. As Hadoop's client it gives up a block whose
// pipeline can't be set up, and asks for another one without that DataNode.
func (o *output) begin(ctx context.Context, excluded []*hdfspb.DatanodeInfoProto) error {
	for range 4 {
		resp := &hdfspb.AddBlockResponseProto{}
		if err := o.c.call(ctx, "addBlock", &hdfspb.AddBlockRequestProto{Src: &o.path, ClientName: &o.c.name, Previous: o.before, ExcludeNodes: excluded}, resp, rpc.Idempotent); err != nil {
			return err
		}
		lb := resp.GetBlock()
		if len(lb.GetLocs()) == 0 {
			return errors.New("addBlock: no DataNodes")
		}
		o.block, o.token, o.nodes, o.sent, o.acked, o.ended = lb.GetB(), lb.GetBlockToken(), lb.GetLocs(), 0, 0, false
		if o.rng.IntN(20) == 0 { // a client that has other things to do
			time.Sleep(time.Duration(o.rng.Int64N(int64(2 * o.c.s.cfg.hardLimit))))
		}
		err := o.setUp(ctx, create, 0, o.token)
		if err == nil {
			return nil
		}
		var bad *badNode
		if !errors.As(err, &bad) {
			return err
		}
		excluded = append(excluded, o.nodes[bad.index])
		if err := o.abandon(ctx); err != nil {
			return err
		}
	}
	return errors.New("no pipeline could be set up")
}

// stream sends the block's bytes from acked to upTo, and its end if last, and waits until
// all are acknowledged.
func (o *output) stream(ctx context.Context, upTo int, sync, last bool) error {
	block := o.f.data[o.start:]
	from := o.acked / chunk512 * chunk512
	if from == upTo && !last || sync && upTo == o.acked && !last {
		from = max(0, upTo-1) / chunk512 * chunk512 // an hsync without new bytes sends the last ones again
	}
	o.sent = max(o.sent, upTo)
	for at := from; at < upTo && (upTo > o.acked || !last); {
		end := min(upTo, at+packetBytes)
		if err := o.send(ctx, transfer.PacketHeader{Offset: int64(at), Sync: sync && end == upTo}, block[at:end]); err != nil {
			return err
		}
		at = end
	}
	if last {
		if err := o.send(ctx, transfer.PacketHeader{Offset: int64(upTo), Last: true, Sync: sync}, nil); err != nil {
			return err
		}
	}
	for o.due < o.seqno {
		if err := o.await(ctx); err != nil {
			return err
		}
	}
	o.ended = last
	o.acknowledged(upTo, sync)
	return nil
}

// send sends a packet, and waits before it while the window is full.
func (o *output) send(ctx context.Context, h transfer.PacketHeader, data []byte) error {
	size := len(data) + len(data)/chunk512*4 + 128 // with its checksums and whatever header
	for o.held > 0 && o.held+size > o.window {
		if err := o.await(ctx); err != nil {
			return err
		}
	}
	h.Seqno = o.seqno
	o.seqno++
	o.held, o.sizes = o.held+size, append(o.sizes, size)
	if err := o.line.send(h, data); err != nil {
		return blame(ctx, err)
	}
	return nil
}

// await waits for the next acknowledgement.
func (o *output) await(ctx context.Context) error {
	var a transfer.Ack
	if err := o.line.ack(&a); err != nil {
		return blame(ctx, err)
	}
	if bad := slices.IndexFunc(a.Replies, func(s hdfspb.Status) bool { return s != hdfspb.Status_SUCCESS }); bad >= 0 {
		return &badNode{index: min(bad, len(o.nodes)-1), err: fmt.Errorf("status %v", a.Replies), restarts: a.Replies[bad] == hdfspb.Status_OOB_RESTART}
	}
	if a.Seqno != o.due || len(a.Replies) != len(o.nodes) {
		return fmt.Errorf("acknowledgement %+v; due is %d of %d DataNodes", a, o.due, len(o.nodes))
	}
	o.due++
	o.held, o.sizes = o.held-o.sizes[0], o.sizes[1:]
	return nil
}

// acknowledged notes what all DataNodes of the pipeline have.
func (o *output) acknowledged(upTo int, sync bool) {
	o.acked = upTo
	o.c.s.model.mu.Lock()
	defer o.c.s.model.mu.Unlock()
	b := o.f.block(o.block.GetBlockId(), o.start)
	if s := o.c.s.model.settled[b.id]; s != nil && s.generation < o.block.GetGenerationStamp() {
		o.c.s.model.settled[b.id] = &settlement{generation: o.block.GetGenerationStamp(), damaged: map[string]bool{}, lost: map[string]bool{}}
		b.adrift = false
	}
	o.c.s.h.count("bytes acknowledged", max(0, upTo-b.acked))
	b.acked, b.nodes = max(b.acked, upTo), o.hosts()
	for h := range b.nodes {
		// Who lost power before this pipeline, and is in it, has made sure that all is there. Who
		// has since may have lost it before this acknowledgement came.
		switch lost := o.c.s.model.losses[h]; {
		case o.known[h] != lost:
			b.lost[h] = true
			b.damaged[h] = b.damaged[h] || o.known[h].damage != lost.damage
		case !b.damaged[h]:
			delete(b.lost, h)
		}
		if o.f.least > b.start && o.c.s.model.harmed[h] {
			// The replica was there before the pipeline, which looks at its last bytes only.
			b.lost[h], b.damaged[h] = true, true
		}
	}
	// Replicas of older pipelines are no longer of use.
	maps.DeleteFunc(b.syncedNodes, func(h string, _ bool) bool { return !b.nodes[h] })
	switch {
	case sync || o.ended && o.f.least > b.start:
		b.synced, b.syncedNodes = max(b.synced, upTo), o.hosts()
	case o.ended && len(b.syncedNodes) > 0:
		b.synced = max(b.synced, upTo) // the end of a replica that was synced is, too
	}
	if upTo > 0 || o.ended {
		o.c.s.h.add("%s: %d bytes of %s acknowledged by %v, synced %t", o.c.name, o.start+upTo, o.path, o.order(), sync)
	}
}

func (o *output) hosts() map[string]bool {
	hosts := map[string]bool{}
	for _, n := range o.nodes {
		hosts[n.GetId().GetIpAddr()] = true
	}
	return hosts
}

func (o *output) order() (out []string) {
	for _, n := range o.nodes {
		out = append(out, n.GetId().GetIpAddr())
	}
	return out
}

// step sends bytes of the present block, over as many pipelines as it takes.
func (o *output) step(ctx context.Context, upTo int, sync, last bool) error {
	err := o.stream(ctx, upTo, sync, last)
	for range 5 {
		if err == nil {
			return nil
		}
		var bad *badNode
		if errors.As(err, &bad) && bad.neverSetUp {
			if err := o.anew(ctx, bad); err != nil {
				return err
			}
			err = o.stream(ctx, upTo, sync, last)
			continue
		}
		st := streamingRecovery
		if last && o.acked == upTo {
			st = closeRecovery
		}
		if err := o.recover(ctx, st, err); err != nil {
			return err
		}
		if st == closeRecovery {
			o.ended = true
			o.acknowledged(upTo, false)
			return nil
		}
		err = o.stream(ctx, upTo, sync, last)
	}
	return err
}

// write writes all of the file's data that was not written yet, and waits until it is
// acknowledged: as hflush does, or hsync.
func (o *output) write(ctx context.Context, sync bool) error {
	for {
		if o.block == nil || o.ended {
			if o.start+o.acked == len(o.f.data) {
				return nil
			}
			if err := o.newBlock(ctx); err != nil {
				return err
			}
		}
		upTo := min(len(o.f.data)-o.start, o.size)
		if err := o.step(ctx, upTo, sync, upTo == o.size); err != nil {
			return err
		}
		if o.start+o.acked == len(o.f.data) {
			return nil
		}
	}
}

// close ends the last block and the file.
func (o *output) close(ctx context.Context) error {
	if o.block != nil && !o.ended {
		if err := o.step(ctx, o.acked, false, true); err != nil {
			return err
		}
	}
	o.release()
	req := &hdfspb.CompleteRequestProto{Src: &o.path, ClientName: &o.c.name, Last: o.ofNow()}
	for range 20 {
		resp := &hdfspb.CompleteResponseProto{}
		if err := o.c.call(ctx, "complete", req, resp, rpc.Idempotent); err != nil {
			return err
		}
		if resp.GetResult() {
			return nil
		}
		if !sleep(ctx, time.Second) {
			break
		}
	}
	return errors.New("complete: the last block was not reported")
}

// release closes the pipeline.
func (o *output) release() {
	if o.line != nil {
		o.line.close()
		o.line = nil
	}
}
