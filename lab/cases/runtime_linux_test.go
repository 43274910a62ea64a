package cases

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/lab/internal/job"
	"github.com/verbena-data/verbena/lab/internal/world"
	"github.com/verbena-data/verbena/rdma"
)

// The runtime's endpoints over each driver: between the two hosts, eager
// messages and such as are read by the peer, in both directions.
func TestRuntime(t *testing.T) {
	driver := driver(t)
	ctx := bounded(t)
	runtime := func(iface string) *verbena.Runtime {
		rt, err := verbena.New(verbena.Config{
			Providers: []rdma.Provider{newProvider(role{Provider: "ibverbs", Device: world.LinkName(driver, iface)})},
			// An emulated machine on a busy host is slow.
			HelloTimeout: 30 * time.Second, ConnectTimeout: 30 * time.Second, Linger: 30 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := rt.Close(); err != nil {
				t.Errorf("close the runtime: %v", err)
			}
		})
		return rt
	}
	server, client := runtime(world.Interface1), runtime(world.Interface0)
	l, err := server.Listen(ctx, world.Address1+":0", verbena.ListenConfig{Services: []string{"echo/1"}})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- echo(ctx, l) }()
	e, err := client.Dial(ctx, l.Addr().String(), "echo/1", verbena.DialConfig{Transport: "ibverbs"})
	if err != nil {
		t.Fatal(err)
	}
	if s := e.Selection(); s.Transport != "ibverbs" || s.Device != world.LinkName(driver, world.Interface0) {
		t.Errorf("the endpoint is over %s, device %s:\n%v", s.Transport, s.Device, s)
	}
	for _, size := range []int{0, 1, 100, 4096, 60_000, 1 << 20, 5 << 20} {
		sent := make([]byte, size)
		if _, err := rand.Read(sent); err != nil {
			t.Fatal(err)
		}
		if err := e.Send(ctx, uint32(size), sent); err != nil {
			t.Fatalf("send %d bytes: %v", size, err)
		}
		m, err := e.Receive(ctx)
		if err != nil {
			t.Fatalf("receive %d bytes: %v", size, err)
		}
		if m.Tag != uint32(size) || !bytes.Equal(m.Bytes(), sent) {
			t.Errorf("%d bytes came back as others (%d, tag %d)", size, len(m.Bytes()), m.Tag)
		}
		m.Release()
	}
	if err := e.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("server: %v", err)
	}
	kernelIsSane(t)
}

// echo serves one endpoint until its peer closes it.
func echo(ctx context.Context, l *verbena.Listener) (err error) {
	e, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for {
		m, err := e.Receive(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		err = e.Send(ctx, m.Tag, m.Bytes())
		m.Release()
		if err != nil {
			return err
		}
	}
}

// The demonstration's path, small: a cluster in processes of its own stores and
// gives back files over the driver, and compares them. It creates few small files: an
// emulated machine takes a quarter of a second for each.
func TestDemo(t *testing.T) {
	driver(t)
	ctx := bounded(t)
	tree := t.TempDir()
	for i := range 5 {
		if err := os.WriteFile(filepath.Join(tree, strconv.Itoa(i)), bytes.Repeat([]byte{byte(i)}, 1000*i+1), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	demo := start(t, "", job.Files+"/verbena", "demo", "--quick", "--tree", tree, "--large-file", strconv.Itoa(80<<20),
		"--records", "100000", "--creates", "300", "--datanodes", "1", "--replication", "1", "--clients", "1", "--transports", "tcp,ibverbs")
	demo.succeeds(ctx)
	if !regexp.MustCompile(`(?m)^ +ibverbs +\d.* all equal$`).MatchString(demo.output()) {
		t.Errorf("the demonstration has no row of ibverbs, or its files differ:\n%s", demo.output())
	}
	if !regexp.MustCompile(`(?m)^ +ibverbs .* right$`).MatchString(demo.output()) {
		t.Errorf("the demonstration has no jobs over ibverbs, or they went wrong:\n%s", demo.output())
	}
	t.Logf("\n%s", demo.output())
	kernelIsSane(t)
}
