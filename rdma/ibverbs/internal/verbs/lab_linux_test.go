//go:build linux && (amd64 || arm64) && !noibverbs

package verbs

import "github.com/verbena-data/verbena/rdma/ibverbs/internal/quirks"

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These run in the lab's virtual machine, over the kernel's own drivers, between
// two devices of one driver:
//
//	go test -c -o verbs.test ./rdma/ibverbs/internal/verbs
//	go run ./lab exec --world rxe -- ./verbs.test -test.run Lab -test.v
//	go run ./lab exec --world siw -- ./verbs.test -test.run Lab -test.v

// patience bounds a wait for something that comes at once unless it is broken.
const patience = 30 * time.Second

var (
	addressA = netip.MustParseAddr("10.9.0.1")
	addressB = netip.MustParseAddr("10.9.0.2")
)

func inLab(t testing.TB) (*Library, []Device) {
	t.Helper()
	if os.Getenv("VERBENA_LAB") != "1" {
		t.Skip("runs in the lab's virtual machine: go run ./lab")
	}
	l, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	devices, err := l.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 2 {
		t.Fatalf("the devices are %v; the tests want two of one driver", devices)
	}
	return l, devices
}

func open(t testing.TB, l *Library, name string) *Context {
	t.Helper()
	c, err := l.Open(name, quirks.CallAuto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { succeed(t, "close", c.Close()) })
	return c
}

func succeed(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wait waits until next has something, watching file.
func wait[T any](t testing.TB, file *os.File, next func() (T, bool, error)) T {
	t.Helper()
	if err := file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatalf("%s is not in the poller: %v", file.Name(), err)
	}
	connection, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var got T
	var failed error
	if err := connection.Read(func(uintptr) bool {
		var ok bool
		got, ok, failed = next()
		return ok || failed != nil
	}); err != nil {
		t.Fatalf("waiting for %s: %v", file.Name(), err)
	}
	if failed != nil {
		t.Fatal(failed)
	}
	return got
}

func TestLabDevices(t *testing.T) {
	l, devices := inLab(t)
	for _, d := range devices {
		driver := strings.TrimRight(d.Name, "0123456789")
		transport := map[string]Transport{"rxe": TransportInfiniBand, "siw": TransportIWARP}[driver]
		if d.Transport != transport {
			t.Errorf("%s: transport %v", d.Name, d.Transport)
		}
		c := open(t, l, d.Name)
		if c.Name() != d.Name || c.Driver() != driver || c.Transport() != transport || c.Mode() != quirks.CallNonBlockingPoll || c.Vectors() < 1 {
			t.Errorf("%s: name %q, driver %q, transport %v, mode %v, %d vectors", d.Name, c.Name(), c.Driver(), c.Transport(), c.Mode(), c.Vectors())
		}
		if other, err := l.Open(d.Name, quirks.CallNonBlocking); err == nil {
			t.Errorf("%s can be called in the way that must not block", d.Name)
			succeed(t, "close", other.Close())
		}
		a := must(c.Query())(t)
		t.Logf("%s: %+v", d.Name, a)
		if a.Ports != 1 || a.MaxQP < 100 || a.MaxQPWR < 1000 || a.MaxSGE < 4 || a.MaxCQE < 1000 || a.MaxMR < 100 || a.MaxPD < 2 ||
			a.MaxSRQ < 1 || a.MaxSRQWR < 100 || a.MaxSRQSGE < 1 || a.MaxQPReadAtomic < 1 || a.MaxMRSize < 1<<30 || a.MaxCQ < 100 {
			t.Errorf("%s: %+v", d.Name, a)
		}
		guid, err := os.ReadFile(filepath.Join(sysClass, "infiniband", d.Name, "node_guid"))
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(strings.TrimSpace(string(guid)), ":", ""); fmt.Sprintf("%016x", a.NodeGUID) != want {
			t.Errorf("%s: node GUID %016x, sysfs says %s", d.Name, a.NodeGUID, want)
		}
		if (a.Atomic != AtomicNone) != (driver == "rxe") {
			t.Errorf("%s: atomics %v", d.Name, a.Atomic)
		}
		p := must(c.QueryPort(1))(t)
		t.Logf("%s: %+v", d.Name, p)
		if p.State != PortActive || p.Link != LinkEthernet || p.MaxMTU.Bytes() == 0 || p.ActiveMTU.Bytes() == 0 || p.GIDs < 1 || p.MaxMessage < 1<<20 {
			t.Errorf("%s: %+v", d.Name, p)
		}
		if _, err := c.QueryPort(77); err == nil {
			t.Errorf("%s has a port 77", d.Name)
		}
		gid := must(c.QueryGID(1, 0))(t)
		text, err := os.ReadFile(filepath.Join(sysClass, "infiniband", d.Name, "ports/1/gids/0"))
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(strings.TrimSpace(string(text)), ":", ""); fmt.Sprintf("%x", gid) != want {
			t.Errorf("%s: GID %x, sysfs says %s", d.Name, gid, want)
		}
	}
	if _, err := l.Open("nothing0", quirks.CallAuto); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a device that is not there: %v", err)
	}
}

