package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
	"github.com/verbena-data/verbena/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve has a handler behind HTTP, and returns what asks it.
func serve(t *testing.T, h http.Handler) func(method, path string) (*http.Response, string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return func(method, path string) (*http.Response, string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := s.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer, string(body)
	}
}

// told is the JSON of a page, as far as the tests look at it.
type told struct {
	Process struct {
		Command, Version, Host string
		PID                    int
		Started                time.Time
		Uptime                 float64 `json:"uptime_seconds"`
	}
	Runtime struct {
		Closed    bool
		Note      string
		Devices   []row
		Traffic   []row
		Endpoints []row
		Memory    []row
	}
}

type row map[string]any

// text is a string of a row, empty if there is none.
func (r row) text(key string) string {
	s, _ := r[key].(string)
	return s
}

// number is a number of a row, 0 if there is none.
func (r row) number(key string) float64 {
	n, _ := r[key].(float64)
	return n
}

func parse(t *testing.T, body string) (all told) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	return all
}

// find returns the row with a value.
func find(t *testing.T, rows []row, key string, value any) row {
	t.Helper()
	for _, r := range rows {
		if r[key] == value {
			return r
		}
	}
	t.Fatalf("no %s is %v in %v", key, value, rows)
	return nil
}

func newRuntime(t *testing.T, p ...rdma.Provider) *verbena.Runtime {
	t.Helper()
	r, err := verbena.New(verbena.Config{Providers: p, HelloTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// TestRuntime has two runtimes send each other messages, and put and get, and the page of one
// tells so, while it is open and when it is closed.
func TestRuntime(t *testing.T) {
	network := fake.NewNetwork()
	client := newRuntime(t, fake.NewProvider("fake", network.NewDevice(fake.InfiniBand("a"))), fake.NewProvider("nothing"))
	server := newRuntime(t, fake.NewProvider("fake", network.NewDevice(fake.InfiniBand("b"))))
	l, err := server.Listen(t.Context(), "127.0.0.1:0", verbena.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := client.Dial(t.Context(), l.Addr().String(), "records/1", verbena.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := a.Send(t.Context(), 1, make([]byte, 700)); err != nil {
			t.Fatal(err)
		}
		m, err := b.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		m.Release()
	}
	x, err := b.Expose(t.Context(), verbena.ExposeConfig{Size: 4096, Rights: verbena.MayWrite | verbena.MayRead})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Put(t.Context(), x.Token(), 0, make([]byte, 1500)), a.Get(t.Context(), x.Token(), 0, make([]byte, 200)), a.Get(t.Context(), x.Token(), 0, make([]byte, 300))); err != nil {
		t.Fatal(err)
	}

	get := serve(t, New(Config{Command: "records", Version: "v1.2.3", Runtime: client}))
	_, body := get(http.MethodGet, "/status.json")
	all := parse(t, body)
	host, _ := os.Hostname()
	if p := all.Process; p.Command != "records" || p.Version != "v1.2.3" || p.Host != host || p.PID != os.Getpid() || p.Uptime <= 0 || time.Since(p.Started) < 0 {
		t.Errorf("%+v", p)
	}
	if d := find(t, all.Runtime.Devices, "transport", "fake"); d["device"] != "a" || d["usable"] != true || d["class"] != "infiniband" {
		t.Errorf("%v", d)
	}
	if d := find(t, all.Runtime.Devices, "transport", "nothing"); d["usable"] != false || !strings.Contains(d.text("why"), "without devices") {
		t.Errorf("%v", d)
	}
	carried := row{"sent_messages": 3.0, "sent_bytes": 2100.0, "received_messages": 0.0, "puts": 1.0, "gets": 2.0, "atomics": 0.0, "one_sided_bytes": 2000.0, "stalls": 0.0, "stalled_seconds": 0.0}
	traffic, endpoint := find(t, all.Runtime.Traffic, "transport", "fake"), find(t, all.Runtime.Endpoints, "service", "records/1")
	for key, want := range carried {
		if traffic[key] != want || endpoint[key] != want {
			t.Errorf("%s is %v, and of the endpoint %v, want %v", key, traffic[key], endpoint[key], want)
		}
	}
	s := a.Selection()
	if e := endpoint; e["peer"] != a.RemoteAddr().String() || e["transport"] != "fake" || e["device"] != "a" || e["why"] != s.Candidates[0].Reason || e["dialled"] != true || e.number("credits") < 1 || e["ended"] != nil {
		t.Errorf("%v", e)
	}
	if m := find(t, all.Runtime.Memory, "pool", "receive"); m.number("registered_bytes") < 1 {
		t.Errorf("%v", m)
	}

	answer, body := get(http.MethodGet, "/")
	if answer.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Error(answer.Header)
	}
	for _, want := range []string{
		`<title>records on `, `<dd><span>v1.2.3</span></dd>`, `<dd><span>records/1</span></dd>`, a.RemoteAddr().String(), s.Candidates[0].Reason,
		`<dt>Sent</dt><dd><span>3 <small>messages</small></span></dd>`, `<dt>Sent</dt><dd title="2,100 bytes"><span>2.05 KiB</span></dd>`,
		`<dt>Put and got</dt><dd title="2,000 bytes"><span>1.95 KiB</span></dd>`, `nothing`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is missing in\n%s", want, body)
		}
	}

	if err := errors.Join(x.Close(), a.Close(), client.Close()); err != nil {
		t.Fatal(err)
	}
	_, body = get(http.MethodGet, "/?json")
	if r := parse(t, body).Runtime; !r.Closed || !strings.Contains(r.Note, "no new endpoint") || len(r.Endpoints) != 0 || find(t, r.Traffic, "transport", "fake")["sent_bytes"] != 2100.0 {
		t.Errorf("%+v", r)
	}
	if _, body := get(http.MethodGet, "/"); !strings.Contains(body, `<p class="note">The runtime is closed`) || !strings.Contains(body, "No endpoint is open.") {
		t.Error(body)
	}
}

// TestHTTP asks for what there is and what there is not.
func TestHTTP(t *testing.T) {
	h := New(Config{})
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.Handle("/below/", http.StripPrefix("/below", h))
	get := serve(t, mux)
	nonce := regexp.MustCompile(`style-src 'nonce-([A-Z0-9]+)'`)
	for _, test := range []struct {
		method, path string
		status       int
		kind         string
	}{
		{http.MethodGet, "/", 200, "text/html; charset=utf-8"},
		{http.MethodHead, "/", 200, "text/html; charset=utf-8"},
		{http.MethodGet, "/below/", 200, "text/html; charset=utf-8"},
		{http.MethodGet, "/below/status.json", 200, "application/json"},
		{http.MethodGet, "/?json", 200, "application/json"},
		{http.MethodGet, "/status", 404, "text/plain; charset=utf-8"},
		{http.MethodGet, "/nothing?json", 404, "text/plain; charset=utf-8"},
		{http.MethodPost, "/", 405, "text/plain; charset=utf-8"},
		{http.MethodDelete, "/status.json", 405, "text/plain; charset=utf-8"},
	} {
		answer, body := get(test.method, test.path)
		header := answer.Header
		if answer.StatusCode != test.status || header.Get("Content-Type") != test.kind || (body == "") != (test.method == http.MethodHead) {
			t.Errorf("%s %s: %s, %v\n%s", test.method, test.path, answer.Status, header, body)
		}
		policy := header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; ") || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s: %v", test.method, test.path, header)
		}
		if (answer.StatusCode == http.StatusMethodNotAllowed) != (header.Get("Allow") == "GET, HEAD") {
			t.Errorf("%s %s: %v", test.method, test.path, header)
		}
		if found := nonce.FindStringSubmatch(policy); strings.HasPrefix(body, "<!DOCTYPE") && (found == nil || !strings.Contains(body, `<style nonce="`+found[1]+`">`)) {
			t.Errorf("the style is not what %q allows", policy)
		}
	}
	_, first := get(http.MethodGet, "/")
	_, still := get(http.MethodGet, "/?still")
	if again := `<meta http-equiv="refresh" content="5">`; !strings.Contains(first, again) || strings.Contains(still, again) || !strings.Contains(first, `href="?still"`) {
		t.Errorf("%s\n%s", first, still)
	}
	// Nothing is asked of others, and nothing runs.
	if wrong := regexp.MustCompile(`(?i)<script|src=|url\(|@import|https?://| on[a-z]+=|style="`).FindString(first); wrong != "" {
		t.Errorf("the page has %q", wrong)
	}
}

