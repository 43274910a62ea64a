package hdfs

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
)

// Take sets what Hadoop's properties say of clients, where nothing is set yet. It refuses
// what the properties demand and the client can't do.
func (c *ClientConfig) Take(p *conf.Properties) error {
	if mode, _ := p.String("hadoop.security.authentication"); strings.EqualFold(mode, "kerberos") {
		return fmt.Errorf("hadoop.security.authentication (%s) is kerberos, which this client does not do yet", p.From("hadoop.security.authentication"))
	}
	if level, ok := p.String("dfs.data.transfer.protection"); ok {
		return fmt.Errorf("dfs.data.transfer.protection (%s) is %s, which this client does not do yet", p.From("dfs.data.transfer.protection"), level)
	}
	if len(c.NameNodes) == 0 {
		var err error
		if c.NameNodes, err = NameNodesOf(p, ""); err != nil {
			return err
		}
	}
	for _, each := range clientProperties {
		if err := each.take(c, p, each.name); err != nil {
			return err
		}
	}
	return nil
}

// ClientProperty is one of Hadoop's properties that clients heed.
type ClientProperty struct{ Name, Means string }

// ClientProperties lists those that [ClientConfig.Take] heeds, beside where the NameNodes
// are: fs.defaultFS, dfs.nameservices, dfs.ha.namenodes.* and dfs.namenode.rpc-address.*.
func ClientProperties() []ClientProperty {
	out := make([]ClientProperty, len(clientProperties))
	for i, p := range clientProperties {
		out[i] = ClientProperty{p.name, p.means}
	}
	return out
}

type clientProperty struct {
	name, means string
	take        func(c *ClientConfig, p *conf.Properties, name string) error
}

const (
	replaceProperty = "dfs.client.block.write.replace-datanode-on-failure."
	hedgeThreshold  = "dfs.client.hedged.read.threshold.millis"
)

