//go:build linux && (amd64 || arm64) && !noibverbs

package ibverbs

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/foreign"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/stubs"
	"github.com/verbena-data/verbena/rdma/ibverbs/internal/verbs"
)

// A stubbed is a connected queue pair on a device whose operations are stubs.
type stubbed struct {
	*queuePair
	queue   *completionQueue
	memory  *region
	onQP    *stubs.Script
	onCQ    *stubs.Script
	waiting []verbs.WC
}

func newStubbed(t testing.TB, depth int, class rdma.Class) *stubbed {
	t.Helper()
	if err := foreign.Init(); err != nil {
		t.Fatal(err)
	}
	arena := verbs.NewArena()
	t.Cleanup(func() {
		if err := arena.Close(); err != nil {
			t.Error(err)
		}
	})
	take := func(n int) uintptr {
		b, err := arena.Bytes(n)
		if err != nil {
			t.Fatal(err)
		}
		return uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	}
	context := take(1024)
	verbs.SetOperations(context, take(1024), stubs.PostSend(), stubs.PostRecv(), stubs.PollCQ(), stubs.ReqNotifyCQ())
	ctx := verbs.ContextAt(context, quirks.CallBlocking)
	object := func() (uintptr, *stubs.Script) {
		b, err := arena.Bytes(8192)
		if err != nil {
			t.Fatal(err)
		}
		p := unsafe.Pointer(unsafe.SliceData(b))
		*(*uintptr)(p) = context
		script := stubs.ScriptOf(p)
		script.Limit = 1 << 62
		return uintptr(p), script
	}
	s := &stubbed{}
	a := rdma.Attributes{
		Provider: providerName, Name: "stub0", Class: class, MaxInline: 64, MaxSendSGE: 4, MaxReadSGE: 4, MaxRecvSGE: 4, MaxMessage: 1 << 30,
		Capabilities: rdma.CapSendImmediate | rdma.CapWriteImmediate | rdma.CapAtomics,
	}
	m := &domain{device: &Device{provider: New(Config{}), attributes: a, quirks: &quirks.Driver{}}}
	m.table.Store(new([]*pairEntry))
	m.sharedTable.Store(new([]*sharedReceives))
	m.cookies = map[uint64]any{}
	at, onCQ := object()
	s.onCQ = onCQ
	s.queue = &completionQueue{usage: usage{domain: m}, hw: ctx.CQAt(at)}
	var err error
	if s.queue.batch, err = arena.NewCompletions(pollBatch); err != nil {
		t.Fatal(err)
	}
	s.queue.pending = make([]rdma.Completion, 0, pollBatch)
	p := &queuePair{domain: m, quirks: m.device.quirks, sendCQ: s.queue, recvCQ: s.queue, done: make(chan struct{}), readSGE: 4}
	p.config = rdma.QueuePairConfig{SendDepth: depth, RecvDepth: depth, MaxSGE: 4, MaxInline: 64}
	at, s.onQP = object()
	p.hw, p.number = ctx.QPAt(at, 17), 17
	p.errFull, p.errRecvFull = rdma.ErrQueueFull, rdma.ErrQueueFull
	if p.sendList, err = arena.NewSendList(min(chain, depth), 4); err != nil {
		t.Fatal(err)
	}
	if p.recvList, err = arena.NewRecvList(min(chain, depth), 4); err != nil {
		t.Fatal(err)
	}
	p.sends.init(depth)
	p.recvs.init(depth)
	m.addPair(p)
	p.state.Store(uint32(rdma.StateConnected))
	s.queuePair = p
	s.memory = &region{domain: m, bytes: make([]byte, 4096), address: 1 << 20, access: rdma.AccessLocalWrite, lkey: 5}
	b, err := arena.Bytes(pollBatch * int(unsafe.Sizeof(verbs.WC{})))
	if err != nil {
		t.Fatal(err)
	}
	s.waiting = unsafe.Slice((*verbs.WC)(unsafe.Pointer(unsafe.SliceData(b))), pollBatch)
	s.onCQ.Source = uintptr(unsafe.Pointer(&s.waiting[0]))
	return s
}

// useQuirks has the device driven by a driver of the table.
func (s *stubbed) useQuirks(driver string) {
	row, _ := quirks.Of(driver)
	s.domain.device.quirks, s.queuePair.quirks = row, row
}

