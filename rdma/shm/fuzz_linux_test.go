package shm

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/verbena-data/verbena/rdma"
)

func exampleHello() *hello {
	return &hello{
		least: 1, greatest: 3, domain: [16]byte{1, 2, 3}, queuePair: 77, inbox: inboxShape{receives: 64, entries: 3, slots: 64}, shared: true,
		bell: bellPlace{5, 6}, retryBit: 9, private: []byte("private"),
	}
}

// Whatever comes is refused or understood, and what is understood is what would
// be sent.
func FuzzPacket(f *testing.F) {
	f.Add(exampleHello().append(packetHello, nil))
	h := exampleHello()
	h.shared, h.inbox = false, inboxShape{receives: 64, entries: 2, slots: 64}
	f.Add(h.append(packetAccept, nil))
	f.Add(want{byHandle: true, value: 7}.append(nil))
	f.Add(want{file: true, value: 7}.append(nil))
	f.Add(grant{want: want{file: true, value: 9}, found: true, key: 9, handle: 3, length: 1, state: 3}.append(nil))
	f.Add(grant{want: want{value: 9}, found: true, key: 9, handle: 3, access: 15, address: 1 << 40, length: 4096, state: 3}.append(nil))
	f.Add(grant{want: want{byHandle: true, value: 9}}.append(nil))
	f.Add(want{pass: true, value: 7}.append(nil))
	f.Add(appendPassed(nil, grant{want: want{pass: true, value: 9}, found: true, key: 9, handle: 3, access: 2, address: 1 << 40, length: 4096, state: 3}, promise{handle: 4, state: 5}))
	f.Add(appendRevoke(nil, 5))
	f.Add(appendAlarm(nil, 5))
	f.Add(appendText(packetGoodbye, "so long"))
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 {
			return
		}
		var again []byte
		switch kind := packetType(p[0]); kind {
		case packetHello, packetAccept:
			h, err := parseHello(p)
			if err != nil {
				return
			}
			if len(h.private) > maxPrivateData || h.inbox.size() > 1<<30 || h.bell.queue >= bellQueues {
				t.Fatalf("accepted: %+v", h)
			}
			again = h.append(kind, nil)
		case packetWant:
			w, err := parseWant(p)
			if err != nil {
				return
			}
			again = w.append(nil)
		case packetRegion:
			g, err := parseGrant(p)
			if err != nil {
				return
			}
			if g.found && (g.length == 0 || g.length > maxRegion) {
				t.Fatalf("accepted: %+v", g)
			}
			again = g.append(nil)
		case packetPassed:
			g, kept, err := parsePassed(p)
			if err != nil {
				return
			}
			if g.length == 0 || g.length > maxRegion || rdma.Access(g.access) != rdma.AccessRemoteRead {
				t.Fatalf("accepted: %+v", g)
			}
			again = appendPassed(nil, g, kept)
		case packetAlarm:
			number, err := parseAlarm(p)
			if err != nil {
				return
			}
			again = appendAlarm(nil, number)
		case packetRevoke:
			handle, err := parseRevoke(p)
			if err != nil {
				return
			}
			again = appendRevoke(nil, handle)
		default:
			text, err := parseTail(p, maxText)
			if err != nil {
				return
			}
			again = appendText(kind, string(text))
		}
		if !bytes.Equal(p, again) {
			t.Fatalf("%x was understood as %x", p, again)
		}
	})
}

