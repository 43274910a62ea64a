package main

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs"
)

// nodesHelp tells operators of HDFS where their settings are.
const nodesHelp = `

Times, limits, hosts and racks have Hadoop's names, too: --hadoop-conf /etc/hadoop/conf takes
the properties that docs/configuration.md lists, and --property
dfs.namenode.replication.max-streams=4 sets a single one. Flags of their own come before that, and that before files.

  DataNodes come and go: a name in the file of --hosts-exclude is decommissioned, once
  hdfs dfsadmin -refreshNodes has the file read; its blocks are copied to others, then
  dfsadmin -report says Decommissioned and it may be stopped.
  Racks: --racks names a file of lines such as "10.0.0.7 /rack2".`

// nodeFlags are how up and namenode treat DataNodes.
type nodeFlags struct {
	dead, safe, forget               time.Duration
	hosts, exclude, racks, rackAsked string
}

func newNodeFlags(flags *pflag.FlagSet) *nodeFlags {
	f := &nodeFlags{}
	flags.DurationVar(&f.dead, "dead-after", 10*time.Minute+30*time.Second, "how long a DataNode may be silent before its blocks are copied from others; after a start nothing is copied for so long that it may still bring (dfs.namenode.heartbeat.recheck-interval)")
	flags.DurationVar(&f.safe, "safe-mode", 30*time.Second, "how long a start waits for DataNodes, before files of writers that are gone are closed and surplus is deleted; not for those that were dead or decommissioned (dfs.namenode.safemode.extension)")
	flags.DurationVar(&f.forget, "forget-after", 7*24*time.Hour, "how long a DataNode may be dead before it is forgotten; it may come back all the same")
	flags.StringVar(&f.hosts, "hosts", "", "`file` of the DataNodes that may register, a name or an address each; none: all may (dfs.hosts)")
	flags.StringVar(&f.exclude, "hosts-exclude", "", "`file` of the DataNodes to take out of service (dfs.hosts.exclude)")
	flags.StringVar(&f.racks, "racks", "", "`file` of lines \"host /rack\": one replica of a block is at its writer, two are on another rack (net.topology.table.file.name)")
	flags.StringVar(&f.rackAsked, "rack-script", "", "`program` that prints the racks of the addresses it is given, as Hadoop's (net.topology.script.file.name)")
	return f
}

// read returns Hadoop's properties, with what these flags set, and who may do what by
// them and by flags of its own.
func (f *nodeFlags) read(h *hadoopFlags, who *access) (*conf.Properties, hdfs.AccessConfig, error) {
	p, err := h.read(isNameNodeProperty)
	if err != nil {
		return nil, hdfs.AccessConfig{}, err
	}
	for _, each := range []struct{ name, value, flag string }{
		{"dfs.hosts", f.hosts, "--hosts"},
		{"dfs.hosts.exclude", f.exclude, "--hosts-exclude"},
		{"net.topology.table.file.name", f.racks, "--racks"},
		{"net.topology.script.file.name", f.rackAsked, "--rack-script"},
	} {
		if each.value != "" {
			p.Set(each.name, each.value, each.flag)
		}
	}
	for _, d := range []time.Duration{f.dead, f.safe, f.forget} {
		if d <= 0 {
			return nil, hdfs.AccessConfig{}, errors.New("--dead-after, --safe-mode and --forget-after must be longer than 0")
		}
	}
	config, err := who.resolved(p)
	return p, config, err
}

// given returns a flag's value if the flag is given, else 0, so that a file may
// have it.
func given[T any](flags *pflag.FlagSet, name string, value T) (out T) {
	if flags.Changed(name) {
		out = value
	}
	return out
}
