package verbena

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-data/verbena/internal/link/wire"
	"github.com/verbena-data/verbena/internal/waking"
)

func TestTuningFromText(t *testing.T) {
	table := TuningTable{}
	for _, c := range []struct{ name, value, refusal string }{
		{"shm.eager", "32K", ""},
		{"shm.window", "8", ""},
		{"shm.max-window", "16", ""},
		{"shm.spin", "20us", ""},
		{"shm.spin", "-1s", ""},
		{"shm.chunk", "1M", ""},
		{"tcp.chunk", "64K", ""},
		{"tcp.stream", "128K", ""},
		{"shm.eager", "1M", "it can be 256 to 262144"},
		{"shm.eager", "255", "it can be 256"},
		{"shm.eager", "many", "want a number"},
		{"shm.eager", "-5", "want a number"},
		{"shm.eager", "4096M", "want a number"},
		{"shm.spin", "20", "want a duration"},
		{"shm.spin", "1h", "it can be 0s to 10s"},
		{"shm.window", "17", "above max-window"},
		{"shm.speed", "1", "no field \"speed\"; there are eager, window"},
		{"eager", "1K", "want TRANSPORT.FIELD"},
		{".eager", "1K", "want TRANSPORT.FIELD"},
		{"tcp.eager", "1K", "no meaning over TCP"},
	} {
		before := table["shm"]
		err := table.Set(c.name, c.value)
		switch {
		case c.refusal == "" && err != nil:
			t.Errorf("%s=%s: %v", c.name, c.value, err)
		case c.refusal != "" && (err == nil || !strings.Contains(err.Error(), c.refusal)):
			t.Errorf("%s=%s: got %v, want %q", c.name, c.value, err, c.refusal)
		case c.refusal != "" && table["shm"] != before:
			t.Errorf("%s=%s is refused and set", c.name, c.value)
		}
	}
	if got := table["shm"]; got.Eager != 32<<10 || got.Window != 8 || got.MaxWindow != 16 || got.Spin >= 0 || got.Chunk != 1<<20 {
		t.Errorf("the table has %+v", got)
	}
}

// Each table comes before the one behind it, field by field.
func TestTuningOverrides(t *testing.T) {
	runtime := TuningTable{"shm": {Eager: 4096, Window: 6, Spin: time.Millisecond}}
	group := TuningTable{"shm": {Eager: 2048, MaxWindow: 12}}
	dial := TuningTable{"shm": {Eager: 1024}}
	builtin := tune("shm")
	got := tune("shm", runtime, group, dial)
	want := builtin
	want.Eager, want.Window, want.MaxWindow, want.Spin = 1024, 6, 12, time.Millisecond
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := tune("shm", nil, nil, nil); got != builtin {
		t.Errorf("without tables: %+v, want %+v", got, builtin)
	}
	if unknown, row := tune("other"), tune(""); unknown != row || unknown.Eager == 0 {
		t.Errorf("a provider without a row gets %+v", unknown)
	}
}

// The built-in table is complete, in range, and says where it comes from.
func TestBuiltInTuning(t *testing.T) {
	var names []string
	for _, row := range DefaultTuning() {
		if err := row.Tuning.check(row.Transport); err != nil {
			t.Error(err)
		}
		if !strings.HasPrefix(row.Source, "measured") && !strings.HasPrefix(row.Source, "inherited") {
			t.Errorf("%s: source %q", row.Transport, row.Source)
		}
		// One offer of the sender and one Read of the receiver for each of many messages in
		// registered memory; over TCP, one fragment.
		most := wire.MaxChunk
		if row.Transport == TransportTCP {
			most = row.Tuning.Chunk
		}
		if packet := row.Tuning.Packet; packet > most {
			t.Errorf("%s: a packet of %d bytes takes more than one part of %d", row.Transport, packet, most)
		}
		names = append(names, row.Transport)
	}
	for _, want := range []string{"shm", "iwarp", "ibverbs", TransportTCP, ""} {
		if !slices.Contains(names, want) {
			t.Errorf("no row for %q", want)
		}
	}
}

func TestTuningIsRefused(t *testing.T) {
	w := worldOf(t, "fakeband")
	p := w.pair(t, Config{}, ListenConfig{})
	addr := p.listener.Addr().String()
	for _, c := range []struct {
		name  string
		table TuningTable
		want  string
	}{
		{"unknown transport", TuningTable{"fakebrand": {Eager: 1000}}, "no transport of this runtime; there are fakeband, tcp"},
		{"out of range", TuningTable{w.transport: {Window: 5000}}, "it can be 2 to 1024"},
		{"above the group's", TuningTable{w.transport: {Eager: 200 << 10}}, "above that of the group"},
	} {
		if _, err := p.client.Dial(p.ctx, addr, "test/1", DialConfig{Tuning: c.table}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: dial: %v", c.name, err)
		}
		if _, err := p.server.Listen(p.ctx, "127.0.0.1:0", ListenConfig{Tuning: c.table}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: listen: %v", c.name, err)
		}
		if _, err := p.listener.Service("other/1", ServiceConfig{Tuning: c.table}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: service: %v", c.name, err)
		}
	}
	providers, _ := w.providers(t)
	if _, err := New(Config{Providers: providers, Tuning: TuningTable{"nowhere": {Eager: 1000}}}); err == nil {
		t.Error("a runtime takes tuning of a transport that is not there")
	}
}