// completes has the device complete requests of the send queue.
func (s *stubbed) completes(status verbs.Status, sequences ...uint32) {
	for i, seq := range sequences {
		s.waiting[i] = verbs.WC{ID: kindSend | s.tag | uint64(seq), Status: status, QPNumber: s.number}
	}
	s.onCQ.Source = uintptr(unsafe.Pointer(&s.waiting[0]))
	s.onCQ.Available = uint64(len(sequences))
}

// last is the i-th last work request that the device got.
func (s *stubbed) last(i int) *verbs.SendWR {
	at := &s.onQP.Log[(s.onQP.Taken-1-uint64(i))%stubs.LogSize]
	return *(**verbs.SendWR)(unsafe.Pointer(at))
}

func (s *stubbed) write(id uint64, flags rdma.Flags) rdma.SendRequest {
	return rdma.SendRequest{
		ID: id, Op: rdma.OpWrite, Flags: flags, Remote: rdma.Remote{Address: 1 << 30, Key: 9},
		SGEs: []rdma.SGE{{Region: s.memory, Offset: 8, Length: 16}, {Region: s.memory, Offset: 100}, {Region: s.memory, Offset: 200, Length: 1}},
	}
}

func TestPostReachesTheDevice(t *testing.T) {
	s := newStubbed(t, 4, rdma.ClassInfiniBand)
	n, err := s.PostSend([]rdma.SendRequest{s.write(1, 0), s.write(2, rdma.Signaled|rdma.Solicited|rdma.Inline|rdma.Fence)})
	if n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if s.onQP.Taken != 2 {
		t.Fatalf("the device got %d requests", s.onQP.Taken)
	}
	wr := s.last(0)
	if all := verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline | verbs.SendFence; wr.Opcode != verbs.WRWrite || wr.Flags != all || s.last(1).Flags != 0 {
		t.Errorf("opcode %d, flags %b and %b", wr.Opcode, wr.Flags, s.last(1).Flags)
	}
	if wr.NumSGE != 2 {
		t.Errorf("%d entries, want the two that are not empty", wr.NumSGE)
	}
	want := []verbs.SGE{{Address: 1<<20 + 8, Length: 16, LKey: 5}, {Address: 1<<20 + 200, Length: 1, LKey: 5}}
	for i, e := range s.sendList.SGEs(1)[:2] {
		if e != want[i] {
			t.Errorf("entry %d: %+v, want %+v", i, e, want[i])
		}
	}
	s.completes(verbs.StatusSuccess, 1)
	var into [4]rdma.Completion
	n, err = s.queue.Poll(into[:])
	if n != 1 || err != nil || into[0] != (rdma.Completion{ID: 2, QueuePair: 17, Op: rdma.OpWrite}) {
		t.Errorf("Poll: %d, %v: %+v", n, err, into[0])
	}
}

func TestDriverRefuses(t *testing.T) {
	s := newStubbed(t, 8, rdma.ClassInfiniBand)
	for result, want := range map[int64]error{
		int64(syscall.ENOMEM): rdma.ErrQueueFull, -int64(syscall.ENOMEM): rdma.ErrQueueFull,
		int64(syscall.EINVAL): rdma.ErrInvalid, -int64(syscall.EINVAL): rdma.ErrInvalid,
	} {
		s.onQP.Limit, s.onQP.Result = s.onQP.Taken+1, result
		before := s.sends.outstanding()
		n, err := s.PostSend([]rdma.SendRequest{s.write(1, 0), s.write(2, 0), s.write(3, 0)})
		if n != 1 || !errors.Is(err, want) {
			t.Errorf("the driver returns %d to the second: %d, %v; want 1, %v", result, n, err, want)
		}
		if taken := s.sends.outstanding() - before; taken != 1 {
			t.Errorf("%d places are taken", taken)
		}
	}
}

func TestSmallPollsKeepOrder(t *testing.T) {
	s := newStubbed(t, 16, rdma.ClassInfiniBand)
	var requests []rdma.SendRequest
	var sequences []uint32
	for i := range uint64(12) {
		requests = append(requests, s.write(i, rdma.Signaled))
		sequences = append(sequences, uint32(i))
	}
	if n, err := s.PostSend(requests); n != len(requests) {
		t.Fatal(n, err)
	}
	s.completes(verbs.StatusSuccess, sequences...)
	next := uint64(0)
	for _, room := range []int{1, 2, 0, 3, 16} {
		into := make([]rdma.Completion, room)
		n, err := s.queue.Poll(into)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range into[:n] {
			if c.ID != next {
				t.Fatalf("completion of %d, want %d", c.ID, next)
			}
			next++
		}
	}
	if next != 12 {
		t.Errorf("%d completions, want 12", next)
	}
}

