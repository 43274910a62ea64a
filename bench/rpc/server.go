package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena/bench/internal/host"
	"github.com/verbena-data/verbena/internal/maven"
)

// serveCommand is the server's process: it prints its address and serves until
// its standard input ends.
func serveCommand() *cobra.Command {
	free := false
	cmd := &cobra.Command{Use: "serve SYSTEM", Hidden: true, Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		system, ok := systems[args[0]]
		if !ok {
			return fmt.Errorf("there is no %q", args[0])
		}
		if !free {
			if err := host.PinProcess(host.ServerCPU); err != nil {
				return err
			}
		}
		address := "127.0.0.1:0"
		if system.network == "unix" {
			dir, err := os.MkdirTemp("", "verbena-rpc-")
			if err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(dir) }() // of the system's temporary ones
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
	cmd.Flags().BoolVar(&free, "free", false, "bind this process to no processor")
	return cmd
}

// A server is a running server's process.
type server struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	address string
}

// startServer runs a command of this program that prints its address.
func startServer(command ...string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(self, command...)}
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
		return nil, errors.Join(fmt.Errorf("the server %s: %w", strings.Join(command, " "), err), s.stop())
	}
	s.address = strings.TrimSpace(line)
	return s, nil
}

// javaServer is what Hadoop's own benchmark needs.
var javaServer = []maven.Artifact{
	{Group: "org.apache.hadoop", Name: "hadoop-common", Version: maven.Hadoop},
	{Group: "org.apache.hadoop", Name: "hadoop-common", Version: maven.Hadoop, Type: "test-jar"},
	{Group: "junit", Name: "junit", Version: "4.13.2"},
}

// hadoopJars returns the directory of Hadoop's jars, of the user or from the cache.
func hadoopJars(ctx context.Context, dir string) (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", fmt.Errorf("the server of Hadoop needs Java, which is not here (Debian: apt-get install openjdk-17-jre-headless): %w", err)
	}
	if dir != "" {
		return dir, nil
	}
	return maven.Cached(ctx, "hadoop-rpc-benchmark", javaServer, func() {
		fmt.Fprintln(os.Stderr, "fetching the jars of Hadoop's RPC benchmark", maven.Hadoop)
	})
}

// startJava starts Hadoop's own benchmark server on the server's processor, and lets Java
// compile what will be measured.
func startJava(ctx context.Context, jars string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	args := []string{"-c", fmt.Sprint(host.ServerCPU), "java", "-Xmx1g"}
	for _, pkg := range []string{"java.lang", "java.nio", "java.util", "java.net", "sun.nio.ch"} {
		args = append(args, "--add-opens", "java.base/"+pkg+"=ALL-UNNAMED")
	}
	args = append(args, "-cp", filepath.Join(jars, "*"), "org.apache.hadoop.ipc.RPCCallBenchmark",
		"-c", "0", "-s", "16", "-r", "1", "-t", "36000", "-p", port)
	s := &server{cmd: exec.Command("taskset", args...), address: address}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	for range 300 {
		nc, err := net.Dial("tcp", address)
		if err == nil {
			_ = nc.Close() // it was dialled to see that somebody listens
			warm := load{callers: 16, size: 1 << 10, warm: time.Second, limit: 14 * time.Second}
			if _, err := warm.drive(ctx, java, s); err != nil {
				return nil, errors.Join(err, s.stop())
			}
			return s, nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil, errors.Join(errors.New("the server of Hadoop does not listen: are all its jars in the directory?"), s.stop())
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
