package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/verbena-data/verbena/rdma/iwarp/internal/wire"
)

var anyReady = []Ready{ReadyWrite, ReadyRead, ReadySend}

// over passes a frame over the wire.
func over(t testing.TB, s wire.Setup) wire.Setup {
	t.Helper()
	b, err := wire.AppendSetup(nil, &s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := wire.ParseSetup(b, s.Reply)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// negotiate has two sides agree.
func negotiate(t testing.TB, a, b Local) (pa, pb Params, err error) {
	t.Helper()
	request := Request(a, []byte("ask"))
	asked := over(t, request)
	if string(asked.Private) != "ask" {
		t.Fatalf("private data of the Request: %q", asked.Private)
	}
	reply, pb, unfit := Answer(&asked, b, []byte("answer"))
	answered := over(t, reply)
	pa, err = Conclude(&request, &answered, a)
	switch {
	case unfit != nil && !errors.Is(err, ErrRejected):
		t.Fatalf("one side says %v and the other %v", unfit, err)
	case unfit == nil && string(answered.Private) != "answer":
		t.Fatalf("private data of the Reply: %q", answered.Private)
	}
	return pa, pb, err
}

// agreed checks that two sides have the same in mind.
func agreed(t testing.TB, what string, a, b Local, pa, pb Params) {
	t.Helper()
	switch {
	case !pa.Initiator || pb.Initiator:
		t.Errorf("%s: who is the initiator?", what)
	case pa.CRC != pb.CRC || pa.CRC != (!a.NoCRC || !b.NoCRC):
		t.Errorf("%s: CRC %t and %t", what, pa.CRC, pb.CRC)
	case pa.SendMarkers != pb.ReceiveMarkers || pa.SendMarkers != b.Markers || pb.SendMarkers != pa.ReceiveMarkers || pb.SendMarkers != a.Markers:
		t.Errorf("%s: markers %+v and %+v", what, pa, pb)
	case pa.Ready != pb.Ready:
		t.Errorf("%s: ready-to-receive %d and %d", what, pa.Ready, pb.Ready)
	case pa.ORD > a.ORD || pb.ORD > b.ORD || pa.IRD != a.IRD || pb.IRD != b.IRD:
		t.Errorf("%s: more Reads than configured: %+v and %+v", what, pa, pb)
	}
	if a.Revision < wire.Revision2 {
		if pa.Ready != ReadyNone || pa.ORD != a.ORD {
			t.Errorf("%s: revision 1 has agreed on %+v", what, pa)
		}
		return
	}
	if pa.ORD > pb.IRD || pb.ORD > pa.IRD {
		t.Errorf("%s: Reads would exceed what is served: %+v and %+v", what, pa, pb)
	}
	if pa.ORD != min(a.ORD, b.IRD) || pb.ORD != min(b.ORD, a.IRD) {
		t.Errorf("%s: fewer Reads than could be: %+v and %+v", what, pa, pb)
	}
}

func TestNegotiate(t *testing.T) {
	readies := [][]Ready{nil, {ReadyWrite}, {ReadyRead}, {ReadySend}, {ReadySend, ReadyWrite}, anyReady}
	for mode := range 32 {
		for _, ra := range readies {
			for _, rb := range readies {
				a := Local{Revision: wire.Revision1 + uint8(mode>>4&1), IRD: 3, ORD: 9, Markers: mode&1 != 0, NoCRC: mode&4 != 0, Ready: ra}
				b := Local{Revision: wire.Revision2, IRD: 5, ORD: 2, Markers: mode&2 != 0, NoCRC: mode&8 != 0, Ready: rb}
				what := fmt.Sprintf("%+v with %+v", a, b)
				pa, pb, err := negotiate(t, a, b)
				common := false
				for _, x := range ra {
					for _, y := range rb {
						common = common || x == y
					}
				}
				if a.Revision == wire.Revision2 && len(ra) > 0 && len(rb) > 0 && !common {
					if !errors.Is(err, ErrRejected) {
						t.Errorf("%s: %v; they have no ready-to-receive message in common", what, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				agreed(t, what, a, b, pa, pb)
				if wantsReady := a.Revision == wire.Revision2 && common; wantsReady != (pa.Ready != ReadyNone) {
					t.Errorf("%s: ready-to-receive %d", what, pa.Ready)
				}
			}
		}
	}
}

func FuzzNegotiate(f *testing.F) {
	f.Add(uint16(1), uint16(2), uint16(3), uint16(4), uint16(0))
	f.Add(uint16(0x3FFF), uint16(0x3FFE), uint16(0), uint16(0xFFFF), uint16(0xFFFF))
	f.Fuzz(func(t *testing.T, ia, oa, ib, ob, mode uint16) {
		kinds := func(bits uint16) (list []Ready) {
			for i, kind := range anyReady {
				if bits>>i&1 != 0 {
					list = append(list, kind)
				}
			}
			return list
		}
		// A device serves fewer Reads than the header could tell.
		bound := func(n uint16) int { return int(n) % wire.NotNegotiated }
		a := Local{Revision: wire.Revision1 + uint8(mode>>10&1), IRD: bound(ia), ORD: bound(oa), Markers: mode&1 != 0, NoCRC: mode&2 != 0, Ready: kinds(mode >> 2)}
		b := Local{Revision: wire.Revision2, IRD: bound(ib), ORD: bound(ob), Markers: mode&32 != 0, NoCRC: mode&64 != 0, Ready: kinds(mode >> 7)}
		pa, pb, err := negotiate(t, a, b)
		if err == nil {
			agreed(t, fmt.Sprintf("%+v with %+v", a, b), a, b, pa, pb)
		} else if !errors.Is(err, ErrRejected) {
			t.Errorf("two sides of this package: %v", err)
		}
	})
}

// TestForeignRequests answers what other implementations may ask.
func TestForeignRequests(t *testing.T) {
	const open = wire.NotNegotiated
	local := Local{Revision: wire.Revision2, IRD: 16, ORD: 16, Ready: anyReady}
	for _, c := range []struct {
		name     string
		request  wire.Setup
		local    Local
		ird, ord uint16 // of the Reply
		own      int    // this side's Reads
		ready    Ready
		refused  string
	}{
		{"depths", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{IRD: 4, ORD: 100}}, local, 16, 4, 4, ReadyNone, ""},
		{"none served", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{}}, local, 16, 0, 0, ReadyNone, ""},
		{"left open", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{IRD: open, ORD: open}}, local, open, open, 16, ReadyNone, ""},
		{"one of them left open", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{IRD: 3, ORD: open}}, local, open, open, 3, ReadyNone, ""},
		{"the best of the offered", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadyRead: true, ReadySend: true, IRD: 1, ORD: 1}}, local, 16, 1, 1, ReadyRead, ""},
		{"only Send", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadySend: true, IRD: 1, ORD: 1}}, local, 16, 1, 1, ReadySend, ""},
		{"kinds without the mode", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{ReadySend: true, ReadyWrite: true, IRD: 1, ORD: 1}}, local, 16, 1, 1, ReadyNone, ""},
		{"no kind", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, IRD: 1, ORD: 1}}, local, 0, 0, 0, ReadyNone, "no ready-to-receive message"},
		{"no kind in common", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadySend: true, IRD: 1, ORD: 1}},
			Local{Revision: 2, IRD: 1, ORD: 1, Ready: []Ready{ReadyWrite}}, 0, 0, 0, ReadyNone, "no ready-to-receive message"},
		{"without the mode here", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadySend: true, IRD: 1, ORD: 1}},
			Local{Revision: 2, IRD: 1, ORD: 1}, 1, 1, 1, ReadyNone, ""},
		{"revision 3", wire.Setup{Revision: 3}, local, 0, 0, 0, ReadyNone, "revision 3"},
		{"revision 0", wire.Setup{}, local, 0, 0, 0, ReadyNone, "revision 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := over(t, c.request)
			reply, p, err := Answer(&asked, c.local, nil)
			if c.refused != "" {
				var unfit *SetupError
				if !errors.As(err, &unfit) || unfit.Cause != wire.MPASetup || !strings.Contains(err.Error(), c.refused) || !reply.Reject {
					t.Fatalf("%+v, %v", reply, err)
				}
				over(t, reply)
				return
			}
			if err != nil || reply.Reject {
				t.Fatalf("%+v, %v", reply, err)
			}
			e := over(t, reply).Enhanced
			if e == nil || e.IRD != c.ird || e.ORD != c.ord || p.ORD != c.own || p.Ready != c.ready || e.PeerToPeer != (c.ready != ReadyNone) {
				t.Fatalf("reply %+v, parameters %+v", e, p)
			}
			kinds := 0
			for _, kind := range anyReady {
				if offers(e, kind) {
					kinds++
				}
			}
			if kinds > 1 || c.ready != ReadyNone && !offers(e, c.ready) {
				t.Fatalf("the reply chooses %+v", e)
			}
		})
	}
}

