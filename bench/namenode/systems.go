package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/verbena-data/verbena/internal/maven"
	"github.com/verbena-data/verbena/internal/processes"
)

// A system is a NameNode that runs.
type system struct {
	name, address, user string
	process             interface {
		CPU() (time.Duration, error)
		Stop() error
	}
	clients []*connection
}

func (s *system) stop() error {
	s.hangUp()
	return s.process.Stop()
}

// hangUp ends the connections: those of a failed call are of no use, and others follow.
func (s *system) hangUp() {
	for _, c := range s.clients {
		_ = c.nc.Close() // nothing is on its way that is still wanted
	}
	s.clients = nil
}

// startOurs runs the NameNode of a binary of the project.
func startOurs(ctx context.Context, name, binary, dir, user string) (*system, error) {
	address := filepath.Join(dir, "address")
	p, err := processes.Start(ctx, "verbena namenode", address, binary, "namenode", "--dir", filepath.Join(dir, "namenode"),
		"--listen", "127.0.0.1:0", "--address-file", address, "--superuser", user)
	if err != nil {
		return nil, err
	}
	at, err := os.ReadFile(address)
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return &system{name: name, address: strings.TrimSpace(string(at)), user: user, process: p}, nil
}

var jars = []maven.Artifact{
	{Group: "org.apache.hadoop", Name: "hadoop-common", Version: maven.Hadoop},
	{Group: "org.apache.hadoop", Name: "hadoop-hdfs", Version: maven.Hadoop},
	{Group: "org.apache.hadoop", Name: "hadoop-hdfs-client", Version: maven.Hadoop},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-core", Version: "2.12.7"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-annotations", Version: "2.12.7"},
	{Group: "com.fasterxml.jackson.core", Name: "jackson-databind", Version: "2.12.7.1"},
}

// javaProcess is Apache's NameNode.
type javaProcess struct{ cmd *exec.Cmd }

func (p javaProcess) CPU() (time.Duration, error) { return processes.CPUTime(p.cmd.Process.Pid) }

// Stop kills it: nothing of it is needed any more.
func (p javaProcess) Stop() error {
	err := p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
	return err
}

// startApache formats and runs Apache's NameNode, without DataNodes.
func startApache(ctx context.Context, dir, user string) (*system, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return nil, fmt.Errorf("the NameNode of Apache HDFS needs Java (Debian: apt-get install openjdk-17-jre-headless): %w", err)
	}
	lib, err := maven.Cached(ctx, "hadoop-namenode", jars, func() {
		fmt.Fprintln(os.Stderr, "fetching the jars of Apache HDFS", maven.Hadoop)
	})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "conf")
	// Its web server wants its pages on the class path, which no jar from Maven has.
	if err := os.MkdirAll(filepath.Join(conf, "webapps", "hdfs"), 0o755); err != nil {
		return nil, err
	}
	property := func(name, value string) string {
		return "<property><name>" + name + "</name><value>" + value + "</value></property>"
	}
	for name, properties := range map[string]string{
		"core-site.xml": property("fs.defaultFS", "hdfs://"+address) + property("hadoop.tmp.dir", filepath.Join(dir, "tmp")),
		"hdfs-site.xml": property("dfs.namenode.name.dir", filepath.Join(dir, "name")) + property("dfs.namenode.http-address", "127.0.0.1:0"),
	} {
		if err := os.WriteFile(filepath.Join(conf, name), []byte("<configuration>"+properties+"</configuration>"), 0o644); err != nil {
			return nil, err
		}
	}
	args := []string{"-Xmx2g", "-Djava.net.preferIPv4Stack=true"}
	for _, pkg := range []string{"java.lang", "java.nio", "java.util", "java.net", "sun.nio.ch"} {
		args = append(args, "--add-opens", "java.base/"+pkg+"=ALL-UNNAMED")
	}
	args = append(args, "-cp", conf+string(filepath.ListSeparator)+filepath.Join(lib, "*"), "org.apache.hadoop.hdfs.server.namenode.NameNode")
	java := func(more ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "java", append(args, more...)...)
		cmd.Env = append(os.Environ(), "HADOOP_USER_NAME="+user)
		return cmd
	}
	if out, err := java("-format", "-force", "-nonInteractive").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("format Apache's NameNode: %w: %s", err, out)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := java()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &system{name: "Apache's", address: address, user: user, process: javaProcess{cmd}}
	if err := s.ready(ctx); err != nil {
		return nil, fmt.Errorf("the NameNode of Apache HDFS, log %s: %w", log.Name(), errors.Join(err, s.stop()))
	}
	return s, nil
}

// ready waits until it takes changes.
func (s *system) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		_, err := s.drive(ctx, -1, 1, 1)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// me is the user that both know for their superuser.
func me() (string, error) {
	u, err := user.Current()
	if err != nil {
		return "", err
	}
	return u.Username, nil
}