var clientProperties = []clientProperty{
	{"dfs.replication", "replicas of new files", takeInt(func(c *ClientConfig) *int { return &c.Replication })},
	{"dfs.blocksize", "bytes of a block of new files", func(c *ClientConfig, p *conf.Properties, name string) error {
		n, ok, err := p.Bytes(name)
		if ok && c.BlockSize == 0 {
			c.BlockSize = int64(n)
		}
		return err
	}},
	{"dfs.checksum.type", "CRC32C, CRC32 or NULL", func(c *ClientConfig, p *conf.Properties, name string) error {
		text, ok := p.String(name)
		if !ok || c.Checksum != ChecksumDefault {
			return nil
		}
		kind, known := checksumNames[strings.ToUpper(text)]
		if !known {
			return fmt.Errorf("%s (%s): %q is none of CRC32C, CRC32 and NULL", name, p.From(name), text)
		}
		c.Checksum = kind
		return nil
	}},
	{"dfs.bytes-per-checksum", "bytes that one checksum covers", takeInt(func(c *ClientConfig) *int { return &c.BytesPerChecksum })},
	{"dfs.checksum.combine.mode", "checksum of a file: MD5MD5CRC or COMPOSITE_CRC", func(c *ClientConfig, p *conf.Properties, name string) error {
		text, ok := p.String(name)
		if !ok || c.ChecksumMode != MD5MD5CRC {
			return nil
		}
		switch strings.ToUpper(text) {
		case "MD5MD5CRC":
		case "COMPOSITE_CRC":
			c.ChecksumMode = CompositeCRC
		default:
			return fmt.Errorf("%s (%s): %q is neither MD5MD5CRC nor COMPOSITE_CRC", name, p.From(name), text)
		}
		return nil
	}},
	{"fs.permissions.umask-mode", "taken from the modes of new files and directories: octal, or what is left, such as u=rwx,g=rx,o=", func(c *ClientConfig, p *conf.Properties, name string) error {
		text, ok := p.String(name)
		if !ok || c.Umask != nil {
			return nil
		}
		umask, err := parseUmask(text)
		if err != nil {
			return fmt.Errorf("%s (%s): %q: %w", name, p.From(name), text, err)
		}
		c.Umask = &umask
		return nil
	}},
	{"fs.trash.interval", "minutes until trash is removed", takeTime(time.Minute, func(c *ClientConfig) *time.Duration { return &c.TrashInterval })},
	{"dfs.client-write-packet-size", "bytes of a packet", takeInt(func(c *ClientConfig) *int { return &c.PacketSize })},
	{"dfs.client.write.max-packets-in-flight", "packets of a file that wait for acknowledgements", func(c *ClientConfig, p *conf.Properties, name string) error {
		n, ok, err := p.Number(name, 1)
		if ok && c.Window == 0 {
			size := int64(c.PacketSize)
			fill(&size, defaultPacket)
			c.Window = int(min(n, largestWindow/size) * size)
		}
		return err
	}},
	{"dfs.client.write.exclude.nodes.cache.expiry.interval.millis", "ms for which a DataNode that failed gets no further block of a file", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.ExcludeFor })},
	{replaceProperty + "enable", "replace DataNodes that fail in a pipeline", func(c *ClientConfig, p *conf.Properties, name string) error {
		on, ok, err := p.Bool(name)
		if ok && !on && c.Replace == ReplaceDefault {
			c.Replace = ReplaceNever
		}
		return err
	}},
	{replaceProperty + "policy", "when: DEFAULT, ALWAYS or NEVER", func(c *ClientConfig, p *conf.Properties, name string) error {
		text, ok := p.String(name)
		if !ok || c.Replace != ReplaceDefault {
			return nil
		}
		policy, known := map[string]ReplacePolicy{"DEFAULT": ReplaceDefault, "ALWAYS": ReplaceAlways, "NEVER": ReplaceNever}[strings.ToUpper(text)]
		if !known {
			return fmt.Errorf("%s (%s): %q is none of DEFAULT, ALWAYS and NEVER", name, p.From(name), text)
		}
		c.Replace = policy
		return nil
	}},
	{replaceProperty + "best-effort", "go on without, if none can be had", takeBool(func(c *ClientConfig) *bool { return &c.ReplaceBestEffort })},
	{replaceProperty + "min-replication", "go on without, if so many are left", takeInt(func(c *ClientConfig) *int { return &c.ReplaceMinReplication })},
	{"dfs.client.block.write.retries", "how often a block is begun anew", takeCount(func(c *ClientConfig) *int { return &c.BlockRetries })},
	{"dfs.client.block.write.locateFollowingBlock.retries", "how often the NameNode is asked again for a block", takeCount(func(c *ClientConfig) *int { return &c.LocateRetries })},
	{"dfs.client.block.write.locateFollowingBlock.initial.delay.ms", "first pause between", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.LocatePause })},
	{"dfs.client.datanode-restart.timeout", "how long a DataNode that restarts is waited for", takeTime(time.Second, func(c *ClientConfig) *time.Duration { return &c.RestartTimeout })},
	{"dfs.client.read.prefetch.size", "bytes of a file whose blocks the NameNode is asked for at once", func(c *ClientConfig, p *conf.Properties, name string) error {
		n, ok, err := p.Bytes(name)
		if ok && c.Prefetch == 0 {
			c.Prefetch = int64(min(n, math.MaxInt64))
		}
		return err
	}},
	{"dfs.client.max.block.acquire.failures", "how often all DataNodes of a block may fail a read", takeCount(func(c *ClientConfig) *int { return &c.ReadFailures })},
	{"dfs.client.retry.window.base", "ms by which the pauses between grow", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.ReadPause })},
	{"dfs.client.hedged.read.threadpool.size", "hedged reads at once; 0 for none", func(c *ClientConfig, p *conf.Properties, name string) error {
		n, ok, err := p.Number(name, 0)
		if err != nil || !ok || n == 0 {
			return err
		}
		fill(&c.Hedges, int(n))
		after, ok, err := p.Time(hedgeThreshold, time.Millisecond)
		if !ok {
			after = 500 * time.Millisecond
		}
		fill(&c.HedgeAfter, max(after, time.Millisecond))
		return err
	}},
	{hedgeThreshold, "ms after which a read is hedged, if the one before allows any", func(_ *ClientConfig, p *conf.Properties, name string) error {
		_, _, err := p.Time(name, time.Millisecond)
		return err
	}},
	{"dfs.client.read.shortcircuit", "read blocks of this host without their DataNode; true unless it is set", func(c *ClientConfig, p *conf.Properties, name string) error {
		on, ok, err := p.Bool(name)
		c.NoLocalReads = c.NoLocalReads || ok && !on
		if path, set := p.String("dfs.domain.socket.path"); set && on {
			fill(&c.DomainSocket, path)
		}
		return err
	}},
	{"dfs.domain.socket.path", "where DataNodes of this host have their socket, _PORT for the port, if the one before is true; Verbena's are found without", func(*ClientConfig, *conf.Properties, string) error { return nil }},
	{"dfs.client.read.shortcircuit.skip.checksum", "read them without checksums", takeBool(func(c *ClientConfig) *bool { return &c.LocalUnverified })},
	{"dfs.client.read.shortcircuit.streams.cache.size", "blocks of this host kept open", takeInt(func(c *ClientConfig) *int { return &c.LocalReplicas })},
	{"dfs.client.read.shortcircuit.streams.cache.expiry.ms", "for how long", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.LocalExpiry })},
	{"verbena.client.no-windows", "make small reads by messages alone, not from memory that DataNodes expose", takeBool(func(c *ClientConfig) *bool { return &c.NoWindows })},
	{"verbena.client.legacy-transfers", "write and read blocks by the data transfer protocol alone", takeBool(func(c *ClientConfig) *bool { return &c.LegacyTransfers })},
	{failoverAttempts, "how often a call goes on to the next of several NameNodes", takeFailover},
	{failoverPause, "ms of the first pause between", takeFailover},
	{failoverMaxPause, "ms of the longest", takeFailover},
	{connectRetries, "how often a sole NameNode that can't be reached is dialled again", takeConnecting},
	{connectPause, "ms between", takeConnecting},
	{connectTimeouts, "how often after a dial that timed out", takeConnecting},
	{"ipc.client.connect.timeout", "ms within which a NameNode has to take a connection", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.ConnectTimeout })},
	{"ipc.client.rpc-timeout.ms", "ms within which a NameNode has to answer a call", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.CallTimeout })},
	{"dfs.client.use.datanode.hostname", "dial DataNodes by name", takeBool(func(c *ClientConfig) *bool { return &c.UseHostname })},
	{"dfs.client.socket-timeout", "ms for which a DataNode may be silent", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.SocketTimeout })},
	{"dfs.datanode.socket.write.timeout", "ms for which a DataNode may take nothing", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.WriteTimeout })},
	{"dfs.client.socketcache.capacity", "connections kept for the next read", takeCount(func(c *ClientConfig) *int { return &c.IdleConnections })},
	{"dfs.client.socketcache.expiryMsec", "for how long", takeTime(time.Millisecond, func(c *ClientConfig) *time.Duration { return &c.IdleTime })},
}