// What lies at the offsets in live objects is what the calls were given or
// what the objects tell elsewhere.
func TestLabLayoutOfLiveObjects(t *testing.T) {
	l, devices := inLab(t)
	c := open(t, l, devices[0].Name)
	for name, operation := range map[string]uintptr{"post_send": c.postSend, "post_recv": c.postRecv, "post_srq_recv": c.postSRQRecv, "poll_cq": c.pollCQ, "req_notify_cq": c.reqNotify} {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		// siw arms in its own library; drivers without an operation have libibverbs's.
		if library := driverAt(maps, operation); library != c.Driver() && library != "ibverbs" {
			t.Errorf("%s is in %q, the driver in %q", name, library, c.Driver())
		}
	}
	for name, offset := range map[string]uintptr{"uverbs": offContextCmdFD, "[infinibandevent]": offContextAsyncFD} {
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", *at[int32](c.p, offset)))
		if err != nil || !strings.Contains(link, name) {
			t.Errorf("the descriptor of %s is %q, %v", name, link, err)
		}
	}
	pd := must(c.AllocPD())(t)
	memory := must(unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	defer unix.Munmap(memory)
	mr := must(pd.RegisterMR(memory, AccessLocalWrite|AccessRemoteWrite))(t)
	channel := must(c.CreateCompChannel())(t)
	cq := must(c.CreateCQ(100, 0x1111, channel, 0))(t)
	srq := must(pd.CreateSRQ(10, 1, 0x2222))(t)
	qp := must(pd.CreateQP(QPConfig{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cookie: 0x3333, SendDepth: 10, SendSGEs: 1, Inline: 32}))(t)
	for _, field := range []struct {
		name      string
		got, want uintptr
	}{
		{"pd context", *at[uintptr](pd.p, offPDContext), c.p},
		{"mr context", *at[uintptr](mr.p, offMRContext), c.p},
		{"mr pd", *at[uintptr](mr.p, offMRPD), pd.p},
		{"mr address", *at[uintptr](mr.p, offMRAddr), uintptr(unsafe.Pointer(&memory[0]))},
		{"mr length", *at[uintptr](mr.p, offMRLength), 8192},
		{"channel context", *at[uintptr](channel.p, offCompChannelContext), c.p},
		{"cq context", *at[uintptr](cq.p, offCQContext), c.p},
		{"cq channel", *at[uintptr](cq.p, offCQChannel), channel.p},
		{"cq cookie", *at[uintptr](cq.p, offCQCQContext), 0x1111},
		{"srq context", *at[uintptr](srq.p, offSRQContext), c.p},
		{"srq cookie", *at[uintptr](srq.p, offSRQSRQContext), 0x2222},
		{"srq pd", *at[uintptr](srq.p, offSRQPD), pd.p},
		{"qp context", *at[uintptr](qp.p, offQPContext), c.p},
		{"qp cookie", *at[uintptr](qp.p, offQPQPContext), 0x3333},
		{"qp pd", *at[uintptr](qp.p, offQPPD), pd.p},
		{"qp send cq", *at[uintptr](qp.p, offQPSendCQ), cq.p},
		{"qp recv cq", *at[uintptr](qp.p, offQPRecvCQ), cq.p},
		{"qp srq", *at[uintptr](qp.p, offQPSRQ), srq.p},
		{"qp state", uintptr(*at[uint32](qp.p, offQPState)), uintptr(QPReset)},
		{"qp type", uintptr(*at[uint32](qp.p, offQPType)), qpTypeRC},
	} {
		if field.got != field.want {
			t.Errorf("%s is %#x instead of %#x", field.name, field.got, field.want)
		}
	}
	if cq.Entries() < 100 || qp.Number() == 0 || mr.LKey() == 0 || qp.Config().SendDepth < 10 || qp.Config().Inline < 32 {
		t.Errorf("%d entries, queue pair %d with %+v, key %d", cq.Entries(), qp.Number(), qp.Config(), mr.LKey())
	}
	if err := pd.Dealloc(); err == nil {
		t.Error("a domain in use was freed")
	}
	succeed(t, "init", qp.ToInit(1, AccessRemoteWrite))
	if a := must(qp.Query())(t); c.Driver() != "siw" && a.State != QPInit { // siw does not tell the state
		t.Errorf("after init: %+v", a)
	}
	succeed(t, "destroy queue pair", qp.Destroy())
	succeed(t, "destroy shared receive queue", srq.Destroy())
	succeed(t, "destroy completion queue", cq.Destroy())
	succeed(t, "destroy channel", channel.Destroy())
	succeed(t, "deregister", mr.Deregister())
	succeed(t, "free domain", pd.Dealloc())
}

// A host is one end of a connection.
type host struct {
	t       testing.TB
	ctx     *Context
	pd      *PD
	channel *CompChannel
	events  *os.File
	cq      *CQ
	srq     *SRQ
	qp      *QP
	arena   *Arena
	memory  []byte
	mr      *MR
	sends   *SendList
	recvs   *RecvList
	wcs     *Completions
	acked   int
	id      CMID
}

func newHost(t testing.TB, l *Library, device string, shared bool) *host {
	t.Helper()
	h := &host{t: t, ctx: open(t, l, device), arena: NewArena()}
	h.pd = must(h.ctx.AllocPD())(t)
	h.channel = must(h.ctx.CreateCompChannel())(t)
	h.events = must(h.channel.File())(t)
	h.cq = must(h.ctx.CreateCQ(64, 0xc0ffee, h.channel, 0))(t)
	h.memory = must(unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	access := AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead
	config := QPConfig{SendCQ: h.cq, RecvCQ: h.cq, Cookie: 0xdead, SendDepth: 16, RecvDepth: 16, SendSGEs: 2, RecvSGEs: 2, Inline: 32}
	if h.ctx.Driver() == "rxe" {
		access |= AccessRemoteAtomic
	}
	h.mr = must(h.pd.RegisterMR(h.memory, access))(t)
	if shared {
		h.srq = must(h.pd.CreateSRQ(16, 2, 0xbeef))(t)
		config.SRQ = h.srq
	}
	h.qp = must(h.pd.CreateQP(config))(t)
	if err := h.qp.ToInit(1, access&^AccessLocalWrite); err != nil {
		t.Fatal(err)
	}
	h.sends = must(h.arena.NewSendList(8, 2))(t)
	h.recvs = must(h.arena.NewRecvList(8, 2))(t)
	h.wcs = must(h.arena.NewCompletions(16))(t)
	return h
}

func (h *host) close() {
	h.t.Helper()
	h.id.DetachQP()
	succeed(h.t, "destroy id", h.id.Destroy())
	succeed(h.t, "destroy queue pair", h.qp.Destroy())
	if h.srq != nil {
		succeed(h.t, "destroy shared receive queue", h.srq.Destroy())
	}
	h.cq.AckEvents(h.acked)
	succeed(h.t, "destroy completion queue", h.cq.Destroy())
	succeed(h.t, "close events", h.events.Close())
	succeed(h.t, "destroy channel", h.channel.Destroy())
	succeed(h.t, "deregister", h.mr.Deregister())
	succeed(h.t, "free domain", h.pd.Dealloc())
	succeed(h.t, "unmap", unix.Munmap(h.memory))
	succeed(h.t, "close arena", h.arena.Close())
}

func (h *host) address(offset int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&h.memory[offset])))
}

