package hdfs

import (
	"io"
	"os"
	"testing"

	client "github.com/colinmarc/hdfs/v2"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// BenchmarkStore has our client and colinmarc's write and read a file of 256 MiB over
// TCP, and shows this process's processor time for each GiB beside. With
// VERBENA_NAMENODE=HOST:PORT the servers are other processes, and that is the client's.
func BenchmarkStore(b *testing.B) {
	const size, piece = 256 << 20, 1 << 20
	address := os.Getenv("VERBENA_NAMENODE")
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		b.Fatal(err)
	}
	defer rt.Close()
	if address == "" {
		address = startSystem(b, 3, 3).NameNode.Addr()
	}
	own, err := NewClient(ClientConfig{NameNodes: []string{address}, User: superuser(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer own.Close()
	foreign, err := client.NewClient(client.ClientOptions{Addresses: []string{address}, User: superuser(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer foreign.Close()
	buf := randomBytes(piece)
	fill := func(w io.WriteCloser, err error) error {
		for n := 0; n < size && err == nil; n += piece {
			_, err = w.Write(buf)
		}
		if err != nil {
			return err
		}
		return w.Close()
	}
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"write/own", func() error {
			return fill(own.Create(b.Context(), "/bench-own", CreateOptions{Replace: true, BlockSize: 128 << 20, Replication: 3}))
		}},
		{"write/foreign", func() error {
			_ = foreign.Remove("/bench-foreign") // there may be none
			return fill(foreign.CreateFile("/bench-foreign", 3, 128<<20, 0o644))
		}},
		{"read/own", func() error {
			f, err := own.Open(b.Context(), "/bench-own")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteTo(io.Discard)
			return err
		}},
		{"read/foreign", func() error {
			f, err := foreign.Open("/bench-foreign")
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.CopyBuffer(io.Discard, struct{ io.Reader }{f}, buf)
			return err
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			began := processorTime(b)
			for b.Loop() {
				if err := c.do(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(processorTime(b)-began)/1e9*(1<<30)/size/float64(b.N), "cpu-s/GiB")
		})
	}
}