const (
	markup  = `<script>alert(1)</script>"'&`
	hostile = markup + "\u202e" // and what turns the text behind it
)

type fixed status.Section

func (s fixed) Status() status.Section { return status.Section(s) }

// TestHostile has names of peers, services and errors that are HTML. They come out as text.
func TestHostile(t *testing.T) {
	r := source{
		stats: func() verbena.Stats {
			return verbena.Stats{
				Memory:        verbena.MemoryStats{Pressure: "tight", Why: hostile},
				Unavailable:   map[string]error{hostile: errors.New(hostile)},
				Counters:      map[string]map[string]uint64{hostile: {hostile: 1}},
				EndpointPools: []verbena.EndpointPoolStats{{Name: hostile, Service: hostile}},
				Devices:       []verbena.DeviceStats{{Transport: hostile, Device: hostile, Gone: errors.New(hostile), Pools: []verbena.PoolStats{{Group: hostile, Name: hostile}}}},
			}
		},
		endpoints: func() []verbena.EndpointStats {
			return []verbena.EndpointStats{{Service: hostile, Remote: hostile, Group: hostile, Err: errors.New(hostile), Selection: verbena.Selection{
				Transport: hostile, Rule: hostile, OneSided: hostile, Candidates: []verbena.Candidate{{Transport: hostile, Reason: hostile}, {Transport: "tcp", Chosen: true, Reason: hostile}},
			}}}
		},
	}
	odd := fixed{Name: markup, Title: markup, Note: markup, Tables: []status.Table{
		{Name: "t", Title: markup, Columns: []status.Column{{Key: "k", Title: markup, Unit: markup}}, Rows: [][]any{{7}}}, {Name: "u", Empty: markup},
	}}
	get := serve(t, New(Config{Command: markup, Version: hostile, Sources: []status.Source{r, odd}}))
	_, body := get(http.MethodGet, "/")
	if strings.Contains(body, "<script") || strings.Contains(body, "\u202e") || strings.Contains(body, `"'&`) {
		t.Errorf("it is not escaped:\n%s", body)
	}
	if n := strings.Count(body, "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;"); n < 25 {
		t.Errorf("%d of them are there:\n%s", n, body)
	}
	_, body = get(http.MethodGet, "/status.json")
	if e := find(t, parse(t, body).Runtime.Endpoints, "service", hostile); strings.Contains(body, "<") || e["why"] != hostile+" (by rule "+hostile+")" || e["ended"] != hostile {
		t.Errorf("%v\n%s", e, body)
	}
}

