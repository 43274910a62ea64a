//go:build !noiwarp

package providers

import (
	"github.com/verbena-data/verbena/rdma"
	"github.com/verbena-data/verbena/rdma/iwarp"
)

var iwarpEntry = provider("iwarp", []field[iwarp.Config]{
	{"remote", "use it between hosts, too; nothing authenticates the peers, so only on a trusted network", "false",
		func(c *iwarp.Config, v string) error { return truth(&c.AllowRemote, v) }},
	{"allow-uids", "users of this host besides the own one whose processes may connect, by number; both sides have to name the other", "none",
		func(c *iwarp.Config, v string) error { return users(&c.AllowUIDs, v) }},
	{"peer-timeout", "how long a peer's host may be silent", "30s",
		func(c *iwarp.Config, v string) error { return duration(&c.PeerTimeout, v) }},
	{"no-crc", "ask for no checksums; the peer may", "false",
		func(c *iwarp.Config, v string) error { return truth(&c.NoCRC, v) }},
	{"markers", "ask peers for markers, which some adapters need", "false",
		func(c *iwarp.Config, v string) error { return truth(&c.Markers, v) }},
	{"revision", "of MPA that is offered, 1 or 2", "2",
		func(c *iwarp.Config, v string) error { return number(&c.Revision, v) }},
	{"segment-sized", "keep each unit within a TCP segment, which some adapters need", "false",
		func(c *iwarp.Config, v string) error { return truth(&c.SegmentSized, v) }},
	{"not-peer-to-peer", "ask for no first message of the initiator; better towards Linux siw", "false",
		func(c *iwarp.Config, v string) error { return truth(&c.NotPeerToPeer, v) }},
	{"speak-first", "the side that accepts may send before the other has; for siw with servers that speak first", "false",
		func(c *iwarp.Config, v string) error { return truth(&c.SpeakFirst, v) }},
}, iwarp.Config.Validate, func(c iwarp.Config, cfg Config) rdma.Provider {
	c.Logger = cfg.Logger
	return iwarp.New(c)
})