func TestStrayCompletions(t *testing.T) {
	s := newStubbed(t, 4, rdma.ClassInfiniBand)
	if _, err := s.PostSend([]rdma.SendRequest{s.write(1, rdma.Signaled)}); err != nil {
		t.Fatal(err)
	}
	for i, id := range []uint64{
		0, ^uint64(0), kindSend | 1<<indexShift, kindSend | s.tag ^ 1<<generationShift, kindSend | s.tag | 1, kindSend | s.tag | 1<<31,
		kindRecv | s.tag, kindShared, kindShared | s.tag, kindSend | 5<<indexShift,
	} {
		s.waiting[i] = verbs.WC{ID: id, QPNumber: 17}
	}
	s.onCQ.Available = 10
	var into [16]rdma.Completion
	if n, err := s.queue.Poll(into[:]); n != 0 || err != nil {
		t.Errorf("completions of nothing that was posted: %d, %v: %+v", n, err, into[:n])
	}
	if s.sends.outstanding() != 1 {
		t.Errorf("%d outstanding", s.sends.outstanding())
	}
}

func TestIWARPReads(t *testing.T) {
	s := newStubbed(t, 8, rdma.ClassIWARP)
	s.readSGE = 1
	read := rdma.SendRequest{ID: 1, Op: rdma.OpRead, Flags: rdma.Fence, SGEs: []rdma.SGE{{Region: s.memory, Length: 8}}}
	n, err := s.PostSend([]rdma.SendRequest{read, s.write(2, rdma.Signaled)})
	if n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if f := s.last(1).Flags; f != verbs.SendSignaled {
		t.Errorf("flags %b of a Read, want a completion and no fence", f)
	}
	if f := s.last(0).Flags; f != verbs.SendSignaled|verbs.SendFence {
		t.Errorf("flags %b of what is behind it, want its fence", f)
	}
	var into [4]rdma.Completion
	s.completes(verbs.StatusSuccess, 1)
	if n, _ := s.queue.Poll(into[:]); n != 0 {
		t.Errorf("%d completions before the Read is done", n)
	}
	s.completes(verbs.StatusSuccess, 0)
	if n, _ := s.queue.Poll(into[:]); n != 1 || into[0].ID != 2 {
		t.Errorf("%d completions with the Read done, %+v", n, into[0])
	}
}

// A post says whether all that is in it is little.
func TestBriefPosts(t *testing.T) {
	s := newStubbed(t, 8, rdma.ClassInfiniBand)
	s.memory.bytes = make([]byte, 2*briefBytes)
	send := func(length int) rdma.SendRequest {
		return rdma.SendRequest{Op: rdma.OpSend, SGEs: []rdma.SGE{{Region: s.memory, Length: length}}}
	}
	for _, c := range []struct {
		lengths []int
		brief   bool
	}{
		{[]int{0}, true}, {[]int{briefBytes}, true}, {[]int{briefBytes + 1}, false},
		{[]int{briefBytes / 2, briefBytes / 2}, true}, {[]int{briefBytes, 1}, false}, {[]int{1}, true},
	} {
		var requests []rdma.SendRequest
		for _, length := range c.lengths {
			requests = append(requests, send(length))
		}
		if n, places, err := s.prepareSends(requests); n != len(requests) || places != n || err != nil || s.sendList.Brief != c.brief {
			t.Errorf("%v: %d, %d, %v, brief %v", c.lengths, n, places, err, s.sendList.Brief)
		}
	}
}

