package rpc

import (
	"bytes"
	"context"
	"runtime"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/rdma"
)

// A caller makes a call, over whatever carries it.
type echoer func(resp proto.Message, payload []byte) error

// Kept answers stay as they are while other calls are made, until they are released or
// used again, and are not copied. lean says that the carrier has memory for messages
// that it uses again.
func checkKept(t *testing.T, lean bool, call echoer) {
	t.Helper()
	payload := func(n int, fill byte) []byte { return bytes.Repeat([]byte{fill}, n) }
	var kept [4]*Kept
	for i := range kept {
		kept[i] = &Kept{Message: &blob{}}
		for range 2 { // used again, it lets the answer before go
			if err := call(kept[i], payload(300<<10, byte(i))); err != nil {
				t.Fatal(err)
			}
		}
		if kept[i].memory == nil {
			t.Fatal("a long answer was copied")
		}
	}
	if err := call(&blob{}, payload(300<<10, 9)); err != nil {
		t.Fatal(err)
	}
	for i, k := range kept {
		m := k.Message.(*blob)
		if !bytes.Equal(m.Value, payload(300<<10, byte(i))) {
			t.Errorf("answer %d has changed while it was kept", i)
		}
		k.Release()
		if len(m.Value) != 0 || k.memory != nil {
			t.Errorf("answer %d refers to %d bytes after Release", i, len(m.Value))
		}
		k.Release() // does nothing
	}
	k := kept[0]
	for _, n := range []int{0, 100, 40 << 10, 100} {
		if err := call(k, payload(n, 7)); err != nil {
			t.Fatal(err)
		}
		if got := k.Message.(*blob).Value; !bytes.Equal(got, payload(n, 7)) {
			t.Errorf("%d bytes came back of %d", len(got), n)
		}
	}
	k.Release()
	if race.Enabled || !lean {
		return
	}
	const size, calls = 512 << 10, 50
	question := payload(size, 1)
	var before, after runtime.MemStats
	for i := range 2 * calls {
		if i == calls {
			runtime.ReadMemStats(&before)
		}
		if err := call(k, question); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	k.Release()
	if each := (after.TotalAlloc - before.TotalAlloc) / calls; each > size/2 {
		t.Errorf("a call with an answer of %d bytes allocates %d at both ends", size, each)
	}
}

func TestKeptAnswers(t *testing.T) {
	eachTransport(t, func(t *testing.T, providers func() (client, server []rdma.Provider)) {
		s := newEndpoints(t, Config{}, Methods{"echo": Handle(echoBlob)}, providers)
		p := s.proxy(t, ClientConfig{}, ada)
		e := p.endpoint(t)
		checkKept(t, e.Selection().Transport != verbena.TransportTCP, func(resp proto.Message, payload []byte) error {
			return p.Call(t.Context(), "echo", &blob{Value: payload}, resp)
		})
	})
	t.Run("stream", func(t *testing.T) {
		address, _ := startServer(t, Config{}, Methods{"echo": Handle(echoBlob)})
		c := NewClient(ClientConfig{})
		defer c.Close()
		p := c.Proxy(Target{Address: address, User: "ada", Protocol: testProtocol})
		checkKept(t, true, func(resp proto.Message, payload []byte) error {
			return p.Call(context.Background(), "echo", &blob{Value: payload}, resp)
		})
	})
}
