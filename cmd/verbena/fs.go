package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/providers"
)

var defaultNameNode = net.JoinHostPort("127.0.0.1", strconv.Itoa(nameNodePort))

func fsCommand(o *options) *cobra.Command {
	var nameNode, user, transport string
	var legacy bool
	var rt *verbena.Runtime
	var dialer *hdfs.Dialer
	cmd := fscmd.Command(func(context.Context) (*hdfs.Client, error) {
		if err := checkTransport(transport); err != nil {
			return nil, err
		}
		cfg := hdfs.ClientConfig{User: user, Patience: fsPatience, LegacyTransfers: legacy}
		if err := findNameNode(&cfg, nameNode); err != nil {
			return nil, err
		}
		var err error
		if rt, err = o.runtime(); err != nil {
			return nil, err
		}
		dialer = hdfs.NewDialer(rt, transport)
		cfg.Dialer = dialer
		return hdfs.NewClient(cfg)
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
	flags.BoolVar(&legacy, "legacy-transfers", false, "move blocks by HDFS's data transfer protocol alone, not by hdfs-data/1")
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

// fsPatience is for how long a call is tried at a NameNode that does not answer: who waits
// at a terminal wants to know soon.
const fsPatience = 5 * time.Second

// findNameNode takes the command line's word, then the Hadoop configuration's, then the
// default. The configuration has more to say than that.
func findNameNode(cfg *hdfs.ClientConfig, flag string) error {
	if flag != "" {
		cfg.NameNodes = []string{withPort(flag)}
	}
	properties, err := hdfs.LoadHadoopConf()
	if err != nil {
		return fmt.Errorf("reading the Hadoop configuration that HADOOP_CONF_DIR or HADOOP_HOME points at: %w", err)
	}
	if err := cfg.Take(properties); err != nil {
		return err
	}
	if len(cfg.NameNodes) == 0 {
		cfg.NameNodes = []string{defaultNameNode}
	}
	return nil
}
