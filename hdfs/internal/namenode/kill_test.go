package namenode

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/colinmarc/hdfs/v2"
	"go.uber.org/goleak"

	"github.com/verbena-data/verbena/hadoop/rpc"
	"github.com/verbena-data/verbena/internal/port"
)

// childDir has the test's own program be a NameNode on that directory.
const childDir = "VERBENA_TEST_NAMENODE_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func child(dir string) error {
	nn, err := Open(context.Background(), Config{Dir: dir, Superuser: "root", SnapshotEntries: 200})
	if err != nil {
		return err
	}
	srv := rpc.NewServer(rpc.Config{})
	nn.RegisterRPC(srv)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	return port.Accept(context.Background(), l, nn.log, func(nc net.Conn) { go srv.ServeConn(nc) })
}

// TestKill kills a NameNode's process at random moments. Every directory whose
// creation was acknowledged is there afterwards, and no other but those asked for.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	acked := map[string]bool{}
	asked := map[string]bool{"/w": true}
	for round := range 6 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		addr, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			cmd.Process.Kill()
			t.Fatalf("round %d: the NameNode did not start: %v", round, err)
		}
		addr = strings.TrimSpace(addr)

		c, err := hdfs.NewClient(hdfs.ClientOptions{Addresses: []string{addr}, User: "root"})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.MkdirAll("/w", 0o755); err != nil {
			t.Fatal(err)
		}
		entries, err := c.ReadDir("/w")
		if err != nil {
			t.Fatal(err)
		}
		there := map[string]bool{}
		for _, e := range entries {
			if !asked["/w/"+e.Name()] {
				t.Fatalf("round %d: nobody made %s", round, e.Name())
			}
			there["/w/"+e.Name()] = true
		}
		for p := range acked {
			if !there[p] {
				t.Fatalf("round %d: %s was acknowledged and is lost", round, p)
			}
		}
		c.Close()

		var mu sync.Mutex
		var wg sync.WaitGroup
		killAt, count := rng.IntN(400), 0
		for w := range 4 {
			wg.Go(func() {
				c, err := hdfs.NewClient(hdfs.ClientOptions{Addresses: []string{addr}, User: "root"})
				if err != nil {
					return
				}
				defer c.Close()
				for i := 0; ; i++ {
					p := fmt.Sprintf("/w/%d-%d-%d", round, w, i)
					mu.Lock()
					asked[p] = true
					mu.Unlock()
					if err := c.Mkdir(p, 0o755); err != nil {
						return
					}
					mu.Lock()
					acked[p] = true
					if count++; count == killAt+1 {
						cmd.Process.Kill()
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		cmd.Wait()
	}
	if len(acked) < 100 {
		t.Fatalf("only %d operations in all", len(acked))
	}
}