// A row for the architecture comes before one for all, whatever their order, and the
// transport counts more than it.
func TestTuningByArchitecture(t *testing.T) {
	rows := []TuningRow{
		{Transport: "", Source: "all"},
		{Transport: "", Architecture: "arm64", Source: "all on arm64"},
		{Transport: "shm", Architecture: "arm64", Source: "shm on arm64"},
		{Transport: "shm", Source: "shm"},
		{Transport: "shm", Architecture: "s390x", Source: "shm on s390x"},
		{Transport: "iwarp", Source: "iwarp"},
	}
	for range 2 {
		for _, c := range []struct{ transport, architecture, want string }{
			{"shm", "arm64", "shm on arm64"}, {"shm", "s390x", "shm on s390x"}, {"shm", "amd64", "shm"},
			{"iwarp", "arm64", "iwarp"}, {"iwarp", "amd64", "iwarp"},
			{"other", "arm64", "all on arm64"}, {"other", "amd64", "all"},
		} {
			if got := fitting(rows, c.transport, c.architecture).Source; got != c.want {
				t.Errorf("%s on %s has the row %q, want %q", c.transport, c.architecture, got, c.want)
			}
		}
		slices.Reverse(rows)
	}
	// Each row of the built-in table is reached by somebody, and names a real architecture.
	seen := map[[2]string]bool{}
	for _, row := range builtIn {
		if key := [2]string{row.Transport, row.Architecture}; seen[key] {
			t.Errorf("two rows of %v", key)
		} else {
			seen[key] = true
		}
		if got := fitting(builtIn, row.Transport, row.Architecture); got != row {
			t.Errorf("%s on %s has the row of %q", row.Transport, row.Architecture, got.Source)
		}
	}
}

// Whoever is tuned by the table need not have sizes of their own: every row has them.
func TestEveryRowHasTheSizesOfItsTransport(t *testing.T) {
	for _, row := range DefaultTuning() {
		for _, f := range tuningFields {
			if row.Transport == TransportTCP && !f.tcp || f.name == "own" || f.name == "call-spin" {
				continue // 0 stands for something
			}
			if _, ok := row.Tuning.Fields()[f.name]; !ok {
				t.Errorf("the row %s.%s on %q has none", row.Transport, f.name, row.Architecture)
			}
		}
	}
}

// What keeps waiters from sleeping in Go's poller is an endpoint of the process that polls,
// for messages or for answers, whatever its group.
func TestNobodyPolls(t *testing.T) {
	for _, each := range []struct {
		spin, callSpin time.Duration
		polls          bool
	}{{time.Millisecond, -1, true}, {-1, -1, false}, {-1, time.Millisecond, true}} {
		p := worldOf(t, "fakeband").pair(t, Config{Tuning: TuningTable{"fakeband": {Spin: -1, CallSpin: -1}}}, ListenConfig{Tuning: TuningTable{"fakeband": {Spin: -1, CallSpin: -1}}})
		awaitNobodyPolls(t) // the endpoints of tests before may be closing
		tuning := TuningTable{"fakeband": {Spin: each.spin, CallSpin: each.callSpin}}
		a, err := p.client.Dial(p.ctx, p.listener.Addr().String(), "test/1", DialConfig{Tuning: tuning})
		if err != nil {
			t.Fatal(err)
		}
		b, err := p.listener.Accept(p.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if nobodyPolls() == each.polls {
			t.Errorf("%+v: nobody polls: %v", each, nobodyPolls())
		}
		for _, e := range []*Endpoint{a, b} {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
		awaitNobodyPolls(t)
	}
}

func awaitNobodyPolls(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !nobodyPolls(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("somebody polls, and no endpoint that does is open")
		}
	}
}

// What is measured is where the built-in table is, behind all others.
func TestSpinIsMeasured(t *testing.T) {
	for transport, want := range map[string]time.Duration{
		"shm":   waking.Outlasting(shmOnAMD64.Spin, 1),
		"iwarp": waking.Outlasting(iwarpOnAMD64.Spin, waking.BySocket),
	} {
		measured := DefaultTuningOf(transport).Tuning.Spin
		if measured != want {
			t.Errorf("%s: %v, want %v", transport, measured, want)
		}
		if got := tune(transport).Spin; got != measured {
			t.Errorf("%s: %v without a table, the row has %v", transport, got, measured)
		}
		if got := tune(transport, TuningTable{transport: {Spin: 5 * time.Microsecond}}).Spin; got != 5*time.Microsecond {
			t.Errorf("%s: %v, set was 5us", transport, got)
		}
	}
	if got := DefaultTuningOf("ibverbs").Tuning.Spin; got != unmeasured.Spin {
		t.Errorf("ibverbs has %v", got)
	}
}
