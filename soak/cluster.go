package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	client "github.com/colinmarc/hdfs/v2"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/internal/processes"
	"github.com/verbena-data/verbena/providers"
)

// superuser is who started the NameNode, and who all of a run's files belong to.
var superuser = sync.OnceValues(func() (string, error) {
	u, err := user.Current()
	if err != nil {
		return "", err
	}
	return u.Username, nil
})

// node is a server that can be killed and comes back at the same address.
type node struct {
	name string
	args []string
	dir  string
	proc *processes.Process
}

// cluster is a NameNode and DataNodes in processes of their own.
type cluster struct {
	binary, dir string
	nodes       []*node // the NameNode first
	nameNode    string
}

func startCluster(ctx context.Context, binary, dir string, dataNodes, replication int, nameNodeArgs ...string) (*cluster, error) {
	name, err := superuser()
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("HADOOP_USER_NAME", name); err != nil { // of the commands that a run calls
		return nil, err
	}
	c := &cluster{binary: binary, dir: dir}
	nn := &node{name: "namenode", args: append([]string{"namenode", "--replication", fmt.Sprint(replication)}, nameNodeArgs...), dir: dir}
	c.nodes = append(c.nodes, nn)
	if err := c.start(ctx, nn); err != nil {
		return nil, err
	}
	c.nameNode = nn.proc.Address
	for i := range dataNodes {
		dn := &node{name: fmt.Sprintf("datanode-%d", i), args: []string{"datanode", "--namenode", c.nameNode}, dir: dir}
		c.nodes = append(c.nodes, dn)
		if err := c.start(ctx, dn); err != nil {
			return nil, errors.Join(err, c.stop())
		}
	}
	return c, nil
}

// start starts a node, at its old address if it had one.
func (c *cluster) start(ctx context.Context, n *node) error {
	listen := "127.0.0.1:0"
	if n.proc != nil {
		listen = n.proc.Address
	}
	file := filepath.Join(n.dir, n.name+".address")
	p, err := processes.Start(ctx, n.name, file, c.binary, append(append([]string{}, n.args...),
		"--dir", filepath.Join(n.dir, n.name), "--cluster-secret", filepath.Join(n.dir, "cluster-secret"), "--listen", listen, "--address-file", file)...)
	if err != nil {
		return err
	}
	n.proc = p
	return nil
}

func (c *cluster) stop() error {
	var errs []error
	for i := len(c.nodes) - 1; i >= 0; i-- {
		if p := c.nodes[i].proc; p != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}

// peakMemory is the most that a process ever had resident, in bytes (VmHWM,
// proc(5)).
func peakMemory(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for s := bufio.NewScanner(bytes.NewReader(status)); s.Scan(); {
		if f := bytes.Fields(s.Bytes()); len(f) == 3 && string(f[0]) == "VmHWM:" {
			kib, err := strconv.ParseInt(string(f[1]), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no VmHWM", pid)
}

// dialers make clients over any transport. They may be used concurrently.
type dialers struct {
	rt    *verbena.Runtime
	other map[string]*hdfs.Dialer

	mu      sync.Mutex
	clients map[string]*hdfs.Client // ours, by NameNode and transport
}

func newDialers() (*dialers, error) {
	rt, err := verbena.New(verbena.Config{Providers: providers.Default()})
	if err != nil {
		return nil, err
	}
	d := &dialers{rt: rt, other: map[string]*hdfs.Dialer{}, clients: map[string]*hdfs.Client{}}
	for _, p := range providers.Default() {
		d.other[p.Name()] = hdfs.NewDialer(rt, p.Name())
	}
	return d, nil
}

// own returns our client over transport, the same each time. It reads no blocks by
// descriptor, which would carry them past the transport.
func (d *dialers) own(nameNode, transport string) (*hdfs.Client, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := nameNode + " " + transport
	if c := d.clients[key]; c != nil {
		return c, nil
	}
	name, err := superuser()
	if err != nil {
		return nil, err
	}
	cfg := hdfs.ClientConfig{NameNodes: []string{nameNode}, User: name, LeaseInterval: leaseLimit / 3, NoLocalReads: true}
	if transport != verbena.TransportTCP {
		if cfg.Dialer = d.other[transport]; cfg.Dialer == nil {
			return nil, fmt.Errorf("no provider %q in this binary", transport)
		}
	}
	c, err := hdfs.NewClient(cfg)
	if err != nil {
		return nil, err
	}
	d.clients[key] = c
	return c, nil
}

// dial is a function that a client dials with.
type dial = func(ctx context.Context, network, address string) (net.Conn, error)

// client returns a client over transport; over "tcp" it is the client as its
// authors made it.
func (d *dialers) client(ctx context.Context, nameNode, transport string) (*client.Client, error) {
	return d.watched(ctx, nameNode, transport, func(data dial) dial { return data })
}

// watched is client, with a say in how DataNodes are dialled.
func (d *dialers) watched(ctx context.Context, nameNode, transport string, wrap func(dial) dial) (*client.Client, error) {
	name, err := superuser()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dial := (&net.Dialer{Timeout: 20 * time.Second}).DialContext
	toNameNode := dial
	if transport != verbena.TransportTCP {
		dialer := d.other[transport]
		if dialer == nil {
			return nil, fmt.Errorf("no provider %q in this binary", transport)
		}
		dial, toNameNode = dialer.DialContext, dialer.DialNameNode
	}
	return client.NewClient(client.ClientOptions{
		Addresses: []string{nameNode}, User: name, NamenodeDialFunc: toNameNode, DatanodeDialFunc: wrap(dial),
	})
}

func (d *dialers) Close() error {
	var errs []error
	for _, c := range d.clients {
		errs = append(errs, c.Close())
	}
	for _, dialer := range d.other {
		errs = append(errs, dialer.Close())
	}
	return errors.Join(append(errs, d.rt.Close())...)
}

// until calls f again until it succeeds or the time is over.
func until(ctx context.Context, limit time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still so after %v: %w", limit, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