// recv posts receives of n bytes at the offsets.
func (h *host) recv(n int, offsets ...int) {
	h.t.Helper()
	for i, offset := range offsets {
		w := h.recvs.At(i)
		w.ID, w.NumSGE = uint64(offset), 1
		h.recvs.SGEs(i)[0] = SGE{h.address(offset), uint32(n), h.mr.LKey()}
	}
	post := h.qp.PostRecv
	if h.srq != nil {
		post = h.srq.PostRecv
	}
	if posted, err := post(h.recvs, len(offsets)); posted != len(offsets) || err != nil {
		h.t.Fatalf("post receives: %d, %v", posted, err)
	}
}

// send fills in the i-th request.
func (h *host) send(i int, op WROpcode, flags SendFlags, offset, n int) *SendWR {
	w := h.sends.At(i)
	w.ID, w.Opcode, w.Flags, w.NumSGE = uint64(100+i), op, flags, 1
	h.sends.SGEs(i)[0] = SGE{h.address(offset), uint32(n), h.mr.LKey()}
	return w
}

func (h *host) post(n int) {
	h.t.Helper()
	if posted, err := h.qp.PostSend(h.sends, n); posted != n || err != nil {
		h.t.Fatalf("post %d: %d, %v", n, posted, err)
	}
}

