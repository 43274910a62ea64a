package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// serveCommand is the server's process: it prints its address and serves until
// its standard input ends.
func serveCommand() *cobra.Command {
	return &cobra.Command{Use: "serve SYSTEM", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		system, ok := systems[args[0]]
		if !ok {
			return fmt.Errorf("there is no %q", args[0])
		}
		address := "127.0.0.1:0"
		if system.network == "unix" {
			dir, err := os.MkdirTemp("", "verbena-rpc-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			address = filepath.Join(dir, "socket")
		}
		l, err := net.Listen(system.network, address)
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		failed := make(chan error, 1)
		go func() { failed <- system.serve(l) }()
		ended := make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // its end is what counts
			close(ended)
		}()
		select {
		case err := <-failed:
			return err
		case <-ended:
			return nil
		}
	}}
}

// A server is a running server's process.
type server struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	address string
}

func startServer(system string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(self, "serve", system)}
	s.cmd.Stderr = os.Stderr
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the server %s: %w", system, err), s.stop())
	}
	s.address = strings.TrimSpace(line)
	return s, nil
}

// startJava starts Hadoop's own benchmark server.
func startJava(jars string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	args := []string{"-Xmx1g"}
	for _, pkg := range []string{"java.lang", "java.nio", "java.util", "java.net", "sun.nio.ch"} {
		args = append(args, "--add-opens", "java.base/"+pkg+"=ALL-UNNAMED")
	}
	args = append(args, "-cp", filepath.Join(jars, "*"), "org.apache.hadoop.ipc.RPCCallBenchmark",
		"-c", "0", "-s", "16", "-r", "1", "-t", "36000", "-p", port)
	s := &server{cmd: exec.Command("java", args...), address: address}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for range 300 {
		nc, err := net.Dial("tcp", address)
		if err == nil {
			return s, nc.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("Hadoop's server does not listen: are all its jars in the directory?"), s.stop())
}

func (s *server) stop() error {
	if s.stdin == nil {
		_ = s.cmd.Process.Kill() // Java's waits for nothing
		_ = s.cmd.Wait()         // was killed: its status says no more
		return nil
	}
	_ = s.stdin.Close()
	return s.cmd.Wait()
}

// cpu is the time that the server's process has had of the processors.
func (s *server) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", s.cmd.Process.Pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] { // user and system
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	const perSecond = 100 // USER_HZ, the same on all of Go's Linux systems
	return time.Duration(ticks) * time.Second / perSecond, nil
}
