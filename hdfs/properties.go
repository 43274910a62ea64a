package hdfs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hadoop/principal"
	"github.com/verbena-data/verbena/hdfs/internal/namenode"
)

// ProxyUser says for whom a user may act, and from which hosts. "*" in a list stands
// for all.
type ProxyUser = namenode.ProxyUser

// AccessConfig says who may do what. The zero value is HDFS's defaults, but for tokens for
// blocks, which are on.
type AccessConfig struct {
	// Superuser may do anything, and so may the members of the group Supergroup.
	// Defaults: the user of this process, and "supergroup".
	Superuser, Supergroup string
	// NoBlockTokens has DataNodes let everybody at the blocks of all files, also whom the
	// NameNode would refuse.
	NoBlockTokens bool
	// BlockKeyInterval is how long a key signs tokens for blocks, BlockTokenLifetime how
	// long a token is good; 0 means 10 h.
	BlockKeyInterval, BlockTokenLifetime time.Duration
	// ProxyUsers may act for others; users that are not named may not.
	ProxyUsers map[string]ProxyUser
	// PrincipalRules make short names of those of Kerberos principals, which clients have
	// that fall back to none; PrincipalMechanism, hadoop or mit, is how they are evaluated.
	// Defaults: the first part of a name, and hadoop. The rule DEFAULT takes names of the
	// realm that Kerberos's configuration on this host names.
	PrincipalRules, PrincipalMechanism string
}

// proxyUserPrefix begins the properties of proxy users: USER.hosts, USER.groups and
// USER.users follow.
const proxyUserPrefix = "hadoop.proxyuser."

// supergroupProperty is heeded by NameNode and DataNodes.
const supergroupProperty = "dfs.permissions.superusergroup"

// accessProperties are the names that Hadoop has for the fields of an [AccessConfig].
var accessProperties = map[string]func(a *AccessConfig, p *conf.Properties, name string) error{
	supergroupProperty: func(a *AccessConfig, p *conf.Properties, name string) error {
		if group, ok := p.String(name); ok {
			a.Supergroup = group
		}
		return nil
	},
	"dfs.block.access.token.enable": func(a *AccessConfig, p *conf.Properties, name string) error {
		on, ok, err := p.Bool(name)
		if ok {
			a.NoBlockTokens = !on
		}
		return err
	},
	"dfs.block.access.key.update.interval": func(a *AccessConfig, p *conf.Properties, name string) error {
		return minutes(&a.BlockKeyInterval, p, name)
	},
	"dfs.block.access.token.lifetime": func(a *AccessConfig, p *conf.Properties, name string) error {
		return minutes(&a.BlockTokenLifetime, p, name)
	},
	"hadoop.security.auth_to_local": func(a *AccessConfig, p *conf.Properties, name string) error {
		if rules, ok := p.String(name); ok {
			a.PrincipalRules = rules
		}
		_, err := a.principals()
		return err
	},
	"hadoop.security.auth_to_local.mechanism": func(a *AccessConfig, p *conf.Properties, name string) error {
		if mechanism, ok := p.String(name); ok {
			a.PrincipalMechanism = mechanism
		}
		_, err := a.principals()
		return err
	},
}

// principals makes short names.
func (a *AccessConfig) principals() (*principal.Rules, error) {
	return principal.Parse(cmp.Or(strings.TrimSpace(a.PrincipalRules), principal.Simple), a.PrincipalMechanism, principal.DefaultRealm())
}

func minutes(d *time.Duration, p *conf.Properties, name string) error {
	t, ok, err := p.Time(name, time.Minute)
	switch {
	case err != nil || !ok:
		return err
	case t < time.Second:
		return fmt.Errorf("%s: %v is too short: a second or more", name, t)
	}
	*d = t
	return nil
}

// Take sets what Hadoop's properties say. The other fields stay.
func (a *AccessConfig) Take(p *conf.Properties) error {
	for _, name := range AccessProperties() {
		if err := accessProperties[name](a, p, name); err != nil {
			return fmt.Errorf("%s: %w", p.From(name), err)
		}
	}
	for _, name := range p.Names() {
		if !strings.HasPrefix(name, proxyUserPrefix) {
			continue
		}
		user, what, ok := proxyUser(name)
		if !ok {
			return fmt.Errorf("%s: %s: want %sUSER.hosts, .groups or .users", p.From(name), name, proxyUserPrefix)
		}
		of := a.ProxyUsers[user]
		*map[string]*[]string{"hosts": &of.Hosts, "groups": &of.Groups, "users": &of.Users}[what] = p.List(name)
		if a.ProxyUsers == nil {
			a.ProxyUsers = make(map[string]ProxyUser)
		}
		a.ProxyUsers[user] = of
	}
	return nil
}

func proxyUser(property string) (user, what string, ok bool) {
	rest := strings.TrimPrefix(property, proxyUserPrefix)
	dot := strings.LastIndexByte(rest, '.')
	if dot < 1 || rest == property {
		return "", "", false
	}
	user, what = rest[:dot], rest[dot+1:]
	return user, what, what == "hosts" || what == "groups" || what == "users"
}

// AccessProperties are the names that [AccessConfig.Take] knows, besides those of proxy
// users.
func AccessProperties() []string { return slices.Sorted(maps.Keys(accessProperties)) }

// IsAccessProperty tells whether [AccessConfig.Take] takes a property.
func IsAccessProperty(name string) bool {
	_, _, proxy := proxyUser(name)
	return proxy || accessProperties[name] != nil
}