// completions polls until it has n.
func (h *host) completions(n int) []WC {
	h.t.Helper()
	var got []WC
	for deadline := time.Now().Add(patience); len(got) < n; {
		polled, err := h.cq.Poll(h.wcs)
		if err != nil {
			h.t.Fatal(err)
		}
		for i := range polled {
			got = append(got, *h.wcs.At(i))
		}
		if polled == 0 {
			if time.Now().After(deadline) {
				h.t.Fatalf("%d of %d completions came: %+v", len(got), n, got)
			}
			runtime.Gosched()
		}
	}
	if len(got) > n {
		h.t.Fatalf("more than %d completions: %+v", n, got)
	}
	return got
}

func (h *host) succeeded(n int) []WC {
	h.t.Helper()
	got := h.completions(n)
	for _, c := range got {
		if c.Status != StatusSuccess || c.QPNumber != h.qp.Number() {
			h.t.Fatalf("completion %+v: %v", c, c.Status)
		}
	}
	return got
}

func (h *host) arm(solicited bool) {
	h.t.Helper()
	if err := h.cq.RequestNotify(solicited); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) event() {
	h.t.Helper()
	if cookie := wait(h.t, h.events, h.channel.Event); cookie != 0xc0ffee {
		h.t.Errorf("an event of %#x", cookie)
	}
	h.acked++
}

// A manager reads the connection manager's events.
type manager struct {
	t       testing.TB
	channel *EventChannel
	file    *os.File
}

func newManager(t testing.TB, l *Library) *manager {
	m := &manager{t: t, channel: must(l.NewEventChannel())(t)}
	m.file = must(m.channel.File())(t)
	return m
}

func (m *manager) close() {
	succeed(m.t, "close channel's file", m.file.Close())
	m.channel.Close()
}

func (m *manager) next(want CMEventType) CMEvent {
	m.t.Helper()
	e := wait(m.t, m.file, m.channel.Event)
	succeed(m.t, "ack", m.channel.Ack(e))
	if e.Type != want {
		m.t.Fatalf("event %v with status %d, want %v", e.Type, e.Status, want)
	}
	return e
}

// listen listens at B, on any port.
func (m *manager) listen() (CMID, netip.AddrPort) {
	m.t.Helper()
	id := must(m.channel.CreateID(0x115))(m.t)
	succeed(m.t, "reuse", id.SetReuseAddress(true))
	if err := id.Bind(netip.AddrPortFrom(addressB, 0)); err != nil {
		m.t.Fatal(err)
	}
	if id.DeviceName() == "" || id.Port() != 1 {
		m.t.Errorf("bound to device %q, port %d", id.DeviceName(), id.Port())
	}
	if err := id.Listen(8); err != nil {
		m.t.Fatal(err)
	}
	address := id.LocalAddress()
	if address.Addr() != addressB || address.Port() == 0 {
		m.t.Fatalf("listening at %v", address)
	}
	return id, address
}

