package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	client "github.com/colinmarc/hdfs/v2"
	"github.com/colinmarc/hdfs/v2/hadoopconf"
	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/providers"
)

var defaultNameNode = net.JoinHostPort("127.0.0.1", strconv.Itoa(nameNodePort))

func fsCommand(o *options) *cobra.Command {
	var nameNode, user, transport string
	var rt *verbena.Runtime
	var dialer *hdfs.Dialer
	cmd := fscmd.Command(func(ctx context.Context) (*client.Client, error) {
		if err := checkTransport(transport); err != nil {
			return nil, err
		}
		address, err := findNameNode(nameNode)
		if err != nil {
			return nil, err
		}
		if user == "" {
			if user, err = userName(); err != nil {
				return nil, err
			}
		}
		if rt, err = o.runtime(); err != nil {
			return nil, err
		}
		dialer = hdfs.NewDialer(rt, transport)
		return dialer.Connect(ctx, address, user)
	})
	cmd.PersistentPostRunE = func(*cobra.Command, []string) error {
		if rt == nil {
			return nil
		}
		return errors.Join(dialer.Close(), rt.Close())
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&nameNode, "namenode", "", "`HOST:PORT` of the NameNode (default: HADOOP_CONF_DIR's, or "+defaultNameNode+")")
	flags.StringVar(&user, "user", "", "act as this user (default: HADOOP_USER_NAME, or who you are)")
	flags.StringVar(&transport, "transport", "auto", choiceOfTransports()+"; auto takes the fastest that both ends have")
	return cmd
}

// checkTransport refuses a name that nothing could ever have.
func checkTransport(name string) error {
	if name == verbena.TransportAuto || name == verbena.TransportTCP || slices.Contains(providers.Names(), name) {
		return nil
	}
	return fmt.Errorf("there is no transport %q: choose %s", name, choiceOfTransports())
}

// choiceOfTransports is what --transport takes, in words.
func choiceOfTransports() string {
	return verbena.TransportAuto + ", " + strings.Join(providers.Names(), ", ") + " or " + verbena.TransportTCP
}

// withPort adds the NameNode's usual port to an address that has none.
func withPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(nameNodePort))
}

// findNameNode takes the command line's word, then the Hadoop configuration's,
// then the default.
func findNameNode(flag string) (string, error) {
	if flag != "" {
		return withPort(flag), nil
	}
	conf, err := hadoopconf.LoadFromEnvironment()
	if err != nil {
		return "", fmt.Errorf("reading the Hadoop configuration that HADOOP_CONF_DIR or HADOOP_HOME points at: %w", err)
	}
	if addresses := client.ClientOptionsFromConf(conf).Addresses; len(addresses) > 0 {
		return addresses[0], nil
	}
	return defaultNameNode, nil
}
