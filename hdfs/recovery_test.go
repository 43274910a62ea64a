package hdfs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	client "github.com/colinmarc/hdfs/v2"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

const (
	abandonAt      = "VERBENA_TEST_ABANDON_AT" // the NameNode for the writer that is killed
	abandonedBlock = 1 << 20
	abandonedBytes = 1_500_000 // one block and a half
)

// TestAbandonedFileIsClosed kills a writer that has flushed and not closed.
// When its lease has expired the NameNode and the DataNodes close the file by
// themselves, with every byte that was flushed; then another client appends to it.
func TestAbandonedFileIsClosed(t *testing.T) {
	t.Parallel() // it waits for a lease
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	// On a busy host the writer takes seconds to flush, and must not lose its lease before.
	nn, err := StartNameNode(ctx, NameNodeConfig{Runtime: rt, Dir: filepath.Join(dir, "name"), ClusterSecret: filepath.Join(dir, "secret"), Listen: "127.0.0.1:0", LeaseLimit: 8 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Close()
	for i := range 3 {
		dn, err := StartDataNode(ctx, DataNodeConfig{Runtime: rt, Dir: filepath.Join(dir, fmt.Sprint("data", i)), ClusterSecret: filepath.Join(dir, "secret"), Listen: "127.0.0.1:0", NameNode: nn.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		defer dn.Close()
		if err := dn.WaitReported(ctx); err != nil {
			t.Fatal(err)
		}
	}
	data := randomBytes(abandonedBytes)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestAbandoningWriter$", "-test.v")
	cmd.Env = append(os.Environ(), abandonAt+"="+nn.Addr())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for in := bufio.NewReader(out); ; {
		line, err := in.ReadString('\n')
		if strings.TrimSpace(line) == "flushed" {
			break
		}
		if err != nil {
			cmd.Process.Kill()
			t.Fatalf("the writer ended before it had flushed: %v", errors.Join(err, cmd.Wait()))
		}
	}
	cmd.Process.Kill()
	cmd.Wait()

	other, err := client.NewClient(client.ClientOptions{Addresses: []string{nn.Addr()}, User: superuser(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var again *client.FileWriter
	eventually(t, "the file to be closed", func() error {
		var err error
		again, err = other.Append("/abandoned")
		return err
	})
	if got := readAll(t, other, "/abandoned"); !bytes.Equal(got, data) {
		t.Fatalf("%d bytes came back, %d were flushed, or others", len(got), len(data))
	}
	if _, err := again.Write([]byte("more")); err != nil {
		t.Fatal(err)
	}
	closeFile(t, again)
	if got := readAll(t, other, "/abandoned"); !bytes.Equal(got, append(data, "more"...)) {
		t.Fatalf("%d bytes after the append", len(got))
	}
}

// TestAbandoningWriter is the writer, in a process of its own that is killed.
func TestAbandoningWriter(t *testing.T) {
	addr := os.Getenv(abandonAt)
	if addr == "" {
		t.Skip("part of TestAbandonedFileIsClosed, which runs it")
	}
	c, err := NewClient(ClientConfig{NameNodes: []string{addr}, User: superuser(t)})
	if err != nil {
		t.Fatal(err)
	}
	w, err := c.Create(t.Context(), "/abandoned", CreateOptions{Replication: 3, BlockSize: abandonedBlock})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(randomBytes(abandonedBytes)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); err != nil { // all DataNodes have acknowledged them
		t.Fatal(err)
	}
	fmt.Println("flushed")
	select {}
}