// TestLargeMessagesOfSIW has requests that siw must be asked to report, so that it
// copies them, and that the application does not want to hear of.
func TestLargeMessagesOfSIW(t *testing.T) {
	s := newStubbed(t, 8, rdma.ClassIWARP)
	s.useQuirks("siw")
	s.memory.bytes = make([]byte, pageSize)
	large := rdma.SendRequest{ID: 1, Op: rdma.OpWrite, SGEs: []rdma.SGE{{Region: s.memory, Length: pageSize}}}
	small := rdma.SendRequest{ID: 2, Op: rdma.OpWrite, SGEs: []rdma.SGE{{Region: s.memory, Length: pageSize - 1}}}
	if n, err := s.PostSend([]rdma.SendRequest{large, small}); n != 2 {
		t.Fatal(n, err)
	}
	if s.last(1).Flags != verbs.SendSignaled || s.last(0).Flags != 0 {
		t.Errorf("flags %b and %b, want the larger one to be reported", s.last(1).Flags, s.last(0).Flags)
	}
	s.completes(verbs.StatusSuccess, 0)
	var into [4]rdma.Completion
	if n, err := s.queue.Poll(into[:]); n != 0 || err != nil {
		t.Errorf("Poll: %d, %v: the application hears of what it did not want to", n, err)
	}
	if s.sends.outstanding() != 1 {
		t.Errorf("%d outstanding, want the small one", s.sends.outstanding())
	}
	// A Read of nothing goes as a Write of nothing.
	if n, err := s.PostSend([]rdma.SendRequest{{ID: 3, Op: rdma.OpRead, Flags: rdma.Signaled}}); n != 1 {
		t.Fatal(n, err)
	}
	if wr := s.last(0); wr.Opcode != verbs.WRWrite || wr.NumSGE != 0 {
		t.Errorf("a Read of nothing is sent as operation %d with %d entries", wr.Opcode, wr.NumSGE)
	}
	s.completes(verbs.StatusSuccess, 2)
	if n, _ := s.queue.Poll(into[:]); n != 1 || into[0].Op != rdma.OpRead || into[0].ID != 3 {
		t.Errorf("Poll: %d, %+v", n, into[0])
	}
}

// TestShortSourcesOfSIW has short requests whose source crosses a page, which siw
// garbles unless they are cut there.
func TestShortSourcesOfSIW(t *testing.T) {
	s := newStubbed(t, 8, rdma.ClassIWARP)
	s.useQuirks("siw")
	s.memory.bytes = make([]byte, 2*4096)
	s.readSGE = 1
	post := func(op rdma.Opcode, flags rdma.Flags, remote uint64, entries ...rdma.SGE) (posted int) {
		t.Helper()
		before := s.onQP.Taken
		r := rdma.SendRequest{ID: 7, Op: op, Flags: rdma.Signaled | flags, Remote: rdma.Remote{Address: remote, Key: 9}, SGEs: entries}
		if n, err := s.PostSend([]rdma.SendRequest{r}); n != 1 {
			t.Fatal(n, err)
		}
		return int(s.onQP.Taken - before)
	}
	completes := func() {
		t.Helper()
		s.completes(verbs.StatusSuccess, s.sends.head.Load())
		var into [4]rdma.Completion
		if n, _ := s.queue.Poll(into[:]); n != 1 || into[0].ID != 7 || s.sends.outstanding() != 0 {
			t.Fatalf("%d completions, %d outstanding", n, s.sends.outstanding())
		}
	}
	entry := func(offset, length int) rdma.SGE { return rdma.SGE{Region: s.memory, Offset: offset, Length: length} }
	const page = 1 << 20 // the memory's, and a page of the peer's

	for _, op := range []rdma.Opcode{rdma.OpSend, rdma.OpWrite} {
		if n := post(op, 0, page-1, entry(4096-3, 10)); n != 1 || s.last(0).NumSGE != 2 {
			t.Errorf("%s across a page: %d requests, the last with %d entries; want one with two", op, n, s.last(0).NumSGE)
		}
		want := []verbs.SGE{{Address: page + 4096 - 3, Length: 3, LKey: 5}, {Address: page + 4096, Length: 7, LKey: 5}}
		for i, e := range s.sendList.SGEs(0)[:2] {
			if e != want[i] {
				t.Errorf("%s across a page: entry %d is %+v, want %+v", op, i, e, want[i])
			}
		}
		completes()
		for _, whole := range []rdma.SGE{entry(4096-10, 10), entry(4096, 10), entry(4096-3, 32+1)} {
			if n := post(op, 0, page-1, whole); n != 1 || s.last(0).NumSGE != 1 {
				t.Errorf("%s of %d bytes at %d: %d requests, the last with %d entries; want one with one", op, whole.Length, whole.Offset, n, s.last(0).NumSGE)
			}
			completes()
		}
		if post(op, rdma.Inline, page-1, entry(4096-3, 10)); s.last(0).NumSGE != 1 {
			t.Errorf("%s inline: %d entries", op, s.last(0).NumSGE)
		}
		completes()
	}

	// The source of a Read is the peer's.
	if n := post(rdma.OpRead, 0, page, entry(4096-3, 10)); n != 1 {
		t.Errorf("a Read whose target crosses a page is %d", n)
	}
	completes()
	if n := post(rdma.OpRead, 0, page-4, entry(16, 10)); n != 2 {
		t.Fatalf("a Read whose source crosses a page is %d, want 2", n)
	}
	first, second := s.last(1), s.last(0)
	if first.ID != second.ID || first.Flags != 0 || second.Flags != verbs.SendSignaled || first.Opcode != verbs.WRRead || second.Opcode != verbs.WRRead {
		t.Errorf("the parts are %+v and %+v", first, second)
	}
	if a, b := s.sendList.SGEs(0)[0], s.sendList.SGEs(1)[0]; a != (verbs.SGE{Address: page + 16, Length: 4, LKey: 5}) || b != (verbs.SGE{Address: page + 20, Length: 6, LKey: 5}) {
		t.Errorf("the parts' targets are %+v and %+v", a, b)
	}
	if a, b := first.RemoteAddress(), second.RemoteAddress(); a != page-4 || b != page {
		t.Errorf("the parts' sources are %#x and %#x", a, b)
	}
	completes()

	// The list has eight places: two Reads in two parts and four others fill it, and
	// the rest goes with another call.
	var requests []rdma.SendRequest
	for i := range uint64(8) {
		r := rdma.SendRequest{ID: i, Op: rdma.OpWrite, Flags: rdma.Signaled, Remote: rdma.Remote{Address: page - 4, Key: 9}, SGEs: []rdma.SGE{entry(0, 8)}}
		if i%3 == 1 {
			r.Op = rdma.OpRead
		}
		requests = append(requests, r)
	}
	before := s.onQP.Taken
	if n, err := s.PostSend(requests); n != 8 || s.onQP.Taken-before != 11 {
		t.Fatalf("%d requests are taken (%v), in %d parts; want 8 in 11", n, err, s.onQP.Taken-before)
	}
	head := s.sends.head.Load()
	var sequences []uint32
	for i := range uint32(8) {
		sequences = append(sequences, head+i)
	}
	s.completes(verbs.StatusSuccess, sequences...)
	var into [16]rdma.Completion
	if n, err := s.queue.Poll(into[:]); n != 8 || err != nil {
		t.Fatalf("%d completions, %v", n, err)
	}

	// A Read that the driver takes the first part of alone has not been taken.
	s.onQP.Limit, s.onQP.Result = s.onQP.Taken+2, int64(syscall.ENOMEM)
	if n, err := s.PostSend(requests[:3]); n != 1 || !errors.Is(err, rdma.ErrQueueFull) || s.sends.outstanding() != 1 {
		t.Errorf("PostSend: %d, %v, %d outstanding; want the request before the one that was cut", n, err, s.sends.outstanding())
	}
}