// TestForeignReplies reads what other implementations may answer.
func TestForeignReplies(t *testing.T) {
	local := Local{Revision: wire.Revision2, IRD: 4, ORD: 8, Ready: anyReady}
	for _, c := range []struct {
		name  string
		reply wire.Setup
		cause *wire.Cause // of the Terminate
		text  string
		ord   int
		ready Ready
	}{
		{"fewer", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{IRD: 2, ORD: 4}}, nil, "", 2, ReadyNone},
		{"more", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{IRD: 100, ORD: 1}}, nil, "", 8, ReadyNone},
		{"left open", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{IRD: wire.NotNegotiated, ORD: wire.NotNegotiated}}, nil, "", 8, ReadyNone},
		{"too many Reads", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{IRD: 2, ORD: 5}}, &wire.MPAInsufficientIRD, "wants 5 Reads", 0, ReadyNone},
		{"by Send", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadySend: true, IRD: 2}}, nil, "", 2, ReadySend},
		{"by Read", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadyRead: true, IRD: 2}}, nil, "", 2, ReadyRead},
		{"two kinds, as if to choose", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadySend: true, ReadyRead: true, IRD: 2}}, nil, "", 2, ReadyRead},
		{"no kind", wire.Setup{Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true}}, &wire.MPANoReadyToReceiveModes, "no ready-to-receive", 0, ReadyNone},
		{"without the header", wire.Setup{Revision: 2}, &wire.MPASetup, "lacks the enhanced header", 0, ReadyNone},
		{"of revision 1", wire.Setup{Revision: 1}, &wire.MPASetup, "revision 1", 0, ReadyNone},
		{"rejected", wire.Setup{Revision: 2, Reject: true, Enhanced: &wire.Enhanced{}}, nil, "rejected", 0, ReadyNone},
		{"rejected for the revision", wire.Setup{Revision: 1, Reject: true}, nil, "has revision 1", 0, ReadyNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			request := Request(local, nil)
			c.reply.Reply = true
			reply := over(t, c.reply)
			p, err := Conclude(&request, &reply, local)
			var unfit *SetupError
			switch {
			case c.text == "":
				if err != nil || p.ORD != c.ord || p.Ready != c.ready || !p.CRC {
					t.Fatalf("%+v, %v", p, err)
				}
			case err == nil || !strings.Contains(err.Error(), c.text):
				t.Fatalf("error %v, want one that has %q", err, c.text)
			case (c.cause != nil) != errors.As(err, &unfit) || c.cause != nil && unfit.Cause != *c.cause:
				t.Fatalf("error %v, want a Terminate %v", err, c.cause)
			case c.reply.Reject != errors.Is(err, ErrRejected):
				t.Fatalf("error %v", err)
			}
		})
	}
	// siw answers the offer of a Send with a Write.
	sending := local
	sending.Ready = []Ready{ReadySend}
	offering := Request(sending, nil)
	if p, err := Conclude(&offering, &wire.Setup{Reply: true, Revision: 2, Enhanced: &wire.Enhanced{PeerToPeer: true, ReadyWrite: true}}, sending); err != nil || p.Ready != ReadyWrite {
		t.Errorf("a kind that was not offered: %+v, %v", p, err)
	}
	// siw rejects who asks for markers.
	asking := local
	asking.Markers = true
	request := Request(asking, nil)
	if _, err := Conclude(&request, &wire.Setup{Reply: true, Revision: 2, Reject: true}, asking); !errors.Is(err, ErrRejected) || !strings.Contains(err.Error(), "markers") {
		t.Errorf("rejected for markers: %v", err)
	}
}
