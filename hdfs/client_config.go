package hdfs

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/verbena-data/verbena/hadoop/conf"
	"github.com/verbena-data/verbena/hdfs/internal/client/writer"
	"github.com/verbena-data/verbena/hdfs/internal/hdfspb"
	"github.com/verbena-data/verbena/hdfs/internal/native"
	"github.com/verbena-data/verbena/hdfs/internal/transfer"
)

// ClientConfig configures a [Client]. Zero values stand for the defaults, which are
// Hadoop's where nothing else is said. [ClientConfig.Take] fills it from Hadoop's
// properties.
type ClientConfig struct {
	// NameNodes are their addresses, host:port. With several of them, the client finds
	// the one that is active.
	NameNodes []string
	// User is who the client acts as; default HADOOP_USER_NAME, or who runs the process.
	// RealUser is who it is, if that is another, who must be allowed to act for User.
	User, RealUser string
	// Dialer has the client's bytes travel over Verbena's endpoints; nil means TCP. It is
	// to be closed after the client.
	Dialer *Dialer
	// LegacyTransfers has blocks written and read by HDFS's data transfer protocol alone.
	// Otherwise a client with a Dialer takes hdfs-data/1 to DataNodes that have it.
	LegacyTransfers bool
	// NoWindows has small reads answered by messages alone, not read one-sidedly from
	// memory that DataNodes expose.
	NoWindows bool
	Logger    *slog.Logger // default: slog.Default()

	// Replication and BlockSize are those of new files; default: what the NameNode says.
	Replication int
	BlockSize   int64 // bytes
	// Checksum and BytesPerChecksum protect new files; default: what the NameNode says.
	Checksum         ChecksumType
	BytesPerChecksum int
	// Umask is taken from the modes of new files and directories for which no mode is
	// given, unless their directory has a default access control list, which takes its
	// place. Default 022.
	Umask *uint32

	// Patience is for how long a call is tried at NameNodes that do not answer it. Default
	// 3 min with several NameNodes, and 45 s with one.
	Patience time.Duration
	// Timeouts is how many attempts of a call may time out, at connecting or by CallTimeout,
	// without their time counting as Patience. The default is 15 with several NameNodes and 9
	// with one if Patience is not set either, and otherwise none; so it is below 0. More than
	// that default are of no use by CallTimeout.
	Timeouts int
	// RetryPause is the mean pause before a call is tried again that no NameNode takes. It
	// doubles up to MaxRetryPause. Defaults 100 ms and 1 s.
	RetryPause, MaxRetryPause time.Duration
	// ConnectTimeout bounds one attempt to connect to a NameNode by plain TCP. Default 20 s,
	// which is what a Dialer has for its endpoints.
	ConnectTimeout time.Duration
	// CallTimeout is for how long a NameNode may be silent that has taken a call; then
	// the next one is asked, if the call may be repeated. Default 2 min.
	CallTimeout time.Duration
	// SlowCall is called, if it is set, when a call has had no answer for 10 s, with the address
	// of the NameNode that is asked. Several goroutines may call it at once.
	SlowCall func(nameNode string)
	// PacketSize is of how many bytes of data packets are. By default it is what suits the
	// transport (see [verbena.Tuning].Packet), and 256 KiB for HDFS's own protocol.
	PacketSize int
	// Window is how many bytes of packets a file that is written holds at most, or two
	// packets if that is more; 64 MiB at most. Default 4 MiB.
	Window int
	// Replace tells when a DataNode that failed is replaced in a pipeline. The write fails
	// if none can be had, unless ReplaceBestEffort is set, or at least
	// ReplaceMinReplication DataNodes (if that is not 0) are left.
	Replace               ReplacePolicy
	ReplaceBestEffort     bool
	ReplaceMinReplication int
	// BlockRetries is how often a block is begun anew on other DataNodes; default 3, below
	// 0 never.
	BlockRetries int
	// ExcludeFor is for how long a file gets no further block on a DataNode at which one
	// could not be begun. Default 10 min.
	ExcludeFor time.Duration
	// LocateRetries is how often the NameNode is asked again for a block, or to close a
	// file, that waits for the replicas of the blocks before; the pauses double from
	// LocatePause to a minute. Defaults 5 and 400 ms; below 0 it is not asked again.
	LocateRetries int
	LocatePause   time.Duration
	// RestartTimeout is for how long a DataNode is waited for that says it restarts;
	// default 30 s.
	RestartTimeout time.Duration
	// LeaseInterval is how often the lease on files being written is renewed; default
	// 30 s. It is to be at most half of what the NameNode allows.
	LeaseInterval time.Duration

	// Prefetch is of how many bytes of a file the NameNode is asked for the blocks at
	// once; default 10 blocks of 128 MiB.
	Prefetch int64
	// ReadFailures is how often all DataNodes of a block may fail a read one after the
	// other; the pauses between grow by ReadPause. Defaults 5 and 1 s; below 0 the first
	// time ends the read.
	ReadFailures int
	ReadPause    time.Duration
	// HedgeAfter is after how long a positional read is begun at a second DataNode, too; 0
	// for never. The read returns with the first answer. At most Hedges of those are under
	// way, default 16; one is until both DataNodes have answered.
	HedgeAfter time.Duration
	Hedges     int
	// ReadAhead is how many pieces of 4 MiB of a file WriteTo reads at once; below 2 it
	// reads one after the other, without a copy.
	ReadAhead int
	// Unverified reads without checksums.
	Unverified bool

	// NoLocalReads has blocks on this host, too, read over connections; so has a Dialer of
	// one transport alone. Otherwise their DataNodes hand over descriptors: Verbena's by
	// themselves, Apache's at DomainSocket, which is what dfs.domain.socket.path names.
	NoLocalReads bool
	DomainSocket string
	// LocalReplicas is how many blocks of this host are kept open, two descriptors each,
	// for LocalExpiry. Defaults 256 and 5 min.
	LocalReplicas int
	LocalExpiry   time.Duration
	// LocalUnverified reads those blocks without checksums.
	LocalUnverified bool

	// UseHostname dials DataNodes by name, not by address.
	UseHostname bool
	// SocketTimeout is for how long a DataNode may be silent, WriteTimeout for how long
	// it may take nothing. Defaults 60 s and 8 min.
	SocketTimeout, WriteTimeout time.Duration
	// IdleConnections are kept for the next read for IdleTime, at most so many of each kind:
	// those of HDFS's data transfer protocol, and, with a Dialer, plain ones for long reads
	// from DataNodes to which there is nothing better than TCP. Defaults 16 and 3 s; below 0
	// none is kept.
	IdleConnections int
	IdleTime        time.Duration

	// TrashInterval is after how long trash is removed; 0 means what the NameNode says.
	TrashInterval time.Duration
	// ChecksumMode is of which kind [Client.Checksum] is; default MD5MD5CRC.
	ChecksumMode ChecksumMode
}