// dial resolves the way from A and leaves the ID ready to connect.
func (m *manager) dial(to netip.AddrPort) CMID {
	m.t.Helper()
	id := must(m.channel.CreateID(0xd1a1))(m.t)
	if got := *at[uintptr](id.p, offCMIDChannel); got != m.channel.p {
		m.t.Errorf("the ID's channel is %#x instead of %#x", got, m.channel.p)
	}
	succeed(m.t, "type of service", id.SetTypeOfService(0x10))
	if err := id.ResolveAddress(netip.AddrPortFrom(addressA, 0), to, 5*time.Second); err != nil {
		m.t.Fatal(err)
	}
	if e := m.next(CMAddrResolved); e.ID != id || e.Cookie != 0xd1a1 {
		m.t.Errorf("%+v is not about the dialling ID", e)
	}
	if err := id.ResolveRoute(5 * time.Second); err != nil {
		m.t.Fatal(err)
	}
	m.next(CMRouteResolved)
	return id
}

// pair connects two hosts, the second with a shared receive queue if wanted.
func pair(t testing.TB, shared bool) (a, b *host, ma, mb *manager) {
	t.Helper()
	l, devices := inLab(t)
	ma, mb = newManager(t, l), newManager(t, l)
	listening, address := mb.listen()
	if listening.DeviceName() != devices[1].Name {
		t.Fatalf("%v is on %s, not %s", address, listening.DeviceName(), devices[1].Name)
	}
	a, b = newHost(t, l, devices[0].Name, false), newHost(t, l, devices[1].Name, shared)
	b.recv(1024, 0, 1024, 2048)
	a.id = ma.dial(address)
	if a.id.DeviceName() != devices[0].Name || a.id.Port() != 1 {
		t.Fatalf("resolved to %s port %d, not %s", a.id.DeviceName(), a.id.Port(), devices[0].Name)
	}
	a.id.AttachQP(a.qp)
	connected := make(chan error, 1)
	go func() {
		connected <- a.id.Connect(ConnParams{PrivateData: []byte("from a"), ResponderResources: 4, InitiatorDepth: 4, RetryCount: 6, RNRRetryCount: 7})
	}()
	request := mb.next(CMConnectRequest)
	if request.Listen != listening || request.Cookie != 0x115 || !bytes.HasPrefix(request.PrivateData, []byte("from a")) {
		t.Errorf("request: %+v", request)
	}
	if request.ResponderResources != 4 || request.InitiatorDepth != 4 {
		t.Errorf("request: %d to take and %d to have outstanding", request.ResponderResources, request.InitiatorDepth)
	}
	b.id = request.ID
	b.id.SetCookie(0xacc)
	if b.id.PeerAddress().Addr() != addressA || b.id.LocalAddress() != address {
		t.Errorf("request from %v to %v", b.id.PeerAddress(), b.id.LocalAddress())
	}
	// The connection lives on a channel of its own.
	succeed(t, "migrate", b.id.MigrateTo(mb.channel))
	b.id.AttachQP(b.qp)
	if err := b.id.Accept(ConnParams{PrivateData: []byte("from b"), ResponderResources: 4, InitiatorDepth: 4, RNRRetryCount: 7, SRQ: shared}); err != nil {
		t.Fatal(err)
	}
	established := ma.next(CMEstablished)
	if !bytes.HasPrefix(established.PrivateData, []byte("from b")) || established.ID != a.id {
		t.Errorf("established: %+v", established)
	}
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	if e := mb.next(CMEstablished); e.ID != b.id || e.Cookie != 0xacc {
		t.Errorf("established at the other end: %+v", e)
	}
	succeed(t, "destroy listener", listening.Destroy())
	for _, h := range []*host{a, b} {
		if q := must(h.qp.Query())(t); h.ctx.Driver() != "siw" && q.State != QPReadyToSend || q.MaxReads != 4 {
			t.Fatalf("%s: %+v", h.ctx.Name(), q)
		}
	}
	return a, b, ma, mb
}

