package namenode

import (
	"errors"
	"net"
	"testing"

	"github.com/verbena-data/verbena/hadoop/exception"
)

func TestImpersonate(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.ProxyUsers = map[string]ProxyUser{
			"hive":  {Hosts: []string{"10.0.0.0/24", "192.168.1.1", "localhost"}, Groups: []string{"users"}, Users: []string{"carol"}},
			"any":   {Hosts: []string{"*"}, Users: []string{"*"}},
			"group": {Hosts: []string{"*"}, Groups: []string{"*"}},
			"none":  {Users: []string{"*"}},
		}
	})
	const toUser, fromHost = "User: %[1]s is not allowed to impersonate %[2]s", "Unauthorized connection for super-user: %[1]s from IP %[3]s"
	for _, c := range []struct{ real, user, host, want string }{
		{"hive", "carol", "10.0.0.7", ""},
		{"hive", "bob", "10.0.0.7", ""}, // of the group users
		{"hive", "bob", "192.168.1.1", ""},
		{"hive", "bob", "127.0.0.1", ""}, // localhost
		{"hive", "bob", "::ffff:10.0.0.7", ""},
		{"hive", "alice", "10.0.0.7", toUser},
		{"hive", "root", "10.0.0.7", toUser},
		{"hive", "bob", "10.0.1.7", fromHost},
		{"hive", "bob", "pipe", fromHost},
		{"any", "root", "1.2.3.4", ""},
		{"any", "root", "pipe", ""},
		{"group", "nobody", "1.2.3.4", ""},
		{"none", "carol", "10.0.0.7", fromHost},
		{"root", "carol", "10.0.0.7", toUser}, // the superuser may not, either
		{"eve", "root", "127.0.0.1", toUser},
		{"", "root", "127.0.0.1", toUser},
	} {
		var peer net.Addr = &net.UnixAddr{Name: c.host, Net: "unix"}
		if ip := net.ParseIP(c.host); ip != nil {
			peer = &net.TCPAddr{IP: ip, Port: 7}
		}
		err := r.nn.Impersonate(c.real, c.user, peer)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s for %s from %s: %v", c.real, c.user, c.host, err)
			}
			continue
		}
		want := exception.New(exception.Authorization, c.want, c.real, c.user, hostOf(peer))
		var refused *exception.Error
		if !errors.As(err, &refused) || refused.Class != want.Class || refused.Message != want.Message {
			t.Errorf("%s for %s from %s: %v, want %v", c.real, c.user, c.host, err, want)
		}
	}
}