// ReplacePolicy tells when a DataNode that failed is replaced in a pipeline.
type ReplacePolicy int

const (
	// ReplaceDefault replaces if a file has three replicas or more, and half of them are
	// lost, or its bytes have been flushed or appended.
	ReplaceDefault ReplacePolicy = iota
	// ReplaceAlways replaces each.
	ReplaceAlways
	// ReplaceNever replaces none.
	ReplaceNever
)

func (r ReplacePolicy) policy() writer.Replace { return writer.Replace(r) }

// ChecksumType is by what chunks of a block are protected.
type ChecksumType int

const (
	// ChecksumDefault is what the NameNode suggests.
	ChecksumDefault ChecksumType = iota
	// ChecksumNone is no protection.
	ChecksumNone
	// ChecksumCRC32 is that of zip and Ethernet.
	ChecksumCRC32
	// ChecksumCRC32C is Castagnoli's, for which processors have an instruction.
	ChecksumCRC32C
)

var checksumNames = map[string]ChecksumType{"NULL": ChecksumNone, "CRC32": ChecksumCRC32, "CRC32C": ChecksumCRC32C}

func (t ChecksumType) String() string {
	for name, as := range checksumNames {
		if as == t {
			return name
		}
	}
	return "DEFAULT"
}

// proto is the type as the protocol has it.
func (t ChecksumType) proto() hdfspb.ChecksumTypeProto {
	return hdfspb.ChecksumTypeProto(t - ChecksumNone)
}

