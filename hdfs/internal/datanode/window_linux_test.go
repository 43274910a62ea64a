package datanode

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/blocktoken"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/providers"
)

// viewer is a client with an endpoint of its own for reads.
type viewer struct {
	t *testing.T
	c *verbena.Caller
}

// viewers publishes the calls of a DataNode and returns what makes clients.
func viewers(t *testing.T, n *node, transport string) func() *viewer {
	t.Helper()
	return viewersOf(t, n, transport, verbena.Config{})
}

// viewersOf is viewers with another configuration of the runtime.
func viewersOf(t *testing.T, n *node, transport string, cfg verbena.Config) func() *viewer {
	t.Helper()
	return viewersBy(t, n.NativeCalls, transport, cfg)
}

// viewersBy is viewersOf with what registers the calls.
func viewersBy(t *testing.T, calls func(*verbena.Mux), transport string, cfg verbena.Config) func() *viewer {
	t.Helper()
	cfg.Providers = providers.Default()
	rt, err := verbena.New(cfg)
	must(t, err)
	t.Cleanup(func() { rt.Close() })
	g, err := rt.NewGroup(verbena.GroupConfig{Name: "test"})
	must(t, err)
	p, err := port.Listen(t.Context(), rt, "127.0.0.1:0", port.Config{Group: g, Messages: []string{native.CallService}})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	mux := verbena.NewMux(verbena.MuxConfig{})
	t.Cleanup(mux.Close)
	calls(mux)
	p.Serve(port.Handlers{Messages: map[string]func(context.Context, *verbena.Endpoint) error{native.CallService: func(ctx context.Context, ep *verbena.Endpoint) error {
		defer context.AfterFunc(ctx, func() { ep.Close() })()
		return mux.Serve(ep)
	}}})
	own, err := verbena.New(verbena.Config{Providers: providers.Default()})
	must(t, err)
	t.Cleanup(func() { own.Close() })
	return func() *viewer {
		ep, err := own.Dial(t.Context(), p.Addr(), native.CallService, verbena.DialConfig{Transport: transport})
		must(t, err)
		c, err := verbena.NewCaller(ep, nil)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return &viewer{t, c}
	}
}

// window asks for a window.
func (v *viewer) window(header []byte, off int64) (native.Window, error) {
	v.t.Helper()
	m, err := v.c.Call(v.t.Context(), native.MethodWindow, native.AppendReadRequest(nil, &native.ReadRequest{Offset: off, Length: 1}, header))
	if err != nil {
		return native.Window{}, err
	}
	defer m.Release()
	w, err := native.ParseWindow(m.Bytes())
	must(v.t, err)
	return w, nil
}

// get reads a range by Get; false if it does not match its checksums.
func (v *viewer) get(w *native.Window, off int64, b []byte) (bool, error) {
	from, to, ok := w.Part(off, len(b))
	if !ok {
		v.t.Fatalf("%d bytes at %d are in no window", len(b), off)
	}
	part := make([]byte, to-from)
	if err := v.c.Endpoint().Get(v.t.Context(), w.Token, from, part); err != nil {
		return false, err
	}
	return w.Take(part, off, b), nil
}