func TestLabDataPath(t *testing.T) {
	a, b, ma, mb := pair(t, false)
	rxe := a.ctx.Driver() == "rxe"
	copy(a.memory, "hello, fabric")

	// Chained: a Write, unsignalled; then an inline Send and a Send of two entries.
	a.send(0, WRWrite, 0, 0, 13).SetRemote(b.address(4096), b.mr.RKey())
	a.send(1, WRSend, SendInline, 0, 5)
	a.send(2, WRSend, SendSignaled, 0, 7).NumSGE = 2
	a.sends.SGEs(2)[1] = SGE{a.address(7), 6, a.mr.LKey()}
	a.post(3)
	if c := a.succeeded(1)[0]; c.ID != 102 || c.Opcode != WCSend {
		t.Errorf("%+v", c)
	}
	got := b.succeeded(2)
	if got[0].ID != 0 || got[0].Opcode != WCRecv || got[0].Length != 5 || got[1].ID != 1024 || got[1].Length != 13 {
		t.Errorf("%+v", got)
	}
	for _, place := range []struct {
		offset int
		want   string
	}{{0, "hello"}, {1024, "hello, fabric"}, {4096, "hello, fabric"}} {
		if got := string(b.memory[place.offset : place.offset+len(place.want)]); got != place.want {
			t.Errorf("at %d: %q", place.offset, got)
		}
	}

	copy(b.memory[8192:], "to be read")
	a.send(0, WRRead, SendSignaled, 512, 10).SetRemote(b.address(8192), b.mr.RKey())
	a.post(1)
	if c := a.succeeded(1)[0]; c.Opcode != WCRead {
		t.Errorf("%+v", c)
	}
	if got := string(a.memory[512:522]); got != "to be read" {
		t.Errorf("read %q", got)
	}

	if rxe {
		b.recv(64, 3072)
		w := a.send(0, WRWriteWithImmediate, SendSignaled, 0, 5)
		w.SetRemote(b.address(5000), b.mr.RKey())
		w.SetImmediate(0xfeedbeef)
		a.post(1)
		a.succeeded(1)
		if c := b.succeeded(1)[0]; c.Opcode != WCRecvWriteWithImmediate || c.Flags&WCWithImmediate == 0 || c.Immediate() != 0xfeedbeef || c.Length != 5 {
			t.Errorf("%+v", c)
		}
		binary.NativeEndian.PutUint64(b.memory[16384:], 40)
		a.send(0, WRFetchAdd, SendSignaled, 600, 8).SetAtomic(b.address(16384), b.mr.RKey(), 2, 0)
		a.send(1, WRCompareSwap, SendSignaled, 608, 8).SetAtomic(b.address(16384), b.mr.RKey(), 42, 99)
		a.post(2)
		for i, c := range a.succeeded(2) {
			if c.Opcode != []WCOpcode{WCFetchAdd, WCCompareSwap}[i] {
				t.Errorf("%+v", c)
			}
		}
		if x, y, z := binary.NativeEndian.Uint64(a.memory[600:]), binary.NativeEndian.Uint64(a.memory[608:]), binary.NativeEndian.Uint64(b.memory[16384:]); x != 40 || y != 42 || z != 99 {
			t.Errorf("atomics: %d, %d, and %d in the end", x, y, z)
		}
	} else {
		a.send(0, WRSendWithImmediate, SendSignaled, 0, 5).SetImmediate(1)
		if n, err := a.qp.PostSend(a.sends, 1); n != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a Send with immediate on siw: %d, %v", n, err)
		}
	}

	// Events, of the solicited kind only: the first Send raises none. siw raises
	// none for the second either, so it has to be asked for any.
	b.recv(64, 0, 64)
	b.arm(rxe)
	a.send(0, WRSend, SendSignaled, 0, 5)
	a.post(1)
	a.succeeded(1)
	a.send(0, WRSend, SendSignaled|SendSolicited, 0, 5)
	a.post(1)
	b.event()
	b.succeeded(2)
	a.succeeded(1)

	// The end: both hear of it, and what was outstanding is flushed.
	b.recv(64, 0)
	if err := a.id.Disconnect(); err != nil {
		t.Fatal(err)
	}
	if e := mb.next(CMDisconnected); e.ID != b.id {
		t.Errorf("%+v", e)
	}
	_ = b.id.Disconnect()
	ma.next(CMDisconnected)
	for _, c := range b.completions(2) { // one was left
		if c.Status != StatusFlushed {
			t.Errorf("%+v: %v", c, c.Status)
		}
	}
	a.close()
	b.close()
	ma.close()
	mb.close()
}

