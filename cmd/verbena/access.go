package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/verbena-data/verbena/hdfs"
)

// access are the flags that say who may do what.
type access struct {
	config     hdfs.AccessConfig
	files      []string
	properties []string
	noTokens   bool
}

const accessHelp = `

Who may do what is set by flags, or as in Hadoop: --hadoop-config hdfs-site.xml, or -D NAME=VALUE.
  dfs.permissions.superusergroup          group of superusers (--supergroup)
  dfs.block.access.token.enable           tokens for blocks, true unless set (--no-block-tokens)
  dfs.block.access.token.lifetime         of a token, in minutes: 600
  dfs.block.access.key.update.interval    until another key signs them, in minutes: 600
  hadoop.proxyuser.USER.hosts             from where USER may act for others: addresses, names, prefixes, *
  hadoop.proxyuser.USER.groups, .users    for whom; nobody may act for others unless it is set`

func (a *access) add(flags *pflag.FlagSet) {
	flags.StringVar(&a.config.Superuser, "superuser", "", "`user` who may do anything (default: the one of this process)")
	flags.StringVar(&a.config.Supergroup, "supergroup", "", "`group` whose members may do anything (default: supergroup)")
	flags.BoolVar(&a.noTokens, "no-block-tokens", false, "let everybody at the blocks of all files, as Hadoop does unless it is told otherwise")
	flags.StringArrayVar(&a.files, "hadoop-config", nil, "`file` of Hadoop's, such as hdfs-site.xml, of which those settings are taken that are told above; may be repeated")
	flags.StringArrayVarP(&a.properties, "define", "D", nil, "one of these settings, `NAME=VALUE`; may be repeated")
}

// resolved returns the configuration: a flag comes before -D, and that before files.
func (a *access) resolved() (hdfs.AccessConfig, error) {
	var c hdfs.AccessConfig
	for _, file := range a.files {
		list, err := hdfs.ReadProperties(file)
		if err != nil {
			return c, fmt.Errorf("--hadoop-config: %w", err)
		}
		for _, p := range list {
			if _, err := c.Set(p.Name, p.Value); err != nil {
				return c, fmt.Errorf("--hadoop-config %s: %w", file, err)
			}
		}
	}
	for _, each := range a.properties {
		name, value, ok := strings.Cut(each, "=")
		if !ok {
			return c, fmt.Errorf("-D %s: want NAME=VALUE", each)
		}
		ours, err := c.Set(name, value)
		if err == nil && !ours {
			err = fmt.Errorf("there is no such setting here; there are %s and hadoop.proxyuser.USER.hosts, .groups and .users", strings.Join(hdfs.AccessProperties(), ", "))
		}
		if err != nil {
			return c, fmt.Errorf("-D %s: %w", each, err)
		}
	}
	if a.config.Superuser != "" {
		c.Superuser = a.config.Superuser
	}
	if a.config.Supergroup != "" {
		c.Supergroup = a.config.Supergroup
	}
	c.NoBlockTokens = c.NoBlockTokens || a.noTokens
	return c, nil
}
