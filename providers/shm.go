//go:build !noshm

package providers

import (
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/shm"
)

var shmEntry = provider("shm", []field[shm.Config]{
	{"socket-dir", "directory for the listeners' sockets, which containers have to share", "none: abstract names, which reach one network namespace",
		func(c *shm.Config, v string) error { return text(&c.SocketDirectory, v) }},
	{"allow-uids", "users besides the own one whose processes may connect, by number; both sides have to name the other", "none",
		func(c *shm.Config, v string) error { return users(&c.AllowUIDs, v) }},
	{"huge-pages", "take large memory from the host's reserved huge pages (vm.nr_hugepages), while there are any; not beside allow-uids", "false",
		func(c *shm.Config, v string) error { return truth(&c.HugePages, v) }},
	{"access-timeout", "how long to wait for a peer that is suspended in the middle of an access, or reads no answers", "5s",
		func(c *shm.Config, v string) error { return duration(&c.AccessTimeout, v) }},
	{"shared-receive-slots", "messages that may wait in a connection with shared receives", "128",
		func(c *shm.Config, v string) error { return number(&c.SharedReceiveSlots, v) }},
}, shm.Config.Validate, func(c shm.Config, _ Config) rdma.Provider { return shm.New(c) })