// hangUp ends a connection from a's side.
func hangUp(t testing.TB, a, b *host, ma, mb *manager) {
	t.Helper()
	if err := a.id.Disconnect(); err != nil {
		t.Fatal(err)
	}
	mb.next(CMDisconnected)
	_ = b.id.Disconnect()
	ma.next(CMDisconnected)
	a.close()
	b.close()
	ma.close()
	mb.close()
}

func TestLabSharedReceive(t *testing.T) {
	a, b, ma, mb := pair(t, true)
	events := must(b.ctx.AsyncEventFile())(t)
	defer events.Close()
	if err := b.srq.SetLimit(2); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		copy(a.memory, fmt.Sprintf("message %d", i))
		a.send(0, WRSend, SendSignaled, 0, 9)
		a.post(1)
		a.succeeded(1)
		c := b.succeeded(1)[0]
		if got := string(b.memory[c.ID : c.ID+uint64(c.Length)]); got != fmt.Sprintf("message %d", i) {
			t.Errorf("%q", got)
		}
	}
	event := wait(t, events, b.ctx.AsyncEvent)
	b.ctx.AckAsyncEvent(event)
	if event.Type != AsyncSRQLimitReached || event.Cookie != 0xbeef {
		t.Errorf("event %v of %#x", event.Type, event.Cookie)
	}
	hangUp(t, a, b, ma, mb)
}

func TestLabRejected(t *testing.T) {
	l, devices := inLab(t)
	ma, mb := newManager(t, l), newManager(t, l)
	listening, address := mb.listen()
	a := newHost(t, l, devices[0].Name, false)
	a.id = ma.dial(address)
	a.id.AttachQP(a.qp)
	connected := make(chan error, 1)
	go func() { connected <- a.id.Connect(ConnParams{InitiatorDepth: 1, ResponderResources: 1, RetryCount: 3}) }()
	request := mb.next(CMConnectRequest)
	if err := request.ID.Reject([]byte("go away")); err != nil {
		t.Fatal(err)
	}
	succeed(t, "destroy request", request.ID.Destroy())
	e := ma.next(CMRejected)
	t.Logf("rejected with status %d and %q", e.Status, e.PrivateData)
	if e.Status == 0 || !bytes.HasPrefix(e.PrivateData, []byte("go away")) {
		t.Errorf("%+v", e)
	}
	succeed(t, "connect", <-connected)
	succeed(t, "destroy listener", listening.Destroy())
	a.close()
	ma.close()
	mb.close()
}

func TestLabNobodyListens(t *testing.T) {
	l, devices := inLab(t)
	ma := newManager(t, l)
	a := newHost(t, l, devices[0].Name, false)
	a.id = ma.dial(netip.AddrPortFrom(addressB, 9))
	a.id.AttachQP(a.qp)
	err := a.id.Connect(ConnParams{InitiatorDepth: 1, ResponderResources: 1, RetryCount: 3})
	if a.ctx.Driver() == "siw" {
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connect: %v", err)
		}
	} else {
		succeed(t, "connect", err)
		ma.next(CMRejected)
	}
	a.close()
	ma.close()
}

func TestLabBadAddresses(t *testing.T) {
	l, _ := inLab(t)
	m := newManager(t, l)
	id := must(m.channel.CreateID(1))(t)
	if err := id.Bind(netip.MustParseAddrPort("192.0.2.1:1")); err == nil || !strings.Contains(err.Error(), "no RDMA device") {
		t.Errorf("bind to a foreign address: %v", err)
	}
	if err := id.Bind(netip.AddrPort{}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("bind to nothing: %v", err)
	}
	if id.DeviceName() != "" || id.Valid() != true {
		t.Errorf("device %q", id.DeviceName())
	}
	succeed(t, "destroy", id.Destroy())
	m.close()
}

