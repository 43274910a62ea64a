package perf

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// addressPrefix begins the line by which a server tells where it listens.
const addressPrefix = "perf: serving at "

// Announce tells where a server listens, for people and for StartServer.
func Announce(w io.Writer, address string) error {
	_, err := fmt.Fprintf(w, "%s%s\nmeasure with: verbena perf %s\n", addressPrefix, address, address)
	return err
}

// A ServerProcess is a `verbena perf serve` of its own.
type ServerProcess struct {
	Address string
	command *exec.Cmd
	stdin   io.WriteCloser
	output  chan struct{} // closed when it has ended
}

// StartServer runs executable's `perf serve` as a child process, with more
// arguments, and waits until it listens. It ends with Close, or when this process
// dies.
func StartServer(ctx context.Context, executable string, args ...string) (*ServerProcess, error) {
	cmd := exec.Command(executable, append([]string{"perf", "serve", "--listen", "127.0.0.1:0", "--until-eof"}, args...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("perf: start a server: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("perf: start a server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("perf: start a server: %w", err)
	}
	p := &ServerProcess{command: cmd, stdin: stdin, output: make(chan struct{})}
	address := make(chan string, 1)
	go func() {
		defer close(p.output)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if rest, ok := strings.CutPrefix(lines.Text(), addressPrefix); ok {
				select {
				case address <- rest:
				default:
				}
			}
		}
	}()
	select {
	case p.Address = <-address:
		return p, nil
	case <-p.output:
		err = errors.New("it ended before it listened")
	case <-time.After(30 * time.Second):
		err = errors.New("it did not listen in 30 s")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(fmt.Errorf("perf: start a server: %w", err), p.Close())
}

// endLimit is how long a server's process may take to end.
const endLimit = 10 * time.Second

// UntilEOF returns a context that ends with the input, which the parent of this process
// holds open as long as it lives. Nobody would kill a child that outlives its parent:
// giveUp is called if the process is still there endLimit after the end of the input.
// The goroutine that reads ends with the input or with the process.
func UntilEOF(ctx context.Context, input io.Reader, giveUp func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, input) // any end of it will do
		time.AfterFunc(endLimit, giveUp)
		cancel()
	}()
	return ctx, cancel
}

// Close ends the process and waits for it.
func (p *ServerProcess) Close() error {
	_ = p.stdin.Close() // tells it to end
	kill := time.AfterFunc(endLimit, func() { _ = p.command.Process.Kill() })
	defer kill.Stop()
	<-p.output
	if err := p.command.Wait(); err != nil {
		return fmt.Errorf("perf: the server's process: %w", err)
	}
	return nil
}