func checksumType(p hdfspb.ChecksumTypeProto) ChecksumType { return ChecksumType(p) + ChecksumNone }

// Defaults of a client.
const (
	defaultPacket = 256 << 10 // where no transport says how many
	defaultWindow = 4 << 20
	largestWindow = native.MaxWindow
)

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// complete sets what is not set, and refuses what can't be.
func (c *ClientConfig) complete() error {
	if len(c.NameNodes) == 0 {
		return errors.New("an HDFS client needs the address of a NameNode: set ClientConfig.NameNodes, or take Hadoop's configuration, which has it as fs.defaultFS")
	}
	for _, address := range c.NameNodes {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("address of a NameNode: %w: want host:port", err)
		}
	}
	if c.User == "" {
		var err error
		if c.User, err = currentUser(); err != nil {
			return err
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	fill(&c.ConnectTimeout, dialTimeout)
	fill(&c.Window, defaultWindow)
	fill(&c.BlockRetries, 3)
	fill(&c.LocateRetries, 5)
	fill(&c.ExcludeFor, 10*time.Minute)
	fill(&c.LocatePause, 400*time.Millisecond)
	fill(&c.RestartTimeout, 30*time.Second)
	fill(&c.LeaseInterval, 30*time.Second)
	fill(&c.Prefetch, 10*128<<20)
	fill(&c.ReadFailures, 5)
	fill(&c.ReadPause, time.Second)
	fill(&c.Hedges, 16)
	fill(&c.SocketTimeout, time.Minute)
	for _, count := range []*int{&c.BlockRetries, &c.LocateRetries, &c.ReadFailures} {
		*count = max(0, *count)
	}
	if c.Umask == nil {
		umask := uint32(0o022)
		c.Umask = &umask
	}
	return c.check()
}

// Bounds of a client's settings.
const (
	largestPacket      = 8 << 20 // bytes; HDFS takes packets of 16 MiB with their checksums
	largestReplication = math.MaxInt16
	mostTries          = 1 << 20
	longestPause       = time.Hour // between tries
)

// check refuses what no client can do. What is 0 still means the default.
func (c *ClientConfig) check() error {
	for _, n := range []struct {
		name               string
		value, least, most int64
	}{
		{"Replication", int64(c.Replication), 0, largestReplication},
		{"BlockSize", c.BlockSize, 0, math.MaxInt64},
		{"Checksum", int64(c.Checksum), 0, int64(ChecksumCRC32C)},
		{"BytesPerChecksum", int64(c.BytesPerChecksum), 0, transfer.MaxBytesPerChecksum},
		{"Umask", int64(*c.Umask), 0, 0o777},
		{"PacketSize", int64(c.PacketSize), 0, largestPacket},
		{"Window", int64(c.Window), 1, math.MaxInt64},
		{"Replace", int64(c.Replace), 0, int64(ReplaceNever)},
		{"ReplaceMinReplication", int64(c.ReplaceMinReplication), 0, largestReplication},
		{"BlockRetries", int64(c.BlockRetries), 0, mostTries},
		{"LocateRetries", int64(c.LocateRetries), 0, mostTries},
		{"ReadFailures", int64(c.ReadFailures), 0, mostTries},
		{"Prefetch", c.Prefetch, 1, math.MaxInt64},
		{"Hedges", int64(c.Hedges), 1, math.MaxInt64},
		{"LocalReplicas", int64(c.LocalReplicas), 0, math.MaxInt64},
		{"ChecksumMode", int64(c.ChecksumMode), 0, int64(CompositeCRC)},
	} {
		if n.value < n.least || n.value > n.most {
			return fmt.Errorf("ClientConfig.%s is %d: want %d to %d, or 0 for the default", n.name, n.value, max(n.least, 1), n.most)
		}
	}
	for _, d := range []struct {
		name        string
		value, most time.Duration
	}{
		{"Patience", c.Patience, math.MaxInt64},
		{"RetryPause", c.RetryPause, longestPause},
		{"MaxRetryPause", c.MaxRetryPause, longestPause},
		{"ConnectTimeout", c.ConnectTimeout, math.MaxInt64},
		{"CallTimeout", c.CallTimeout, math.MaxInt64},
		{"ExcludeFor", c.ExcludeFor, math.MaxInt64},
		{"LocatePause", c.LocatePause, longestPause},
		{"RestartTimeout", c.RestartTimeout, math.MaxInt64},
		{"LeaseInterval", c.LeaseInterval, leaseLost},
		{"ReadPause", c.ReadPause, longestPause},
		{"HedgeAfter", c.HedgeAfter, math.MaxInt64},
		{"LocalExpiry", c.LocalExpiry, math.MaxInt64},
		{"SocketTimeout", c.SocketTimeout, math.MaxInt64},
		{"WriteTimeout", c.WriteTimeout, math.MaxInt64},
		{"IdleTime", c.IdleTime, math.MaxInt64},
		{"TrashInterval", c.TrashInterval, math.MaxInt64},
	} {
		if d.value < 0 {
			return fmt.Errorf("ClientConfig.%s is %v: want more than 0, or 0 for the default", d.name, d.value)
		}
		if d.value > d.most {
			return fmt.Errorf("ClientConfig.%s is %v: want %v at most", d.name, d.value, d.most)
		}
	}
	return nil
}

// LoadHadoopConf reads core-site.xml and hdfs-site.xml of the directory HADOOP_CONF_DIR,
// or of HADOOP_HOME's conf or etc/hadoop, and then more files or directories. The result is
// nil if there are none.
func LoadHadoopConf(more ...string) (*conf.Properties, error) {
	var dirs []string
	if dir := os.Getenv("HADOOP_CONF_DIR"); dir != "" {
		dirs = append(dirs, dir)
	} else if home := os.Getenv("HADOOP_HOME"); home != "" {
		for _, dir := range []string{home + "/etc/hadoop", home + "/conf"} {
			if _, err := os.Stat(dir); err == nil {
				dirs = append(dirs, dir)
				break
			}
		}
	}
	if dirs = append(dirs, more...); len(dirs) == 0 {
		return nil, nil
	}
	return conf.Read(dirs...)
}

// NameNodesOf finds the NameNodes of a file system in Hadoop's properties. uri is
// hdfs://NAMESERVICE or hdfs://HOST:PORT; empty means fs.defaultFS.
func NameNodesOf(p *conf.Properties, uri string) ([]string, error) {
	if uri == "" {
		uri, _ = p.String("fs.defaultFS")
	}
	var host string
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			return nil, fmt.Errorf("file system %q: %w", uri, err)
		}
		if u.Scheme != "hdfs" || u.Host == "" {
			return nil, fmt.Errorf("file system %q: want hdfs://HOST:PORT or hdfs://NAMESERVICE", uri)
		}
		host = u.Host
	}
	services := p.List("dfs.nameservices")
	for _, service := range services {
		if host == service || host == "" && len(services) == 1 {
			return nameNodesOfService(p, service)
		}
	}
	if host == "" {
		if address, ok := p.String("dfs.namenode.rpc-address"); ok {
			return []string{withDefaultPort(address)}, nil
		}
		return nil, nil
	}
	return []string{withDefaultPort(host)}, nil
}

func nameNodesOfService(p *conf.Properties, service string) ([]string, error) {
	ids := p.List("dfs.ha.namenodes." + service)
	if len(ids) == 0 {
		if address, ok := p.String("dfs.namenode.rpc-address." + service); ok {
			return []string{withDefaultPort(address)}, nil
		}
		return nil, fmt.Errorf("name service %s: neither dfs.ha.namenodes.%s nor dfs.namenode.rpc-address.%s is set", service, service, service)
	}
	var out []string
	for _, id := range ids {
		address, ok := p.String("dfs.namenode.rpc-address." + service + "." + id)
		if !ok {
			return nil, fmt.Errorf("name service %s: dfs.namenode.rpc-address.%s.%s is not set", service, service, id)
		}
		out = append(out, withDefaultPort(address))
	}
	return out, nil
}

// withDefaultPort adds the port of NameNodes to an address without one.
func withDefaultPort(address string) string {
	if _, _, err := net.SplitHostPort(address); err == nil {
		return address
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), "8020")
}
