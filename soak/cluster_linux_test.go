package main

import (
	"bytes"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/providers"
)

// What a report says of reads over TCP has gone over TCP, on a host whose DataNode hands
// over descriptors.
func TestOwnClientReadsOverItsTransport(t *testing.T) {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	up, err := hdfs.StartCluster(t.Context(), hdfs.ClusterConfig{Runtime: rt, Dir: t.TempDir(), Host: "127.0.0.1", DataNodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	d, err := newDialers()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	name, err := superuser()
	if err != nil {
		t.Fatal(err)
	}
	near, err := hdfs.NewClient(hdfs.ClientConfig{NameNodes: []string{up.NameNode.Addr()}, User: name})
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	content := named("/read", 300_000)
	if err := near.WriteFile(t.Context(), "/read", content, 0o644); err != nil {
		t.Fatal(err)
	}
	read := func(c *hdfs.Client) uint64 {
		t.Helper()
		got, err := c.ReadFile(t.Context(), "/read")
		if err != nil || !bytes.Equal(got, content) {
			t.Fatalf("%d bytes, or others: %v", len(got), err)
		}
		return c.LocalReads().Reads
	}
	if read(near) == 0 {
		t.Fatal("this host's DataNode hands over no descriptor: the test would tell nothing")
	}
	for _, transport := range []string{"tcp", "shm", "iwarp"} {
		c, err := d.own(up.NameNode.Addr(), transport)
		if err != nil {
			t.Fatal(err)
		}
		if n := read(c); n != 0 {
			t.Errorf("over %s %d ranges were read by descriptor", transport, n)
		}
	}
}
