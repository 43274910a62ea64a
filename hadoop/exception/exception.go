// Package exception declares the Java exceptions by which Hadoop's clients know
// what was refused, each once, for the RPC engine and for the services above it.
// A client acts on the class, and shows the message.
//
// It imports nothing of the project.
package exception

import "fmt"

// Class is the name of an exception's Java class, as it goes over the wire.
type Class string

// What Java itself declares.
const (
	IO                   Class = "java.io.IOException"
	FileNotFound         Class = "java.io.FileNotFoundException"
	UnsupportedOperation Class = "java.lang.UnsupportedOperationException"
	SASL                 Class = "javax.security.sasl.SaslException"
	JavaIllegalArgument  Class = "java.lang.IllegalArgumentException" // not Hadoop's own IllegalArgument
	Assertion            Class = "java.lang.AssertionError"
	IndexOutOfBounds     Class = "java.lang.IndexOutOfBoundsException"
	URISyntax            Class = "java.net.URISyntaxException"
)

// What Hadoop's RPC declares.
const (
	RPCServer       Class = "org.apache.hadoop.ipc.RpcServerException"
	IPC             Class = "org.apache.hadoop.ipc.IpcException"
	NoSuchMethod    Class = "org.apache.hadoop.ipc.RpcNoSuchMethodException"
	NoSuchProtocol  Class = "org.apache.hadoop.ipc.RpcNoSuchProtocolException"
	VersionMismatch Class = "org.apache.hadoop.ipc.RPC$VersionMismatch"
	Standby         Class = "org.apache.hadoop.ipc.StandbyException"
	Retriable       Class = "org.apache.hadoop.ipc.RetriableException" // nothing was done: try again later
	ServiceFailed   Class = "org.apache.hadoop.ha.ServiceFailedException"
	InvalidToken    Class = "org.apache.hadoop.security.token.SecretManager$InvalidToken"
)

// What all of Hadoop's file systems declare.
const (
	IllegalArgument         Class = "org.apache.hadoop.HadoopIllegalArgumentException"
	AccessControl           Class = "org.apache.hadoop.security.AccessControlException"
	Authorization           Class = "org.apache.hadoop.security.authorize.AuthorizationException"
	InvalidRequest          Class = "org.apache.hadoop.fs.InvalidRequestException"
	InvalidProtocolBuffer   Class = "org.apache.hadoop.thirdparty.protobuf.InvalidProtocolBufferException"
	InvalidPath             Class = "org.apache.hadoop.fs.InvalidPathException"
	FileAlreadyExists       Class = "org.apache.hadoop.fs.FileAlreadyExistsException"
	ParentNotDirectory      Class = "org.apache.hadoop.fs.ParentNotDirectoryException"
	PathIsNotDirectory      Class = "org.apache.hadoop.fs.PathIsNotDirectoryException"
	PathIsNotEmptyDirectory Class = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
)

// What HDFS declares.
const (
	AlreadyBeingCreated        Class = "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException"
	RecoveryInProgress         Class = "org.apache.hadoop.hdfs.protocol.RecoveryInProgressException"
	PathComponentTooLong       Class = "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"
	MaxDirectoryItemsExceeded  Class = "org.apache.hadoop.hdfs.protocol.FSLimitException$MaxDirectoryItemsExceededException"
	Snapshot                   Class = "org.apache.hadoop.hdfs.protocol.SnapshotException"
	ACL                        Class = "org.apache.hadoop.hdfs.protocol.AclException"
	XAttrNotFound              Class = "org.apache.hadoop.hdfs.protocol.XAttrNotFoundException"
	SnapshotAccessControl      Class = "org.apache.hadoop.hdfs.protocol.SnapshotAccessControlException"
	SafeMode                   Class = "org.apache.hadoop.hdfs.server.namenode.SafeModeException"
	UnsupportedAction          Class = "org.apache.hadoop.hdfs.server.namenode.UnsupportedActionException"
	NoErasureCodingPolicy      Class = "org.apache.hadoop.hdfs.protocol.NoECPolicySetException"
	LeaseExpired               Class = "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException"
	NotReplicatedYet           Class = "org.apache.hadoop.hdfs.server.namenode.NotReplicatedYetException"
	DiskBalancer               Class = "org.apache.hadoop.hdfs.server.diskbalancer.DiskBalancerException"
	ReplicaNotFound            Class = "org.apache.hadoop.hdfs.server.datanode.ReplicaNotFoundException"
	NSQuotaExceeded            Class = "org.apache.hadoop.hdfs.protocol.NSQuotaExceededException"
	DSQuotaExceeded            Class = "org.apache.hadoop.hdfs.protocol.DSQuotaExceededException"
	QuotaByStorageTypeExceeded Class = "org.apache.hadoop.hdfs.protocol.QuotaByStorageTypeExceededException"
)

// Error is a refusal that crosses the wire.
type Error struct {
	Class   Class
	Message string
}

// New returns a refusal of the class, its message formatted as by fmt.Sprintf.
func New(class Class, format string, args ...any) *Error {
	return &Error{Class: class, Message: fmt.Sprintf(format, args...)}
}

func (e *Error) Error() string { return string(e.Class) + ": " + e.Message }