func TestNothingAllocates(t *testing.T) {
	if foreign.Route != "linkname" {
		t.Skipf("calls by the route %q allocate", foreign.Route)
	}
	s := newStubbed(t, 64, rdma.ClassInfiniBand)
	send := []rdma.SendRequest{s.write(1, rdma.Signaled)}
	recv := []rdma.RecvRequest{{ID: 1, SGEs: []rdma.SGE{{Region: s.memory, Length: 64}}}}
	into := make([]rdma.Completion, 4)
	seq := uint32(0)
	if n := testing.AllocsPerRun(200, func() {
		if n, err := s.PostSend(send); n != 1 {
			t.Fatal(err)
		}
		s.completes(verbs.StatusSuccess, seq)
		if n, err := s.queue.Poll(into); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := s.PostRecv(recv); n != 1 {
			t.Fatal(err)
		}
		s.waiting[0] = verbs.WC{ID: kindRecv | s.tag | uint64(seq), Opcode: verbs.WCRecv, Length: 64}
		s.onCQ.Source, s.onCQ.Available = uintptr(unsafe.Pointer(&s.waiting[0])), 1
		if n, err := s.queue.Poll(into); n != 1 || err != nil || into[0].Length != 64 {
			t.Fatal(n, err, into[0])
		}
		seq++
	}); n != 0 {
		t.Errorf("a Send and a receive from post to poll allocate %v times", n)
	}
}

func BenchmarkPostAndPoll(b *testing.B) {
	s := newStubbed(b, 64, rdma.ClassInfiniBand)
	send := []rdma.SendRequest{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: []rdma.SGE{{Region: s.memory, Length: 8}}}}
	into := make([]rdma.Completion, 16)
	b.ReportAllocs()
	for seq := uint32(0); b.Loop(); seq++ {
		if n, err := s.PostSend(send); n != 1 {
			b.Fatal(err)
		}
		s.completes(verbs.StatusSuccess, seq)
		if n, err := s.queue.Poll(into); n != 1 {
			b.Fatal(err)
		}
	}
}
