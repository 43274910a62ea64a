package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/verbena-data/verbena"
	"github.com/verbena-data/verbena/cmd/verbena/internal/fscmd"
	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs"
	"github.com/verbena-data/verbena/providers"
)

var defaultNameNode = net.JoinHostPort("127.0.0.1", strconv.Itoa(nameNodePort))

func fsCommand(o *options) *cobra.Command {
	var nameNode, user, transport string
	var legacy bool
	var hadoop hadoopFlags
	var rt *verbena.Runtime
	var dialer *hdfs.Dialer
	var cmd *cobra.Command
	cmd = fscmd.Command(func(context.Context) (*hdfs.Client, error) {
		if err := checkTransport(transport); err != nil {
			return nil, err
		}
		cfg := hdfs.ClientConfig{User: user, LegacyTransfers: legacy}
		if err := findNameNode(&cfg, nameNode, &hadoop); err != nil {
			return nil, err
		}
		beSoon(&cfg)
		var err error
		if rt, err = o.runtime(); err != nil {
			return nil, err
		}
		dialer = hdfs.NewDialer(rt, transport)
		cfg.Dialer = dialer
		cfg.SlowCall = tellSlow(cmd.ErrOrStderr())
		return hdfs.NewClient(cfg)
	})
	cmd.PersistentPostRunE = func(*cobra.Command, []string) error {
		if rt == nil {
			return nil
		}
		return errors.Join(dialer.Close(), rt.Close())
	}
	flags := cmd.PersistentFlags()
	flags.StringVar(&nameNode, "namenode", "", "`HOST[:PORT]` of the NameNode, or hdfs://NAMESERVICE (default: HADOOP_CONF_DIR's, or "+defaultNameNode+"); -fs of hdfs dfs is the same")
	flags.StringArrayVar(&hadoop.conf, "hadoop-conf", nil, "a `file` of Hadoop's configuration beside HADOOP_CONF_DIR's, or a directory; may be repeated; -conf of hdfs dfs is the same")
	flags.StringArrayVarP(&hadoop.properties, "property", "D", nil, "one of Hadoop's properties, `NAME=VALUE`, such as dfs.replication=1; may be repeated")
	flags.StringVar(&user, "user", "", "act as this user (default: HADOOP_USER_NAME, or who you are)")
	flags.StringVar(&transport, "transport", "auto", choiceOfTransports()+"; auto takes the fastest that both ends have")
	flags.BoolVar(&legacy, "legacy-transfers", false, "move blocks by HDFS's data transfer protocol alone, not by hdfs-data/1")
	return cmd
}

// tellSlow tells once which NameNode a command waits for.
func tellSlow(out io.Writer) func(nameNode string) {
	var once sync.Once
	return func(nameNode string) {
		once.Do(func() {
			fmt.Fprintf(out, "Waiting for the NameNode at %s, which has not answered yet. Ctrl-C ends this; -D ipc.client.rpc-timeout.ms=MILLISECONDS sets for how long each call waits.\n", nameNode)
		})
	}
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

// beSoon sets fsPatience, unless Hadoop's properties of retries make up another patience. Without
// one, what they say of time-outs does not count: each takes 20 s or 2 min.
func beSoon(cfg *hdfs.ClientConfig) {
	if cfg.Patience == 0 {
		cfg.Patience, cfg.Timeouts = fsPatience, -1
	}
}

// findNameNode takes the command line's word, then the Hadoop configuration's, then the
// default. The configuration has more to say than that.
func findNameNode(cfg *hdfs.ClientConfig, flag string, hadoop *hadoopFlags) error {
	properties, err := hdfs.LoadHadoopConf(hadoop.conf...)
	if err != nil {
		return fmt.Errorf("reading the Hadoop configuration that HADOOP_CONF_DIR, HADOOP_HOME or --hadoop-conf points at: %w", err)
	}
	if properties == nil && len(hadoop.properties) > 0 {
		properties = &conf.Properties{}
	}
	for _, each := range hadoop.properties {
		name, value, ok := strings.Cut(each, "=")
		if !ok {
			return fmt.Errorf("-D %s: want NAME=VALUE", each)
		}
		properties.Set(name, value, "-D") // what clients do not heed, others do
	}
	switch {
	case strings.HasPrefix(flag, "hdfs://"):
		if cfg.NameNodes, err = hdfs.NameNodesOf(properties, flag); err != nil {
			return err
		}
	case flag != "":
		cfg.NameNodes = []string{withPort(flag)}
	}
	if err := cfg.Take(properties); err != nil {
		return err
	}
	if len(cfg.NameNodes) == 0 {
		cfg.NameNodes = []string{defaultNameNode}
	}
	return nil
}
