package conf

// Current is the name that a property has now, which may have been called name before. Hadoop
// takes either, and so does everything here.
func Current(name string) string {
	if now, ok := renamed[name]; ok {
		return now
	}
	return name
}

// renamed has the older names of those properties that something here heeds, as Hadoop's
// Configuration and HdfsConfiguration have them.
var renamed = map[string]string{
	"dfs.block.size":                               "dfs.blocksize",
	"dfs.data.dir":                                 "dfs.datanode.data.dir",
	"dfs.federation.nameservices":                  "dfs.nameservices",
	"dfs.max-repl-streams":                         "dfs.namenode.replication.max-streams",
	"dfs.name.dir":                                 "dfs.namenode.name.dir",
	"dfs.namenode.replication.interval":            "dfs.namenode.redundancy.interval.seconds",
	"dfs.namenode.replication.pending.timeout-sec": "dfs.namenode.reconstruction.pending.timeout-sec",
	"dfs.permissions.supergroup":                   "dfs.permissions.superusergroup",
	"dfs.read.prefetch.size":                       "dfs.client.read.prefetch.size",
	"dfs.replication.interval":                     "dfs.namenode.redundancy.interval.seconds",
	"dfs.replication.pending.timeout.sec":          "dfs.namenode.reconstruction.pending.timeout-sec",
	"dfs.safemode.extension":                       "dfs.namenode.safemode.extension",
	"dfs.safemode.threshold.pct":                   "dfs.namenode.safemode.threshold-pct",
	"dfs.socket.timeout":                           "dfs.client.socket-timeout",
	"dfs.umaskmode":                                "fs.permissions.umask-mode",
	"dfs.write.packet.size":                        "dfs.client-write-packet-size",
	"fs.default.name":                              "fs.defaultFS",
	"heartbeat.recheck.interval":                   "dfs.namenode.heartbeat.recheck-interval",
	"io.bytes.per.checksum":                        "dfs.bytes-per-checksum",
}
