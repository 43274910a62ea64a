package hdfs

import "github.com/verbena-data/verbena/hadoop/rpc"

// repeatable tells how a NameNode takes a call of ClientProtocol that it gets twice, as
// the annotations of Hadoop's interface say it and Verbena's NameNode keeps it. Methods
// that are not named are not to be repeated.
func repeatable(method string) rpc.Repeat { return repeats[method] }

var repeats = map[string]rpc.Repeat{
	"abandonBlock":           rpc.Idempotent,
	"addBlock":               rpc.Idempotent,
	"append":                 rpc.AtMostOnce,
	"complete":               rpc.Idempotent,
	"concat":                 rpc.AtMostOnce,
	"create":                 rpc.AtMostOnce,
	"delete":                 rpc.AtMostOnce,
	"fsync":                  rpc.Idempotent,
	"getAdditionalDatanode":  rpc.Idempotent,
	"getBlockLocations":      rpc.Idempotent,
	"getContentSummary":      rpc.Idempotent,
	"getDataEncryptionKey":   rpc.Idempotent,
	"getDatanodeReport":      rpc.Idempotent,
	"getFileInfo":            rpc.Idempotent,
	"getFileLinkInfo":        rpc.Idempotent,
	"getFsStats":             rpc.Idempotent,
	"getListing":             rpc.Idempotent,
	"getPreferredBlockSize":  rpc.Idempotent,
	"getServerDefaults":      rpc.Idempotent,
	"isFileClosed":           rpc.Idempotent,
	"mkdirs":                 rpc.Idempotent,
	"recoverLease":           rpc.Idempotent,
	"rename":                 rpc.AtMostOnce,
	"rename2":                rpc.AtMostOnce,
	"renewLease":             rpc.Idempotent,
	"reportBadBlocks":        rpc.Idempotent,
	"setOwner":               rpc.Idempotent,
	"setPermission":          rpc.Idempotent,
	"setReplication":         rpc.Idempotent,
	"setSafeMode":            rpc.Idempotent,
	"setTimes":               rpc.Idempotent,
	"truncate":               rpc.Idempotent,
	"updateBlockForPipeline": rpc.Idempotent,
	"updatePipeline":         rpc.AtMostOnce,
}
