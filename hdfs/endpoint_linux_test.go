package hdfs

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs/internal/cluster"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/internal/port"
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/shm"
)

func runtimeOf(t *testing.T, cfg verbena.Config) *verbena.Runtime {
	t.Helper()
	rt, err := verbena.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rt.Close(); err != nil {
			t.Error(err)
		}
	})
	return rt
}

func sharedMemoryOnly() []rdma.Provider { return []rdma.Provider{shm.New(shm.Config{})} }

// Who writes over shared memory may have as many packets offered as it takes for the next ones
// to be used in place, or more if it is told so. Where there is none nothing is said of it.
func TestOffersOfWriters(t *testing.T) {
	for _, test := range []struct {
		cfg  verbena.Config
		want int // 0: no row
	}{
		{verbena.Config{Providers: sharedMemoryOnly()}, offersOfWriters},
		{verbena.Config{Providers: sharedMemoryOnly(), Tuning: verbena.TuningTable{sharedMemory: {Chunks: offersOfWriters + 1}}}, 0},
		{verbena.Config{}, 0},
	} {
		table, err := nativeTable(runtimeOf(t, test.cfg), verbena.TransportAuto, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := table.Dial.Tuning[sharedMemory].Chunks; got != test.want || len(table.Dial.Tuning) > 1 {
			t.Errorf("%+v: writers have %+v", test.cfg.Tuning, table.Dial.Tuning)
		}
	}
}

// A DataNode's port receives packets as they lie in the memory of who dials.
func TestPacketsComeInPlace(t *testing.T) {
	const size, packets = 100 << 10, 8
	server, client := runtimeOf(t, verbena.Config{Providers: sharedMemoryOnly()}), runtimeOf(t, verbena.Config{Providers: sharedMemoryOnly()})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p, err := publish(ctx, server, "127.0.0.1:0", nil, native.Service)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	nobody := func(context.Context, *verbena.Endpoint) error { return nil }
	held := make(chan *verbena.Message, packets)
	p.Serve(port.Handlers{Connections: func(c net.Conn) { c.Close() }, Messages: map[string]func(context.Context, *verbena.Endpoint) error{cluster.Service: nobody, native.Service: func(ctx context.Context, ep *verbena.Endpoint) error {
		for {
			m, err := ep.Receive(ctx)
			if err != nil {
				return err
			}
			held <- m
		}
	}}})
	table, err := nativeTable(client, sharedMemory, nil)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := client.Dial(ctx, p.Addr(), native.Service, table.Dial)
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	inPlace := 0
	for i := range packets { // the first one of each region is read
		b, err := ep.Buffer(ctx, size)
		if err != nil {
			t.Fatal(err)
		}
		copy(b.Bytes(), bytes.Repeat([]byte{byte(i)}, size))
		b.Retain()
		if err := ep.SendBuffer(ctx, 1, nil, b); err != nil {
			t.Fatal(err)
		}
		m := <-held
		soon, stop := context.WithTimeout(ctx, 20*time.Millisecond)
		if err := ep.Settled(soon, b); errors.Is(err, context.DeadlineExceeded) {
			inPlace++
		} else if err != nil {
			t.Fatal(err)
		}
		stop()
		m.Release()
		if err := ep.Settled(ctx, b); err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	if inPlace == 0 {
		t.Error("all packets were copied")
	}
}
