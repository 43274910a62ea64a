package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs"
)

// hadoopFlags are the flags by which servers take Hadoop's properties.
type hadoopFlags struct{ conf, properties []string }

func (f *hadoopFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.conf, "hadoop-conf", nil, "a `file` of Hadoop's configuration, or a directory with core-site.xml and hdfs-site.xml; may be repeated")
	flags.StringArrayVar(&f.properties, "property", nil, "one of Hadoop's properties, `NAME=VALUE`, such as dfs.heartbeat.interval=3s; may be repeated")
}

// isNameNodeProperty tells whether NameNodes heed a property.
func isNameNodeProperty(name string) bool {
	return hdfs.IsAccessProperty(name) || slices.ContainsFunc(hdfs.NameNodeProperties(), func(p hdfs.NameNodeProperty) bool { return p.Name == name })
}

// isDataNodeProperty tells whether DataNodes heed a property.
func isDataNodeProperty(name string) bool {
	return slices.ContainsFunc(hdfs.DataNodeProperties(), func(p hdfs.DataNodeProperty) bool { return p.Name == name })
}

// read returns the properties, those of --property before those of files.
func (f *hadoopFlags) read(heeded func(name string) bool) (*conf.Properties, error) {
	p, err := conf.Read(f.conf...)
	if err != nil {
		return nil, err
	}
	for _, each := range f.properties {
		name, value, ok := strings.Cut(each, "=")
		if !ok {
			return nil, fmt.Errorf("--property %s: want NAME=VALUE", each)
		}
		if !heeded(conf.Current(name)) {
			return nil, fmt.Errorf("--property %s: no such property is heeded here: docs/configuration.md lists those that are", name)
		}
		p.Set(name, value, "--property")
	}
	return p, nil
}