func takeInt(field func(*ClientConfig) *int) func(*ClientConfig, *conf.Properties, string) error {
	return func(c *ClientConfig, p *conf.Properties, name string) error {
		n, ok, err := p.Number(name, 0)
		if ok {
			fill(field(c), int(n))
		}
		return err
	}
}

// takeCount takes a number of which 0 means none, where a field of 0 means the default.
func takeCount(field func(*ClientConfig) *int) func(*ClientConfig, *conf.Properties, string) error {
	return func(c *ClientConfig, p *conf.Properties, name string) error {
		n, ok, err := p.Number(name, 0)
		if ok && n == 0 {
			n = -1
		}
		if ok {
			fill(field(c), int(n))
		}
		return err
	}
}

func takeTime(unit time.Duration, field func(*ClientConfig) *time.Duration) func(*ClientConfig, *conf.Properties, string) error {
	return func(c *ClientConfig, p *conf.Properties, name string) error {
		d, ok, err := p.Time(name, unit)
		if ok {
			fill(field(c), d)
		}
		return err
	}
}

func takeBool(field func(*ClientConfig) *bool) func(*ClientConfig, *conf.Properties, string) error {
	return func(c *ClientConfig, p *conf.Properties, name string) error {
		on, ok, err := p.Bool(name)
		if ok {
			*field(c) = *field(c) || on
		}
		return err
	}
}
