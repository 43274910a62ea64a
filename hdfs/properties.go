package hdfs

import (
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

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
}

// accessProperties are the names that Hadoop has for the fields of an [AccessConfig].
var accessProperties = map[string]func(a *AccessConfig, value string) error{
	"dfs.permissions.superusergroup": func(a *AccessConfig, value string) error {
		if value == "" {
			return fmt.Errorf("a group is missing")
		}
		a.Supergroup = value
		return nil
	},
	"dfs.block.access.token.enable": func(a *AccessConfig, value string) error {
		on, err := strconv.ParseBool(value)
		a.NoBlockTokens = !on
		return err
	},
	"dfs.block.access.key.update.interval": func(a *AccessConfig, value string) (err error) {
		a.BlockKeyInterval, err = minutes(value)
		return err
	},
	"dfs.block.access.token.lifetime": func(a *AccessConfig, value string) (err error) {
		a.BlockTokenLifetime, err = minutes(value)
		return err
	},
}

// proxyUserPrefix begins the properties of proxy users: USER.hosts, USER.groups and
// USER.users follow.
const proxyUserPrefix = "hadoop.proxyuser."

// Set sets what Hadoop calls name. It returns false if that is nothing of an
// AccessConfig.
func (a *AccessConfig) Set(name, value string) (ours bool, err error) {
	value = strings.TrimSpace(value)
	if set := accessProperties[name]; set != nil {
		if err := set(a, value); err != nil {
			return true, fmt.Errorf("%s = %q: %w", name, value, err)
		}
		return true, nil
	}
	rest, ok := strings.CutPrefix(name, proxyUserPrefix)
	if !ok {
		return false, nil
	}
	dot := strings.LastIndexByte(rest, '.')
	if dot < 1 {
		return true, fmt.Errorf("%s: want %sUSER.hosts, .groups or .users", name, proxyUserPrefix)
	}
	var list []string
	for _, each := range strings.Split(value, ",") {
		if each = strings.TrimSpace(each); each != "" {
			list = append(list, each)
		}
	}
	user := a.ProxyUsers[rest[:dot]]
	switch rest[dot+1:] {
	case "hosts":
		user.Hosts = list
	case "groups":
		user.Groups = list
	case "users":
		user.Users = list
	default:
		return true, fmt.Errorf("%s: want %sUSER.hosts, .groups or .users", name, proxyUserPrefix)
	}
	all := maps.Clone(a.ProxyUsers)
	if all == nil {
		all = make(map[string]ProxyUser)
	}
	all[rest[:dot]] = user
	a.ProxyUsers = all
	return true, nil
}

// AccessProperties are the names that [AccessConfig.Set] takes, besides those of proxy
// users.
func AccessProperties() []string { return slices.Sorted(maps.Keys(accessProperties)) }

// minutes reads a time as Hadoop writes it: minutes, or a number with a unit.
func minutes(text string) (time.Duration, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	d := time.Duration(n) * time.Minute
	if err != nil {
		if d, err = time.ParseDuration(text); err != nil {
			return 0, fmt.Errorf("want minutes, or a time such as 90s or 10h")
		}
	}
	if d < time.Second {
		return 0, fmt.Errorf("want a second or more")
	}
	return d, nil
}

// Property is a setting of a Hadoop configuration file.
type Property struct{ Name, Value string }

// ReadProperties reads a Hadoop configuration file, such as hdfs-site.xml.
func ReadProperties(file string) ([]Property, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c configuration
	if err := xml.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%s is no Hadoop configuration: %w", file, err)
	}
	out := make([]Property, len(c.Properties))
	for i, p := range c.Properties {
		out[i] = Property{strings.TrimSpace(p.Name), strings.TrimSpace(p.Value)}
	}
	return out, nil
}
