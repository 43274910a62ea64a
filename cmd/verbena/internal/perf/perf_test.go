package perf

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/internal/race"
	"github.com/verbena-data/verbena/internal/testneed"
	"github.com/verbena-data/verbena/providers"
	"github.com/verbena-data/verbena/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quiet is a logger for tests in which things fail on purpose.
var quiet = slog.New(slog.DiscardHandler)

// quietProviders are a new set.
func quietProviders(t testing.TB) []rdma.Provider {
	t.Helper()
	list, err := providers.New(providers.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// pair starts a server and makes a client of it, in this process.
func pair(t testing.TB) (*Server, *Client) {
	t.Helper()
	s, err := Listen(context.Background(), ServerConfig{Address: "127.0.0.1:0", Providers: quietProviders(t), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	own := quietProviders(t)
	rt, err := verbena.New(verbena.Config{Providers: own, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(rt.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, &Client{Server: s.Addr().String(), Runtime: rt, Providers: own, Logger: quiet}
}

// local are the transports that work on every host of the tests.
func local(t testing.TB) []string {
	t.Helper()
	names := []string{"shm", "iwarp"}
	for _, p := range providers.Default() {
		for i, name := range names {
			if p.Name() != name {
				continue
			}
			if _, err := p.Devices(t.Context()); err != nil {
				testneed.Missing(t, err.Error(), "run on Linux")
				names = append(names[:i], names[i+1:]...)
			}
		}
	}
	return names
}

// waitsOfTests are all, the cheapest first. With the race detector, both ends
// spinning in one process take minutes, and what spins does not synchronize.
func waitsOfTests() []string {
	if race.Enabled {
		return []string{WaitEvent, WaitAdaptive}
	}
	return []string{WaitEvent, WaitAdaptive, WaitSpin}
}

func few(n int) Amount { return Amount{Iterations: n, Warmup: 16} }

func plan(level, transport, test, mode, wait string, size int) Plan {
	return Plan{Level: level, Transport: transport, Test: test, Mode: mode, Wait: wait, Size: size, Inline: -1}
}

// Connections that share their receives are measured as others are, and every byte
// of their messages arrives.
func TestSharedReceives(t *testing.T) {
	_, c := pair(t)
	for _, transport := range local(t) {
		for _, mode := range modes {
			for _, wait := range waitsOfTests() {
				for _, posters := range []int{1, 3} {
					for _, verify := range []bool{false, true} {
						p := plan(LevelVerbs, transport, TestSend, mode, wait, 1001)
						p.SharedReceives, p.Verify, p.Connections, p.Posters = true, verify, 3, posters
						t.Run(fmt.Sprintf("%s/%s/%s/posters=%d/verify=%t", transport, mode, wait, posters, verify), func(t *testing.T) {
							m, err := c.Run(t.Context(), p, few(300))
							if verify && posters < p.Connections {
								if err == nil {
									t.Error("was measured")
								}
								return
							}
							if err != nil {
								t.Fatal(err)
							}
							if verify && m.Verified < 300*1001 {
								t.Errorf("%d bytes were verified", m.Verified)
							}
						})
					}
				}
			}
		}
	}
	p := plan(LevelRuntime, "tcp", TestSend, ModeLatency, WaitEvent, 8)
	p.SharedReceives = true
	if _, err := c.Run(t.Context(), p, few(10)); err == nil {
		t.Error("shared receives of endpoints were measured")
	}
}

// Everything that can be asked for is measured, or refused by name.
func TestEveryCombination(t *testing.T) {
	_, c := pair(t)
	for _, transport := range append(local(t), verbena.TransportTCP) {
		for _, level := range levels {
			for _, test := range tests {
				for _, mode := range modes {
					for _, wait := range waitsOfTests() {
						p := plan(level, transport, test, mode, wait, 1001)
						t.Run(strings.Join([]string{transport, level, test, mode, wait}, "/"), func(t *testing.T) {
							m, err := c.Run(t.Context(), p, few(60))
							switch {
							case level == LevelVerbs && transport == verbena.TransportTCP, level == LevelRuntime && test != TestSend && test != TestCall && test != TestStream,
								level == LevelRPC && test != TestCall, test == TestCall && (level == LevelVerbs || mode != ModeLatency),
								test == TestStream && (level == LevelVerbs || mode == ModeLatency):
								if err == nil || m != nil {
									t.Error("was measured")
								}
								return
							case errors.Is(err, rdma.ErrUnsupported) && transport == "iwarp" && test == TestAtomic:
								return
							case err != nil:
								t.Fatal(err)
							}
							if m.Iterations < 60 || m.Took <= 0 || m.CPU <= 0 {
								t.Errorf("%+v", m)
							}
							row := m.Row()
							if row.P50 <= 0 || row.P50 > row.P99 || row.P99 > row.P999 || row.P999 > row.P9999 || row.OpsPerS <= 0 || row.BytesPerS < row.OpsPerS {
								t.Errorf("%+v", row)
							}
						})
					}
				}
			}
		}
	}
}

// What warms up is the messages before, fewer if they are long, or the first half.
func TestSplit(t *testing.T) {
	const second = time.Second
	for _, test := range []struct {
		amount             Amount
		size, recorders    int
		first, again, rest Amount
	}{
		{Amount{Duration: second, Warmup: 1000}, 8, 1, Amount{Iterations: 1000}, Amount{Iterations: 64}, Amount{Duration: second, Warmup: 1000}},
		{Amount{Duration: second, Warmup: 1000}, 1 << 20, 4, Amount{Iterations: 256}, Amount{Iterations: 256}, Amount{Duration: second, Warmup: 1000}},
		{Amount{Duration: second, Warmup: 1000}, 1 << 30, 1, Amount{Iterations: 4}, Amount{Iterations: 4}, Amount{Duration: second, Warmup: 1000}},
		{Amount{Duration: second}, 8, 1, Amount{}, Amount{}, Amount{Duration: second}},
		{Amount{Iterations: 20_000, Half: true, Duration: second, Warmup: 3}, 64 << 10, 1, Amount{Iterations: 9936, Half: true, Warmup: 3},
			Amount{Iterations: 64, Half: true, Warmup: 3}, Amount{Iterations: 10_000, Half: true, Duration: second, Warmup: 3}},
		{Amount{Iterations: 1, Half: true, Duration: second}, 8, 1, Amount{Half: true}, Amount{Half: true}, Amount{Iterations: 1, Half: true, Duration: second}},
		{Amount{Half: true, Duration: 20 * second, Pause: 1}, 4 << 20, 1, Amount{Half: true, Duration: 9500 * time.Millisecond, Pause: 1},
			Amount{Half: true, Duration: 500 * time.Millisecond, Pause: 1}, Amount{Half: true, Duration: 10 * second, Pause: 1}},
	} {
		if first, again, rest := test.amount.split(test.size, test.recorders); first != test.first || again != test.again || rest != test.rest {
			t.Errorf("%+v of %d bytes: %+v, %+v, %+v", test.amount, test.size, first, again, rest)
		}
	}
}

// The half that warms up does not count.
func TestFirstHalfWarmsUp(t *testing.T) {
	_, c := pair(t)
	p := plan(LevelRuntime, verbena.TransportTCP, TestCall, ModeLatency, WaitAdaptive, 100)
	m, err := c.Run(t.Context(), p, Amount{Iterations: 400, Half: true})
	if err != nil || m.Iterations != 200 {
		t.Errorf("%+v, %v", m, err)
	}
	m, err = c.Run(t.Context(), p, Amount{Duration: 100 * time.Millisecond, Half: true})
	if err != nil || m.Iterations == 0 || m.Took < 50*time.Millisecond {
		t.Errorf("%+v, %v", m, err)
	}
}

// Callers may be more than endpoints. A row tells the whole of a call and its answer.
func TestManyCallers(t *testing.T) {
	_, c := pair(t)
	for _, transport := range append(local(t), verbena.TransportTCP) {
		for _, level := range []string{LevelRuntime, LevelRPC} {
			p := plan(level, transport, TestCall, ModeLatency, WaitAdaptive, 1<<10)
			p.Connections, p.Posters = 2, 5
			amount := few(50)
			amount.Pause = time.Microsecond
			m, err := c.Run(t.Context(), p, amount)
			if err != nil {
				t.Fatalf("%s, %s: %v", level, transport, err)
			}
			if row := m.Row(); m.Iterations < 50 || row.RoundP50 != 2*row.P50 || row.RoundP99 < row.RoundP50 {
				t.Errorf("%s, %s: %+v", level, transport, row)
			}
		}
	}
}

func TestManyConnectionsAndPosters(t *testing.T) {
	_, c := pair(t)
	for _, transport := range local(t) {
		for _, level := range []string{LevelVerbs, LevelRuntime} {
			for _, n := range [][2]int{{20, 1}, {20, 3}, {3, 3}, {2, 7}, {1, 4}} {
				for _, mode := range modes {
					if mode == ModeLatency && n[1] > n[0] {
						continue
					}
					for _, wait := range waitsOfTests()[1:] {
						t.Run(fmt.Sprintf("%s/%s/%d-%d/%s/%s", transport, level, n[0], n[1], mode, wait), func(t *testing.T) {
							p := plan(level, transport, TestSend, mode, wait, 64)
							p.Connections, p.Posters = n[0], n[1]
							m, err := c.Run(t.Context(), p, few(700))
							if err != nil {
								t.Fatal(err)
							}
							if m.Iterations < 690 || m.Iterations > 1000 {
								t.Errorf("%d messages", m.Iterations)
							}
							if (level == LevelVerbs || transport != verbena.TransportTCP) && m.Registered == 0 {
								t.Error("no registered memory is told")
							}
						})
					}
				}
			}
		}
	}
}

func TestVerifyTakesEveryByte(t *testing.T) {
	_, c := pair(t)
	for _, transport := range append(local(t), verbena.TransportTCP) {
		for _, level := range []string{LevelVerbs, LevelRuntime} {
			for _, test := range tests {
				if level == LevelRuntime && test != TestSend || level == LevelVerbs && transport == verbena.TransportTCP || test == TestAtomic && transport != "shm" || test == TestCall || test == TestStream {
					continue
				}
				for _, mode := range modes {
					for _, size := range []int{1, 7, 4099, 100_000} {
						t.Run(fmt.Sprintf("%s/%s/%s/%s/%d", transport, level, test, mode, size), func(t *testing.T) {
							p := plan(level, transport, test, mode, WaitAdaptive, size)
							p.Verify, p.Connections, p.Posters = true, 3, 2
							m, err := c.Run(t.Context(), p, few(30))
							if err != nil {
								t.Fatal(err)
							}
							least := m.Iterations * int64(m.Plan.Size)
							if mode == ModeLatency && (test == TestSend || test == TestWrite) {
								least *= 2 // there and back
							}
							if m.Verified < least {
								t.Errorf("%d bytes verified of at least %d", m.Verified, least)
							}
						})
					}
				}
			}
		}
	}
}

// One bit in one byte of one message is found, and told.
func TestVerifyFindsCorruption(t *testing.T) {
	for _, transport := range append(local(t), verbena.TransportTCP) {
		for _, level := range []string{LevelVerbs, LevelRuntime} {
			for _, test := range []string{TestSend, TestWrite} {
				if level == LevelRuntime && test != TestSend || level == LevelVerbs && transport == verbena.TransportTCP {
					continue
				}
				for _, mode := range []string{ModeLatency, ModeBandwidth} {
					t.Run(strings.Join([]string{transport, level, test, mode}, "/"), func(t *testing.T) {
						_, c := pair(t)
						const message, offset = 33, 5002
						c.corrupt = func(m int64, payload []byte) {
							if m == message {
								payload[offset] ^= 0x10
							}
						}
						p := plan(level, transport, test, mode, WaitSpin, 5003)
						p.Verify = true
						_, err := c.Run(t.Context(), p, few(100))
						want := fmt.Sprintf("CORRUPT: connection 1, message %d: byte %d", message, offset)
						if err == nil || !strings.Contains(err.Error(), want) {
							t.Errorf("%v, want %q in it", err, want)
						}
					})
				}
			}
		}
	}
}

func TestPatternsDependOnEverything(t *testing.T) {
	base := make([]byte, 200)
	fill(base, 3, 7, asking)
	if err := check(base, 3, 7, asking); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"connection": check(base, 4, 7, asking), "message": check(base, 3, 8, asking), "direction": check(base, 3, 7, answering),
	} {
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || corrupt.Offset > 3 {
			t.Errorf("another %s: %v", name, err)
		}
	}
	for i := range base {
		changed := append([]byte(nil), base...)
		changed[i] ^= 1
		var corrupt *CorruptError
		if err := check(changed, 3, 7, asking); !errors.As(err, &corrupt) || corrupt.Offset != i {
			t.Errorf("byte %d: %v", i, err)
		}
	}
	// Shifted by a word, as a message that landed in the wrong place.
	if check(base[8:], 3, 7, asking) == nil {
		t.Error("a shifted message passes")
	}
}

// A loop that waits ends soon when its context does, whatever it waits for.
func TestCancel(t *testing.T) {
	const shared = LevelVerbs + " with shared receives"
	for _, transport := range append(local(t), verbena.TransportTCP) {
		for _, mode := range []string{ModeLatency, ModeBandwidth} {
			for _, wait := range waits {
				for _, kind := range []string{shared, LevelVerbs, LevelRuntime} {
					level, _, _ := strings.Cut(kind, " ")
					if level == LevelVerbs && transport == verbena.TransportTCP {
						continue
					}
					t.Run(strings.Join([]string{transport, mode, wait, kind}, "/"), func(t *testing.T) {
						_, c := pair(t)
						reason := errors.New("enough of it")
						ctx, cancel := context.WithCancelCause(t.Context())
						seen := 0
						p := plan(level, transport, TestSend, mode, wait, 100)
						p.Verify, p.SharedReceives = true, kind == shared
						c.corrupt = func(int64, []byte) {
							if seen++; seen == 100 {
								cancel(reason)
							}
						}
						if _, err := c.Run(ctx, p, Amount{Duration: time.Hour}); !errors.Is(err, reason) {
							t.Error(err)
						}
						c.corrupt = nil
						if _, err := c.Run(t.Context(), p, few(20)); err != nil {
							t.Error("the next measurement:", err)
						}
					})
				}
			}
		}
	}
}

// What stops a loop between two rounds does not make it a measurement.
func TestStoppedBetweenRounds(t *testing.T) {
	s := &side{plan: &Plan{}}
	s.lanes = []*lane{{side: s}}
	s.stop(errStopped)
	for _, amount := range []Amount{few(20), {Duration: time.Hour}} {
		if err := s.rounds([]*recorder{newRecorder()}, amount); !errors.Is(err, errStopped) {
			t.Errorf("%+v: %v", amount, err)
		}
	}
}

func TestServerThatEndsIsTold(t *testing.T) {
	for _, transport := range local(t) {
		for _, wait := range waits {
			for _, shared := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/shared=%t", transport, wait, shared), func(t *testing.T) {
					s, c := pair(t)
					seen := 0
					closed := make(chan error, 1)
					c.corrupt = func(int64, []byte) {
						if seen++; seen == 100 {
							go func() { closed <- s.Close() }()
						}
					}
					p := plan(LevelVerbs, transport, TestSend, ModeLatency, wait, 100)
					p.Verify, p.SharedReceives = true, shared
					if _, err := c.Run(t.Context(), p, Amount{Duration: time.Hour}); err == nil {
						t.Error("no error")
					}
					if err := <-closed; err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// What one message costs does not include an allocation.
func TestLoopsAllocateNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	_, c := pair(t)
	mallocs := func(p Plan, n int) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := c.Run(t.Context(), p, few(n)); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return after.Mallocs - before.Mallocs
	}
	for _, transport := range local(t) {
		for _, test := range []string{TestSend, TestWrite, TestRead} {
			for _, mode := range modes {
				t.Run(strings.Join([]string{transport, test, mode}, "/"), func(t *testing.T) {
					p := plan(LevelVerbs, transport, test, mode, WaitEvent, 64)
					const more = 1000
					// Pools and goroutines of a provider may need something once, and what
					// ends late of a run before counts in the next.
					var extra int64
					for range 4 {
						if extra = -int64(mallocs(p, 100)) + int64(mallocs(p, 100+more)); extra <= more/20 {
							return
						}
					}
					t.Errorf("%d allocations for %d messages more", extra, more)
				})
			}
		}
	}
}

func TestPlanThatTheServerCannotCarryOutIsExplained(t *testing.T) {
	_, c := pair(t)
	for _, test := range []struct {
		change func(*Plan)
		want   string
	}{
		{func(p *Plan) { p.Transport = "quantum" }, "no transport"},
		{func(p *Plan) { p.Transport = "tcp" }, "--level runtime"},
		{func(p *Plan) { p.Size = 0 }, "size 0"},
		{func(p *Plan) { p.Size = 2 << 30 }, "size"},
		{func(p *Plan) { p.Posters = 2 }, "connection of its own"},
		{func(p *Plan) { p.Test = "juggle" }, "send, write, read, atomic"},
		{func(p *Plan) { p.Level, p.Test = LevelRuntime, TestRead }, "endpoints carry messages"},
		{func(p *Plan) { p.Level = LevelRPC }, "the test is call"},
		{func(p *Plan) { p.Level, p.Test, p.Size = LevelRPC, TestCall, 65<<20 }, "at most 64 MiB"},
		{func(p *Plan) { p.Size, p.Connections = 512<<20, 100 }, "fewer connections"},
	} {
		p := plan(LevelVerbs, local(t)[0], TestSend, ModeLatency, WaitSpin, 8)
		test.change(&p)
		if _, err := c.Run(t.Context(), p, few(1)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q in it", err, test.want)
		}
	}
}

// A client of another make may fill in what this one never would.
func TestForeignPlan(t *testing.T) {
	p := plan(LevelVerbs, verbena.TransportAuto, TestSend, ModeLatency, WaitEvent, 8)
	p.resolve(limits{})
	if err := p.check(); err != nil {
		t.Fatal(err)
	}
	p.Window = 1000
	if err := p.check(); err == nil || !strings.Contains(err.Error(), "ping-pong") {
		t.Errorf("%v", err)
	}
}

// rowKeys are the keys of a row, in their order.
func rowKeys(t *testing.T, row string) string {
	t.Helper()
	var keys []string
	d := json.NewDecoder(strings.NewReader(row))
	for depth := 0; ; {
		token, err := d.Token()
		if err == io.EOF {
			return strings.Join(keys, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		if delim, ok := token.(json.Delim); ok {
			if depth++; delim == '}' {
				depth = 0
			}
			continue
		}
		keys = append(keys, token.(string))
		if _, err := d.Token(); err != nil {
			t.Fatal(err)
		}
	}
}

// The keys of a row are what other programs read.
func TestRowKeys(t *testing.T) {
	_, c := pair(t)
	m, err := c.Run(t.Context(), plan(LevelVerbs, verbena.TransportAuto, TestSend, ModeLatency, WaitSpin, 8), few(100))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := m.Row().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	const want = "level transport test mode wait size iterations p50_ns p99_ns p999_ns p9999_ns ops_per_s bytes_per_s cpu_s"
	if got := rowKeys(t, b.String()); got != want {
		t.Errorf("keys %s\nwant %s", got, want)
	}
	if strings.Count(b.String(), "\n") != 1 {
		t.Errorf("%q is not one line", b.String())
	}

	calls, err := c.Run(t.Context(), plan(LevelRuntime, verbena.TransportAuto, TestCall, ModeLatency, WaitSpin, 8), few(100))
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if err := calls.Row().WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if got, want := rowKeys(t, b.String()), strings.Replace(want, "p9999_ns", "p9999_ns rtt_p50_ns rtt_p99_ns", 1); got != want {
		t.Errorf("keys of calls %s\nwant %s", got, want)
	}

	b.Reset()
	if err := m.Row().WriteDetails(&b); err != nil {
		t.Fatal(err)
	}
	var details map[string]any
	if err := json.Unmarshal([]byte(b.String()), &details); err != nil {
		t.Fatal(err)
	}
	for _, key := range append(strings.Fields(want), "connections", "registered_bytes", "resident_bytes") {
		if _, ok := details[key]; !ok {
			t.Errorf("--details without %s", key)
		}
	}
}

func TestTableLinesUp(t *testing.T) {
	_, c := pair(t)
	var b strings.Builder
	table := NewTable(&b, true, true, true)
	for _, size := range []int{1, 1000, 1 << 20} {
		m, err := c.Run(t.Context(), plan(LevelVerbs, verbena.TransportAuto, TestSend, ModeRate, WaitSpin, size), few(100))
		if err != nil {
			t.Fatal(err)
		}
		if err := table.Add(m.Row()); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "p99.99") {
		t.Fatalf("%q", lines)
	}
	for _, l := range lines {
		if len(l) != len(lines[0]) {
			t.Errorf("%d wide, %d the head:\n%s", len(l), len(lines[0]), b.String())
		}
	}
}

func TestPlotIsXML(t *testing.T) {
	_, c := pair(t)
	for _, mode := range modes {
		var rows []Row
		for _, transport := range local(t) {
			for _, size := range []int{8, 64, 512} {
				m, err := c.Run(t.Context(), plan(LevelVerbs, transport, TestSend, mode, WaitSpin, size), few(50))
				if err != nil {
					t.Fatal(err)
				}
				rows = append(rows, m.Row())
			}
		}
		var b strings.Builder
		if err := Plot(&b, rows); err != nil {
			t.Fatal(err)
		}
		lines := 0
		for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
				lines++
			}
		}
		if lines != len(local(t)) {
			t.Errorf("mode %s: %d lines", mode, lines)
		}
	}
	if err := Plot(io.Discard, nil); err == nil {
		t.Error("nothing was plotted")
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int{"1": 1, "8": 8, "1K": 1024, "1k": 1024, "4KiB": 4096, "64MiB": 64 << 20, "1G": 1 << 30, "3MB": 3 << 20} {
		if n, err := ParseSize(text); err != nil || n != want {
			t.Errorf("%s: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "K", "1.5K", "2G", "8X", "9999999999999999999", "1KK"} {
		if n, err := ParseSize(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
	for _, n := range AllSizes() {
		if back, err := ParseSize(FormatSize(n)); err != nil || back != n {
			t.Errorf("%d: %s: %d, %v", n, FormatSize(n), back, err)
		}
	}
	if all := AllSizes(); all[0] != 1 || all[len(all)-1] != 64<<20 || len(all) != 27 {
		t.Error(all)
	}
}

func TestRecorder(t *testing.T) {
	r := newRecorder()
	r.start()
	// As many as make it flush, with known times.
	const n = 5000
	for i := range n {
		r.deltas[r.kept] = delta{ticks: uint64(float64(1000+i) / r.tick * 2), share: 2}
		if r.kept++; r.kept == len(r.deltas) {
			r.flush()
		}
	}
	r.flush()
	if got := r.histogram.TotalCount(); got != n {
		t.Errorf("%d recorded", got)
	}
	for _, q := range []struct{ q, want float64 }{{50, 3500}, {99, 5950}, {99.99, 6000}} {
		if got := percentile(r.histogram, q.q); got < q.want*0.995 || got > q.want*1.005 {
			t.Errorf("percentile %v is %v, want %v", q.q, got, q.want)
		}
	}
	// Real time runs as the clock does.
	before := time.Now()
	r.start()
	began := time.Now()
	for time.Since(began) < 5*time.Millisecond {
		r.mark(1)
	}
	least := time.Since(began)
	r.mark(1)
	if e, most := r.elapsed(), time.Since(before); e < least/2 || e > most*2 {
		t.Errorf("%s on the recorder, %s to %s on the clock", e, least, most)
	}
}

// Clients that speak as none does are refused, and harm nobody else.
func TestHostileClients(t *testing.T) {
	s, c := pair(t)
	good := plan(LevelVerbs, local(t)[0], TestSend, ModeLatency, WaitSpin, 8)
	good.resolve(limits{depth: 1024, inline: 64, notReady: true, polled: true})
	body, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]struct {
		kind uint32
		body []byte
	}{
		"garbage":       {kindPlan, []byte("\x00\xff{{{")},
		"empty":         {kindPlan, nil},
		"unknown field": {kindPlan, []byte(strings.Replace(string(body), "{", `{"sudo":true,`, 1))},
		"two plans":     {kindPlan, append(append([]byte(nil), body...), body...)},
		"huge size":     {kindPlan, []byte(strings.Replace(string(body), `"size":8`, `"size":1099511627776`, 1))},
		"negative":      {kindPlan, []byte(strings.Replace(string(body), `"connections":1`, `"connections":-1`, 1))},
		"many":          {kindPlan, []byte(strings.Replace(string(body), `"connections":1`, `"connections":1000000`, 1))},
		"buffers":       {kindPlan, []byte(strings.Replace(string(body), `"buffers":4`, `"buffers":400000`, 1))},
		"long":          {kindPlan, append(body, make([]byte, maxControl)...)},
		"wrong kind":    {kindStop, []byte("{}")},
		"unknown kind":  {99, body},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			e, err := c.Runtime.Dial(ctx, c.Server, Service, verbena.DialConfig{Transport: verbena.TransportTCP})
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if err := e.Send(ctx, m.kind, m.body); err != nil {
				t.Fatal(err)
			}
			_, err = control{e}.receive(ctx, kindOffer)
			var refused *RefusedError
			if !errors.As(err, &refused) {
				t.Error(err)
			}
		})
	}
	for name, head := range map[string]string{
		"preface of another": "GET / HTTP/1.1\r\nHost: x\r\n\r\n                ",
		"unknown token":      preface + strings.Repeat("x", tokenSize),
		"unknown service":    "",
	} {
		t.Run(name, func(t *testing.T) {
			if head == "" {
				_, err := c.Runtime.Dial(t.Context(), c.Server, dataService(make([]byte, tokenSize)), verbena.DialConfig{})
				var refused *verbena.RefusedError
				if !errors.As(err, &refused) {
					t.Error(err)
				}
				return
			}
			conn, err := net.Dial("tcp", s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, head); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if n, err := conn.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
	}
	t.Run("half a hello", func(t *testing.T) {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte{0x89, 'V', 'R', 'B'}); err != nil {
			t.Fatal(err)
		}
		// Nobody waits for the rest of it.
		if _, err := c.Run(t.Context(), plan(LevelRuntime, verbena.TransportTCP, TestSend, ModeLatency, WaitSpin, 8), few(5)); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Run(t.Context(), plan(LevelVerbs, "", TestSend, ModeLatency, WaitSpin, 8), few(5)); err != nil {
		t.Error("after all that:", err)
	}
}

func FuzzDecodePlan(f *testing.F) {
	p := plan(LevelVerbs, "shm", TestWrite, ModeBandwidth, WaitEvent, 4096)
	p.resolve(limits{depth: 512, inline: 64, notReady: true, polled: true})
	body, err := json.Marshal(p)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"level":"verbs","transport":"shm","test":"send","mode":"lat","wait":"spin","size":9223372036854775807}`))
	f.Add([]byte(`[1,2,3]`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, body []byte) {
		p, err := decodePlan(body)
		if err != nil {
			return
		}
		// What is accepted can be laid out within what is lent, and means the same
		// when it is sent on.
		if n := p.memory(); n <= 0 || n > maxMemory {
			t.Errorf("%d bytes for %+v", n, p)
		}
		l := newLayout(p)
		if l.stride < p.Size || l.target+l.targets*l.stride > l.connection || p.lanes() < 1 || p.sharers() < 1 {
			t.Errorf("layout %+v of %+v", l, p)
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := decodePlan(again)
		if err != nil || *q != *p {
			t.Errorf("%+v became %+v, %v", p, q, err)
		}
	})
}

func FuzzDecodeOffer(f *testing.F) {
	body, err := json.Marshal(offer{Address: "@x", Token: make([]byte, tokenSize)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(body)
	f.Add([]byte(`{"token":""}`))
	f.Add([]byte(`{"token":"AAAA"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if o, err := decodeOffer(body); err == nil && (len(o.Token) != tokenSize || len(o.Address) > 256) {
			t.Errorf("%+v", o)
		}
		var r result
		var m memory
		_, _ = decode(body, &r), decode(body, &m) // must not panic
	})
}

// What the server lends is bounded over all sessions, and comes back.
func TestServerLendsNoMoreThanItHas(t *testing.T) {
	s, c := pair(t)
	if err := s.lend(maxMemory); err != nil {
		t.Fatal(err)
	}
	p := plan(LevelVerbs, local(t)[0], TestSend, ModeLatency, WaitEvent, 8)
	_, err := c.Run(t.Context(), p, few(1))
	var refused *RefusedError
	if !errors.As(err, &refused) || !strings.Contains(refused.Reason, "try again later") {
		t.Error(err)
	}
	s.giveBack(maxMemory)
	for range 3 {
		if _, err := c.Run(t.Context(), p, few(1)); err != nil {
			t.Fatal(err)
		}
	}
	// The session ends after the client has its result.
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		s.mu.Lock()
		lent := s.lent
		s.mu.Unlock()
		if lent == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes are still lent", lent)
		}
	}
}
