package rdmanet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/providers"
)

// serverProcess has the address at which this binary, started again, echoes.
const serverProcess = "RDMANET_TEST_SERVER"

func serveInProcess(address string) {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	rt, err := verbena.New(verbena.Config{Providers: providers.Default(), Tuning: processTuning(os.Getenv(serverEager))})
	if err != nil {
		fail(err)
	}
	l, err := Listen(context.Background(), rt, address, Config{})
	if err != nil {
		fail(err)
	}
	fmt.Println(l.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0) // the test has gone
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			fail(err)
		}
		go func() {
			if os.Getenv(serverSink) != "" {
				sink(c)
			} else {
				io.Copy(c, c)
			}
			c.Close()
		}()
	}
}

// startServer returns the server's address and a function that kills it as
// kill -9 does.
func startServer(t testing.TB, address string) (at string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serverProcess+"="+address)
	cmd.Stderr = os.Stderr
	stdin := must[io.WriteCloser](t)(cmd.StdinPipe())
	stdout := must[io.ReadCloser](t)(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("the server said %q: %v", line, err)
	}
	return strings.TrimSpace(line), func() {
		cmd.Process.Kill()
		cmd.Wait()
		stdin.Close()
	}
}

// The server's process is killed, with an endpoint parked and with one in use,
// and comes back at the same address.
func TestServerProcessRestarts(t *testing.T) {
	overTransports(t, func(t *testing.T, transport string) {
		address, kill := startServer(t, "127.0.0.1:0")
		defer func() { kill() }()
		d := &Dialer{Runtime: newRuntime(t), Transport: transport}
		defer d.Close()
		echo := func(c *Conn) {
			t.Helper()
			var got [5]byte
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c, got[:]); err != nil || string(got[:]) != "hello" {
				t.Fatalf("read %q, %v", got, err)
			}
		}
		dial := func() *Conn {
			t.Helper()
			c, err := d.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			return c.(*Conn)
		}
		for range 3 {
			parked, inUse := dial(), dial()
			echo(inUse)
			echo(parked)
			parked.CloseWrite()
			wantEOF(t, parked)
			parked.Close()
			read := make(chan error, 1)
			go func() {
				_, err := inUse.Read(make([]byte, 1))
				read <- err
			}()
			kill()
			wantError(t, <-read, syscall.ECONNRESET)
			inUse.Close()
			<-parked.s.done // noticed
			<-inUse.s.done
			if got := d.Parked(); got != 0 {
				t.Errorf("%d endpoints to a dead process are parked", got)
			}
			_, kill = startServer(t, address)
			c := dial()
			echo(c)
			c.CloseWrite()
			wantEOF(t, c)
			c.Close()
		}
	})
}
