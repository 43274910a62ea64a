package rdmatest_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/rdmatest"
	"github.com/verbena-data/verbena/rdma/rdmatest/fake"
)

// TestChild has the device of another process, and stops, continues and kills
// that process.
func TestChild(t *testing.T) {
	p, err := rdmatest.StartChild("fake")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if name := p.Device.Attributes().Name; name != "child" {
		t.Errorf("device %q, want the child's", name)
	}
	events := make(chan rdma.Event, 4)
	domain, err := p.Device.OpenDomain(rdma.DomainConfig{OnEvent: func(e rdma.Event) { events <- e }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := domain.NewCompletionQueue(0); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("errors lose what they are: %v", err)
	}
	cq, err := domain.NewCompletionQueue(4)
	if err != nil {
		t.Fatal(err)
	}
	p.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	waits := make(chan error, 1)
	go func() { waits <- cq.Wait(ctx) }()
	<-ctx.Done()
	select {
	case err := <-waits:
		t.Fatalf("a stopped process answers: %v", err)
	default:
	}
	p.Continue()
	if err := <-waits; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait over its deadline: %v", err)
	}
	config := rdma.QueuePairConfig{SendCompletions: cq, RecvCompletions: cq, SendDepth: 1, RecvDepth: 1}
	qp, err := domain.NewQueuePair(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := domain.NewQueuePair(rdma.QueuePairConfig{SendDepth: 1}); !errors.Is(err, rdma.ErrInvalid) {
		t.Errorf("queue pair without completion queues: %v", err)
	}
	p.Kill()
	<-qp.Done()
	if state := qp.State(); state != rdma.StateError {
		t.Errorf("queue pair of a dead process is %s", state)
	}
	if err := domain.Close(); err == nil {
		t.Error("Close in a dead process succeeds")
	}
}

func TestUnknownOpener(t *testing.T) {
	if p, err := rdmatest.StartChild("no such opener"); err == nil {
		p.Kill()
		t.Fatal("a child without an opener starts")
	}
}

// encoded is a call as the client writes it.
func encoded(calls ...any) []byte {
	var b bytes.Buffer
	encoder := gob.NewEncoder(&b)
	for _, c := range calls {
		if err := encoder.Encode(c); err != nil {
			panic(err)
		}
	}
	return b.Bytes()
}

// FuzzServe gives the server whatever may come from a broken client.
func FuzzServe(f *testing.F) {
	type call struct {
		Sequence, Object uint64
		Method           string
		Number           int
	}
	f.Add([]byte{})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(encoded(call{1, 0, "Device.Attributes", 0}))
	f.Add(encoded(call{1, 0, "Device.OpenDomain", 0}, call{2, 1, "Domain.Allocate", 64}, call{3, 2, "Region.read", 100}))
	f.Add(encoded(call{1, 0, "Device.OpenDomain", 0}, call{2, 1, "CompletionQueue.Poll", 1 << 40}))
	f.Fuzz(func(t *testing.T, input []byte) {
		c := fake.InfiniBand("fuzz")
		c.MaxRegion = 1 << 20
		device := fake.NewNetwork().NewDevice(c)
		rdmatest.ServeDevice(&once{bytes.NewReader(input)}, device)
	})
}

// once is a control connection that ends.
type once struct{ io.Reader }

func (*once) Write(b []byte) (int, error) { return len(b), nil }
func (*once) Close() error                { return nil }

// FuzzRemote gives the client whatever may come from a broken server.
func FuzzRemote(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
	f.Add(encoded(struct{ Sequence uint64 }{1}, struct{ Done uint64 }{7}))
	f.Fuzz(func(t *testing.T, input []byte) {
		here, there := net.Pipe()
		go io.Copy(io.Discard, there)
		go func() {
			there.Write(input)
			there.Close()
		}()
		if d, err := rdmatest.RemoteDevice(here); err == nil {
			domain, err := d.OpenDomain(rdma.DomainConfig{})
			if err == nil {
				domain.Close()
			}
			here.Close()
		}
	})
}