// TestMemoryLimit has a limit, and none: what is then left of it is null, not 0.
func TestMemoryLimit(t *testing.T) {
	for _, test := range []struct {
		memory verbena.MemoryStats
		want   row
	}{
		{verbena.MemoryStats{Pressure: "calm"}, row{"memory_limit_bytes": nil, "memory_limit_of": nil, "memory_used_bytes": nil, "memory_room_bytes": nil}},
		{verbena.MemoryStats{Pressure: "critical", Limit: 9, LimitOf: "machine", Used: 9}, row{"memory_limit_bytes": 9.0, "memory_limit_of": "machine", "memory_used_bytes": 9.0, "memory_room_bytes": 0.0}},
	} {
		r := source{func() verbena.Stats { return verbena.Stats{Memory: test.memory} }, func() []verbena.EndpointStats { return nil }}
		_, body := serve(t, New(Config{Sources: []status.Source{r}}))(http.MethodGet, "/status.json")
		var all struct{ Runtime row }
		if err := json.Unmarshal([]byte(body), &all); err != nil {
			t.Fatal(err)
		}
		for key, want := range test.want {
			if got, there := all.Runtime[key]; !there || got != want {
				t.Errorf("%s is %v (%t), want %v", key, got, there, want)
			}
		}
	}
}

// TestManyRows has more rows than a browser is given.
func TestManyRows(t *testing.T) {
	many := status.Table{Name: "many", Title: "Many", Columns: []status.Column{{Key: "n", Title: "N"}}}
	for i := range mostRows + 23 {
		many.Rows = append(many.Rows, []any{fmt.Sprintf("row%d.", i)})
	}
	get := serve(t, New(Config{Sources: []status.Source{fixed{Name: "s", Tables: []status.Table{many}}}}))
	if _, body := get(http.MethodGet, "/"); strings.Count(body, "row") < mostRows || strings.Contains(body, "row100.") || !strings.Contains(body, "23 more rows") {
		t.Error(body)
	}
	if _, body := get(http.MethodGet, "/?json"); !strings.Contains(body, "row122.") {
		t.Error(body)
	}
}

// Two sources of one name would hide each other: the error is told.
func TestSameName(t *testing.T) {
	get := serve(t, New(Config{Sources: []status.Source{fixed{Name: "s"}, fixed{Name: "s"}}}))
	if answer, body := get(http.MethodGet, "/?json"); answer.StatusCode != http.StatusInternalServerError || !strings.Contains(body, `two sections "s"`) {
		t.Error(answer.Status, body)
	}
}
