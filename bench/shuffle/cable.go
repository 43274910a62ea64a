package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// A cable joins two network namespaces, which are as two hosts: veth has no shortcut of
// loopback's. It needs the superuser's rights.
type cable struct{ names, addresses [2]string }

func newCable(ctx context.Context) (c *cable, err error) {
	c = &cable{addresses: [2]string{"10.98.0.1", "10.98.0.2"}}
	for i := range c.names {
		c.names[i] = fmt.Sprintf("vshuffle%d%c", os.Getpid(), 'a'+i)
	}
	defer func() {
		if err != nil {
			c.remove()
		}
	}()
	a, b := c.names[0], c.names[1]
	commands := [][]string{
		{"netns", "add", a}, {"netns", "add", b},
		{"-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b},
	}
	for i, name := range c.names {
		commands = append(commands, []string{"-n", name, "link", "set", "lo", "up"},
			[]string{"-n", name, "addr", "add", c.addresses[i] + "/24", "dev", "cable"}, []string{"-n", name, "link", "set", "cable", "up"})
	}
	for _, args := range commands {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return c, fmt.Errorf("two network namespaces: ip %v: %w: %s", args, err, bytes.TrimSpace(out))
		}
	}
	return c, nil
}

// remove removes the namespaces, and with them the cable.
func (c *cable) remove() {
	for _, name := range c.names {
		_ = exec.Command("ip", "netns", "del", name).Run() // it may not be there
	}
}

// command is a command in one of the namespaces, and the address there.
func (c *cable) command(ctx context.Context, side int, name string, args ...string) (*exec.Cmd, string) {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", c.names[side], name}, args...)...), c.addresses[side]
}
