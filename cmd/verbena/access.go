package main

import (
	"github.com/spf13/pflag"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs"
)

// access are the flags that say who may do what.
type access struct {
	config   hdfs.AccessConfig
	noTokens bool
}

const accessHelp = `

Who may do what is set by flags, or as in Hadoop by --hadoop-conf or --property NAME=VALUE:
  dfs.permissions.superusergroup          group of superusers (--supergroup)
  dfs.block.access.token.enable           tokens for blocks, true unless set (--no-block-tokens)
  dfs.block.access.token.lifetime         of a token, in minutes: 600
  dfs.block.access.key.update.interval    until another key signs them, in minutes: 600
  hadoop.proxyuser.USER.hosts             from where USER may act for others: addresses, names, prefixes, *
  hadoop.proxyuser.USER.groups, .users    for whom; nobody may act for others unless it is set
  hadoop.security.auth_to_local           short names of Kerberos principals; their first part unless it is set`

func (a *access) add(flags *pflag.FlagSet) {
	flags.StringVar(&a.config.Superuser, "superuser", "", "`user` who may do anything (default: the one of this process)")
	flags.StringVar(&a.config.Supergroup, "supergroup", "", "`group` whose members may do anything (default: supergroup)")
	flags.BoolVar(&a.noTokens, "no-block-tokens", false, "let everybody at the blocks of all files, as Hadoop does unless it is told otherwise")
}

// resolved returns the configuration: a flag comes before Hadoop's properties.
func (a *access) resolved(p *conf.Properties) (c hdfs.AccessConfig, err error) {
	if err := c.Take(p); err != nil {
		return c, err
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
