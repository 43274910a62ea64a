// Package page serves what a process tells of itself as a page for a browser and as JSON for
// programs: what runs, its runtime, and whatever else is given to it as a [status.Source]. A
// program mounts the handler where it likes; the command verbena has it beside its metrics.
//
// The page has no script and asks nobody for anything. Whoever can reach it reads all of it: it
// names the host and the peers, and nothing authenticates the reader.
package page

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/status"
)

// Config says what a page tells of.
type Config struct {
	// Command is what runs, for people. Default: the name of the program's file.
	Command string
	// Version of the program. Default: that of its main module.
	Version string
	// Runtime is told of unless it is nil. It may be closed meanwhile.
	Runtime *verbena.Runtime
	// Sources are told of behind it, in order.
	Sources []status.Source
}

// A Handler serves the page at "/", or where the path is empty, and the same as JSON at
// "/status.json" and for the query "json". It answers GET and HEAD. Its methods may be called
// concurrently.
type Handler struct {
	command, version, host string
	sources                []status.Source
}

// started is about when the process began.
var started = time.Now()

// New returns a handler. [http.StripPrefix] mounts it elsewhere than at "/"; the path ends with
// "/" there, since the page's links are relative.
func New(cfg Config) *Handler {
	h := &Handler{command: cfg.Command, version: cfg.Version}
	if h.command == "" {
		h.command = filepath.Base(os.Args[0])
	}
	if info, ok := debug.ReadBuildInfo(); h.version == "" && ok {
		h.version = info.Main.Version
	}
	var err error
	if h.host, err = os.Hostname(); err != nil {
		h.host = "unknown"
	}
	if cfg.Runtime != nil {
		h.sources = append(h.sources, source{cfg.Runtime.Stats, cfg.Runtime.Endpoints})
	}
	h.sources = append(h.sources, cfg.Sources...)
	return h
}

// sections are what there is to tell.
func (h *Handler) sections() []status.Section {
	all := []status.Section{h.process()}
	for _, s := range h.sources {
		all = append(all, s.Status())
	}
	return all
}

// process is what runs.
func (h *Handler) process() status.Section {
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	column := func(key, title, unit string) status.Column { return status.Column{Key: key, Title: title, Unit: unit} }
	return status.Section{Name: "process", Title: "Process", Facts: []status.Fact{
		{Column: column("command", "Command", ""), Value: h.command},
		{Column: column("version", "Version", ""), Value: h.version},
		{Column: column("host", "Host", ""), Value: h.host},
		{Column: column("pid", "Process ID", ""), Value: os.Getpid()},
		{Column: column("started", "Started", ""), Value: started.Round(0)},
		{Column: column("uptime_seconds", "Up for", ""), Value: time.Since(started)},
		{Column: column("platform", "Platform", ""), Value: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version()},
		{Column: column("processors", "Processors", "used"), Value: runtime.GOMAXPROCS(0)},
		{Column: column("goroutines", "Goroutines", "goroutines"), Value: runtime.NumGoroutine()},
		{Column: column("heap_bytes", "Go's heap", status.Bytes), Value: memory.HeapAlloc},
	}}
}

//go:embed page.html
var text string

// page is parsed when a browser asks first: most processes serve none, and each pays for what it keeps.
var page = sync.OnceValue(func() *template.Template { return template.Must(template.New("page").Parse(text)) })

// mostRows is how many rows of a table a browser is given. JSON has all.
const mostRows = 100

// view is what the template shows.
type view struct {
	Command, Host string
	Now           time.Time
	Sections      []status.Section
	Refresh       int // seconds; 0: the page stays
	Nonce         string
}

// Shown are the rows of a table that a browser is given.
func (view) Shown(t status.Table) [][]any { return t.Rows[:min(len(t.Rows), mostRows)] }

// Left is how many more there are.
func (view) Left(t status.Table) int { return max(len(t.Rows)-mostRows, 0) }

// mostColumns is how many columns fit side by side. A row of more is a block by itself.
const mostColumns = 9

// Wide tells whether a table has more than that.
func (view) Wide(t status.Table) bool { return len(t.Columns) > mostColumns }

// Cell is a value of a table.
func (view) Cell(c status.Column, v any) status.Fact { return status.Fact{Column: c, Value: v} }

// Some tells whether a value says anything.
func (view) Some(v any) bool {
	lines, ok := v.([]string)
	return v != nil && (!ok || len(lines) > 0)
}

// refresh is after how many seconds a browser asks again.
const refresh = 5

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	nonce := rand.Text()
	header := w.Header()
	header.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+nonce+"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cache-Control", "no-store")
	asJSON := r.URL.Path == "/status.json" || r.URL.Query().Has("json")
	switch {
	case r.URL.Path != "/" && r.URL.Path != "" && r.URL.Path != "/status.json":
		http.NotFound(w, r)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
		return
	}
	var b bytes.Buffer
	var err error
	if asJSON {
		header.Set("Content-Type", "application/json")
		err = h.json(&b)
	} else {
		header.Set("Content-Type", "text/html; charset=utf-8")
		v := view{Command: h.command, Host: h.host, Now: time.Now().Round(0), Sections: h.sections(), Refresh: refresh, Nonce: nonce}
		if r.URL.Query().Has("still") {
			v.Refresh = 0
		}
		err = page().Execute(&b, v)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(b.Bytes()) // who has gone reads nothing
}

// json writes all sections, by their names.
func (h *Handler) json(b *bytes.Buffer) error {
	all := map[string]status.Section{}
	for _, s := range h.sections() {
		if _, twice := all[s.Name]; twice {
			return fmt.Errorf("status: there are two sections %q", s.Name)
		}
		all[s.Name] = s
	}
	e := json.NewEncoder(b)
	e.SetIndent("", "  ")
	return e.Encode(all)
}
