package verbena_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

const (
	methodGet     = 1
	methodCompact = 2
)

// A table is what the server of docs/calls.md has.
type table map[string]string

func (t table) Get(key []byte) []byte              { return []byte(t[string(key)]) }
func (t table) Compact(ctx context.Context) []byte { return fmt.Append(nil, len(t), " keys") }

// An RDMA path under a server's own port. The server of old clients, here of HTTP, keeps
// the port.
func ExampleMux_Serve() {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	table := table{"answer": "42"}
	old := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = w.Write(table.Get([]byte(q.URL.Path[1:])))
	})}
	defer old.Close()
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, tcp, old, table) }()

	if err := ask(ctx, tcp.Addr().String(), []byte("answer")); err != nil {
		panic(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + tcp.Addr().String() + "/answer")
	if err != nil {
		panic(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	fmt.Printf("an old client: %s, %v\n", body, err)
	stop()
	fmt.Println("the server has ended by its context:", errors.Is(<-served, context.Canceled))
	// Output:
	// 42
	// an old client: 42, <nil>
	// the server has ended by its context: true
}

// serve is the server of docs/calls.md, as it stands there.
func serve(ctx context.Context, tcp net.Listener, old *http.Server, table table) error {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		return err
	}
	defer rt.Close()
	ln, err := rt.NewListener(tcp, verbena.ListenConfig{Services: []string{"kv/1"}})
	if err != nil {
		return err
	}
	go old.Serve(ln.Legacy()) // everybody else, bytes untouched
	mux := verbena.NewMux(verbena.MuxConfig{})
	mux.Short(methodGet, func(q verbena.Request) { q.Reply(table.Get(q.Payload())) })        // microseconds, never waits
	mux.Long(methodCompact, func(q verbena.Request) { q.Reply(table.Compact(q.Context())) }) // as long as it takes
	for {
		e, err := ln.Accept(ctx)
		if err != nil {
			return err
		}
		go mux.Serve(e)
	}
}

// ask is the client of docs/calls.md, as it stands there.
func ask(ctx context.Context, address string, key []byte) error {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		return err
	}
	defer rt.Close()
	e, err := rt.Dial(ctx, address, "kv/1", verbena.DialConfig{})
	if err != nil {
		return err
	}
	c, err := verbena.NewCaller(e, nil) // nil: it serves nothing itself
	if err != nil {
		return err
	}
	defer c.Close()
	m, err := c.Call(ctx, methodGet, key)
	if err != nil {
		return err
	}
	defer m.Release()
	fmt.Printf("%s\n", m.Bytes())
	return nil
}

// The page that teaches has the code that runs here, and its server has twenty lines.
func TestTwentyLines(t *testing.T) {
	page, err := os.ReadFile("docs/calls.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_server_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(page), "in twenty lines\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```")
	if !found || len(blocks) != 5 {
		t.Fatalf("%d pieces of code in the section, want 2", len(blocks)/2)
	}
	for i, block := range []string{blocks[1], blocks[3]} {
		block = strings.TrimPrefix(block, "go\n")
		if lines := strings.Count(block, "\n"); i == 0 && lines != 20 {
			t.Errorf("%d lines", lines)
		}
		var indented bytes.Buffer
		for line := range strings.Lines(block) {
			indented.WriteString("\t" + line)
		}
		if !bytes.Contains(source, indented.Bytes()) {
			t.Errorf("this does not run in example_server_test.go:\n%s", block)
		}
	}
}