func TestHelloRoundTrip(t *testing.T) {
	h := exampleHello()
	got, err := parseHello(h.append(packetHello, nil))
	if err != nil || !reflect.DeepEqual(got, h) {
		t.Fatalf("%+v, %v", got, err)
	}
	for name, change := range map[string]func(*hello){
		"newer":         func(h *hello) { h.least, h.greatest = versionMax+1, versionMax+2 },
		"older":         func(h *hello) { h.least, h.greatest = 0, versionMin-1 },
		"upside down":   func(h *hello) { h.least, h.greatest = 2, 1 },
		"slots":         func(h *hello) { h.inbox.slots = 3 },
		"many slots":    func(h *hello) { h.inbox.slots = 1 << 31 },
		"receives":      func(h *hello) { h.inbox.receives = 128 },
		"no receives":   func(h *hello) { h.inbox.receives = 0 },
		"entries":       func(h *hello) { h.inbox.entries = 17 },
		"older, shared": func(h *hello) { h.least, h.greatest = versionMin, versionLent-1 },
		"bell":          func(h *hello) { h.bell.queue = bellQueues },
		"bit":           func(h *hello) { h.bell.bit = bellBits },
		"retry":         func(h *hello) { h.retryBit = bellBits },
		"private":       func(h *hello) { h.private = make([]byte, maxPrivateData+1) },
	} {
		h := exampleHello()
		change(h)
		if _, err := parseHello(h.append(packetHello, nil)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

var fuzzDevice = New(Config{})

// FuzzInbox fills the slots of an inbox with whatever a peer could write.
func FuzzInbox(f *testing.F) {
	for _, kind := range []slotKind{slotSend, slotSendImmediate, slotWriteImmediate, slotTooLong, slotProtection, slotSend | slotPlaced, 0, 15} {
		for _, length := range []int{0, 8, 64, 65, 112, 113, 1 << 20} {
			b := binary.NativeEndian.AppendUint64(nil, uint64(makeSlotHeader(0, kind, length)))
			f.Add(binary.NativeEndian.AppendUint64(b, 5), false)
			f.Add(binary.NativeEndian.AppendUint64(b, 5), true)
		}
	}
	f.Fuzz(func(t *testing.T, slots []byte, shared bool) {
		domain, err := fuzzDevice.device.OpenDomain(rdma.DomainConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer domain.Close()
		cq, err := domain.NewCompletionQueue(64)
		if err != nil {
			t.Fatal(err)
		}
		memory, err := domain.Allocate(4096, rdma.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		config := rdma.QueuePairConfig{SendCompletions: cq, RecvCompletions: cq, SendDepth: 1, RecvDepth: 4, MaxSGE: 2}
		post := func(pair rdma.QueuePair, r []rdma.RecvRequest) (int, error) { return pair.PostRecv(r) }
		if shared {
			srq, err := domain.NewSharedReceiveQueue(rdma.SharedReceiveConfig{Depth: 4, MaxSGE: 2})
			if err != nil {
				t.Fatal(err)
			}
			config.SharedReceive = srq
			post = func(_ rdma.QueuePair, r []rdma.RecvRequest) (int, error) { return srq.PostRecv(r) }
		}
		pair, err := domain.NewQueuePair(config)
		if err != nil {
			t.Fatal(err)
		}
		for i := range uint64(3) {
			if _, err := post(pair, []rdma.RecvRequest{{ID: i, SGEs: []rdma.SGE{{Region: memory, Offset: int(i) * 128, Length: 32}, {Region: memory, Offset: int(i)*128 + 64, Length: 32}}}}); err != nil {
				t.Fatal(err)
			}
		}
		qp := pair.(*queuePair)
		area := qp.inboxFile.Bytes()[qp.inbox.shape.slotsOffset():qp.inbox.shape.size()]
		copy(area, slots)
		qp.recvCQ.mu.Lock()
		qp.recvCQ.heat(qp.bit)
		qp.recvCQ.mu.Unlock()
		var c [8]rdma.Completion
		n, err := cq.Poll(c[:])
		if err != nil {
			t.Fatal(err)
		}
		for i := range c[:n] {
			if c[i].ID > 2 || c[i].Status == rdma.StatusSuccess && c[i].Op == rdma.OpRecv && c[i].Length > 64 {
				t.Fatalf("completion %+v", c[i])
			}
		}
		for i := range 3 {
			part := memory.Bytes()[i*128:][:128]
			if !bytes.Equal(part[32:64], make([]byte, 32)) || !bytes.Equal(part[96:], make([]byte, 32)) {
				t.Fatal("bytes landed outside of the receives")
			}
		}
	})
}

// FuzzReceives gives a sender receives that its peer could have written.
func FuzzReceives(f *testing.F) {
	for _, entries := range []int{0, 1, 2, 4, 5, 255} {
		for _, length := range []int{0, 100, 4096, 1 << 31} {
			b := binary.NativeEndian.AppendUint64(nil, uint64(makeDescriptorHead(0, entries, length)))
			for range 4 {
				b = binary.NativeEndian.AppendUint64(b, uint64(makePlace(makeHandle(0, 1), 64)))
				b = binary.NativeEndian.AppendUint64(b, 1<<36)
			}
			f.Add(b, uint16(200))
			f.Add(b, uint16(8))
		}
	}
	f.Fuzz(func(t *testing.T, descriptors []byte, size uint16) {
		a, b := newSides(t, 1<<16, nil)
		peer := b.qp.(*queuePair)
		area := peer.inboxFile.Bytes()[inboxRings:peer.inbox.shape.slotsOffset()]
		copy(area, descriptors)
		// The peer may say that all of them may be used, or nonsense.
		peer.inbox.room().Store(uint64(size) >> 8)
		peer.inbox.limit().Store(uint64(1 + size%67))
		length := int(size)
		fill(a.memory.Bytes()[:length], 1)
		if _, err := a.qp.PostSend([]rdma.SendRequest{{ID: 1, Op: rdma.OpSend, Flags: rdma.Signaled, SGEs: a.sge(0, length)}}); err != nil {
			t.Fatal(err)
		}
		// Whatever it finds, it can be closed.
		if err := a.qp.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