// A Read with a key that is not the peer's fails it, and everything behind it.
func TestLabRefusedAccess(t *testing.T) {
	a, b, ma, mb := pair(t, false)
	a.send(0, WRRead, SendSignaled, 0, 8).SetRemote(b.address(0), b.mr.RKey()^0x5a5a00)
	a.send(1, WRSend, SendSignaled, 0, 8)
	a.post(2)
	want := map[string]Status{"rxe": StatusRemoteAccess, "siw": StatusFlushed}[a.ctx.Driver()]
	statuses := map[uint64]Status{}
	for _, c := range a.completions(2) {
		statuses[c.ID] = c.Status
	}
	// On siw the Send may be through before the Read's refusal comes back.
	if statuses[100] != want || statuses[101] != StatusFlushed && a.ctx.Driver() != "siw" {
		t.Errorf("%v", statuses)
	}
	// Whoever sees it hangs up; siw has done so itself.
	_ = a.id.Disconnect()
	mb.next(CMDisconnected)
	_ = b.id.Disconnect()
	ma.next(CMDisconnected)
	a.close()
	b.close()
	ma.close()
	mb.close()
}

func TestLabToError(t *testing.T) {
	a, b, ma, mb := pair(t, false)
	if err := b.qp.ToError(); err != nil {
		t.Fatal(err)
	}
	for i, c := range b.completions(3) {
		if c.Status != StatusFlushed || c.ID != uint64(1024*i) {
			t.Errorf("%+v: %v", c, c.Status)
		}
	}
	_ = b.id.Disconnect()
	ma.next(CMDisconnected)
	_ = a.id.Disconnect()
	mb.next(CMDisconnected)
	a.close()
	b.close()
	ma.close()
	mb.close()
}

// Beyond RLIMIT_MEMLOCK a registration fails, and the error says what to raise.
func TestLabMemlock(t *testing.T) {
	l, devices := inLab(t)
	c := open(t, l, devices[0].Name)
	pd := must(c.AllocPD())(t)
	memory := must(unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	defer unix.Munmap(memory)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	low := unix.Rlimit{Cur: 64 << 10, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &low); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)
	// Root is above the limit by CAP_IPC_LOCK: this thread gives it up, and takes
	// no other goroutine's work afterwards.
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			done <- err
			return
		}
		data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
		if err := unix.Capset(&header, &data[0]); err != nil {
			done <- err
			return
		}
		mr, err := pd.RegisterMR(memory, AccessLocalWrite)
		if err == nil {
			err = errors.Join(errors.New("it was registered"), mr.Deregister())
		}
		done <- err
	}()
	err := <-done
	t.Log(err)
	if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "ulimit -l") || !strings.Contains(err.Error(), "65536") {
		t.Errorf("%v", err)
	}
	succeed(t, "free domain", pd.Dealloc())
}

// A Send to and fro, both ends spinning in this process, by the way the driver
// is entered. Says nothing about hardware.
func BenchmarkLabPingPong(b *testing.B) {
	for _, mode := range []quirks.CallMode{quirks.CallBlocking, quirks.CallNonBlockingPoll} {
		b.Run(strings.ReplaceAll(mode.String(), " ", "-"), func(b *testing.B) {
			first, second, ma, mb := pair(b, false)
			first.ctx.setMode(mode)
			second.ctx.setMode(mode)
			first.recv(1024, 0)
			turn := func(h *host, rounds int, begins bool) {
				received, sent := 0, 0
				for round := range rounds {
					if begins || round > 0 {
						h.send(0, WRSend, SendSignaled|SendInline, 0, 8)
						h.post(1)
						sent++
					}
					for received <= round {
						n, err := h.cq.Poll(h.wcs)
						if err != nil {
							panic(err)
						}
						for i := range n {
							if c := h.wcs.At(i); c.Status != StatusSuccess {
								panic(c.Status)
							} else if c.Opcode == WCRecv {
								received++
								h.recv(1024, 0)
							}
						}
					}
				}
				if !begins {
					h.send(0, WRSend, SendSignaled|SendInline, 0, 8)
					h.post(1)
				}
			}
			rounds := max(b.N, 1)
			done := make(chan struct{})
			b.ResetTimer()
			go func() { turn(second, rounds, false); close(done) }()
			turn(first, rounds, true)
			<-done
			b.StopTimer()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rounds)/2, "one-way-ns")
			hangUp(b, first, second, ma, mb)
		})
	}
}