// Who has no token of a block gets no window of it, and one of a block opens nothing else.
func TestWindowsWantTokens(t *testing.T) {
	for _, transport := range []string{"shm", "iwarp"} {
		g := guardedFiles(t, nil)
		n, data := g.nodes[0], random(1, 1<<20+70_000)
		g.write(1, 1001, data, g.nodes)
		v := viewers(t, n, transport)()
		var refused *verbena.CallError
		for what, token := range map[string]*hdfspb.TokenProto{"none": nil, "to write": g.token("ada", blocktoken.Write, 1, 1001), "of another block": g.token("ada", blocktoken.Read, 2, 1001)} {
			if _, err := v.window(header(t, 1, 1001, token), 0); !errors.As(err, &refused) || native.StatusOf(refused.Code) != hdfspb.Status_ERROR_ACCESS_TOKEN {
				t.Errorf("token %s: %v", what, err)
			}
		}
		h := header(t, 1, 1001, g.token("ada", blocktoken.Read, 1, 1001))
		for _, off := range []int64{int64(len(data)), 1 << 40} {
			if _, err := v.window(h, off); !errors.As(err, &refused) {
				t.Errorf("a window at %d: %v", off, err)
			}
		}
		w, err := v.window(h, 1<<20+5)
		must(t, err)
		if w.Offset != 1<<20 || w.Length != 70_000 || w.Lease > windowLease {
			t.Errorf("%+v", w)
		}
		b := make([]byte, 5000)
		if ok, err := v.get(&w, 1<<20+61_000, b); err != nil || !ok || !bytes.Equal(b, data[1<<20+61_000:1<<20+66_000]) {
			t.Errorf("other bytes: %v", err)
		}
		// A client that reads further than its window ends its endpoint, and reads nothing.
		forged := w.Token.Append(nil)
		forged[16+4] = 0xff // of the length
		token, err := verbena.ParseToken(forged)
		must(t, err)
		if err := v.c.Endpoint().Get(t.Context(), token, native.WindowBytes(w.Sum, w.Length)+1<<16, b); err == nil {
			t.Error("a Get beyond the window")
		}
		if err := v.c.Endpoint().Put(t.Context(), w.Token, 0, b); err == nil {
			t.Error("a Put into a window")
		}
		n.stop()
	}
}

// A window that is taken back gives no byte that matches, while the lease lasts, and its
// memory goes when that is over. The memory is bounded, and what one client has of it.
func TestWindowsAreTakenBack(t *testing.T) {
	const size = 300_000
	most := int64(3 * native.WindowBytes(transfer.CRC32C(), size))
	f := newFixture(t, 1, onDisk(t, func(c *Config) { c.WindowMemory = 2 * most }))
	n, data := f.nodes[0], random(1, size)
	dial := viewers(t, n, "shm")
	v, other := dial(), dial()
	var windows []native.Window
	for id := range uint64(4) {
		finalized(t, n, id+1, 1001, data)
		w, err := v.window(header(t, id+1, 1001, nil), 0)
		if id == 3 {
			var refused *verbena.CallError
			if !errors.As(err, &refused) || refused.Code != native.CodeNotNow {
				t.Errorf("more than half of the memory: %v", err)
			}
			break
		}
		must(t, err)
		windows = append(windows, w)
	}
	if s := n.Reads().Windows; s.Bytes != most || s.Windows != 3 || s.Granted != 3 || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
	// Another client shares what there is, and a lease that is prolonged has the same token.
	shared, err := other.window(header(t, 1, 1001, nil), 0)
	must(t, err)
	again, err := v.window(header(t, 1, 1001, nil), 0)
	must(t, err)
	if shared.Token == windows[0].Token || again.Token != windows[0].Token || n.Reads().Windows.Bytes != most {
		t.Error("windows are not shared, or keys are")
	}
	b := make([]byte, 4096)
	for _, change := range []func(){
		func() { must(t, n.store.Delete(1, 1001)) },
		func() { openWrite(t, []*node{n}, appending, 2, 1001, 1002, size, size).nc.Close() },
	} {
		change()
	}
	for i, x := range []struct {
		v    *viewer
		w    *native.Window
		want bool
	}{{v, &windows[0], false}, {other, &shared, false}, {v, &windows[1], false}, {v, &windows[2], true}} {
		if ok, err := x.v.get(x.w, 50_000, b); err != nil || ok != x.want {
			t.Errorf("window %d: %v, %v", i, ok, err)
		}
	}
	if _, err := v.window(header(t, 2, 1001, nil), 0); err == nil {
		t.Error("a window of a block that is being written")
	}
	ws := &n.windows
	if ws.sweep(time.Now()); n.Reads().Windows.Bytes != most {
		t.Errorf("leases are not over: %+v", n.Reads().Windows)
	}
	if err := v.c.Endpoint().Get(t.Context(), windows[0].Token, 50_000, b); err != nil || !bytes.Equal(b, make([]byte, len(b))) {
		t.Errorf("a window that was taken back still has bytes: %v", err)
	}
	must(t, other.c.Close())
	ws.sweep(time.Now().Add(windowLease + windowGrace + time.Second))
	if s := n.Reads().Windows; s.Bytes != 0 || s.Windows != 0 {
		t.Errorf("after the leases %+v", s)
	}
	if _, err := v.get(&windows[2], 50_000, b); err == nil {
		t.Error("a Get after the lease")
	}
}
