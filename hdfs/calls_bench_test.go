package hdfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	client "github.com/colinmarc/hdfs/v2"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// BenchmarkClientCalls has an HDFS client stat a file and list a directory of 20 files,
// over a byte stream and by calls, and shows this process's processor time beside. With
// VERBENA_NAMENODE=HOST:PORT the server is another process.
func BenchmarkClientCalls(b *testing.B) {
	address := os.Getenv("VERBENA_NAMENODE")
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		b.Fatal(err)
	}
	defer rt.Close()
	if address == "" {
		address = startSystem(b, 1, 1).NameNode.Addr()
	}
	c, err := client.NewClient(client.ClientOptions{Addresses: []string{address}, User: superuser(b)})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	for i := range 20 {
		if err := c.CreateEmptyFile(fmt.Sprintf("/file-%d", i)); err != nil && !errors.Is(err, os.ErrExist) {
			b.Fatal(err)
		}
	}
	for _, transport := range callTransports(b) {
		d := NewDialer(rt, transport)
		defer d.Close()
		for _, way := range []struct {
			name string
			dial func(context.Context, string, string) (net.Conn, error)
		}{{"stream", d.DialContext}, {"calls", d.DialNameNode}} {
			c, err := client.NewClient(client.ClientOptions{
				Addresses: []string{address}, User: superuser(b), NamenodeDialFunc: way.dial, DatanodeDialFunc: d.DialContext,
			})
			if err != nil {
				b.Fatal(err)
			}
			for name, f := range map[string]func() error{
				"stat": func() error { _, err := c.Stat("/file-7"); return err },
				"ls":   func() error { _, err := c.ReadDir("/"); return err },
			} {
				b.Run(name+"/"+transport+"/"+way.name, func(b *testing.B) {
					began := processorTime(b)
					for b.Loop() {
						if err := f(); err != nil {
							b.Fatal(err)
						}
					}
					b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
				})
			}
			c.Close()
		}
	}
}

// processorTime is what this process has used so far, in ns.
func processorTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
