package namenode

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// ProxyUser says for whom a user may act, and from where. "*" in a list stands for all.
// HDFS has it as hadoop.proxyuser.USER.hosts, groups and users.
type ProxyUser struct {
	Hosts  []string // addresses, prefixes (10.0.0.0/8) and names of hosts
	Groups []string // whose members it may act for
	Users  []string // for whom it may act
}

// lookupLimit bounds how long the names of hosts in a [ProxyUser] are looked up.
const lookupLimit = 2 * time.Second

// Impersonate tells whether realUser may act as user for a client at peer. The error is
// Hadoop's.
func (nn *NameNode) Impersonate(realUser, user string, peer net.Addr) error {
	p, ok := (*nn.proxyUsers.Load())[realUser]
	allowed := ok && (has(p.Users, user) || has(p.Groups, "*"))
	if ok && !allowed && len(p.Groups) > 0 {
		allowed = slices.ContainsFunc(nn.cfg.Groups(user), func(g string) bool { return slices.Contains(p.Groups, g) })
	}
	if !allowed {
		return exception.New(exception.Authorization, "User: %s is not allowed to impersonate %s", realUser, user)
	}
	if host := hostOf(peer); !p.from(host) {
		return exception.New(exception.Authorization, "Unauthorized connection for super-user: %s from IP %s", realUser, host)
	}
	return nil
}

func has(list []string, name string) bool {
	return slices.Contains(list, name) || slices.Contains(list, "*")
}

func hostOf(peer net.Addr) string {
	if peer == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(peer.String())
	if err != nil {
		return peer.String()
	}
	return host
}

func (p *ProxyUser) from(host string) bool {
	if has(p.Hosts, host) {
		return true
	}
	at, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	at = at.Unmap().WithZone("")
	ctx, cancel := context.WithTimeout(context.Background(), lookupLimit)
	defer cancel()
	for _, h := range p.Hosts {
		if prefix, err := netip.ParsePrefix(h); err == nil {
			if prefix.Contains(at) {
				return true
			}
			continue
		}
		if a, err := netip.ParseAddr(h); err == nil {
			if a.Unmap() == at {
				return true
			}
			continue
		}
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", h)
		if err == nil && slices.ContainsFunc(addrs, func(a netip.Addr) bool { return a.Unmap() == at }) {
			return true
		}
	}
	return false
}
