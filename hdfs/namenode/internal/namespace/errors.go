package namespace

import "fmt"

// Error is an operation's refusal, with the Java class by which HDFS's
// clients know it.
type Error struct {
	Class   string
	Message string
}

func (e *Error) Error() string { return e.Class + ": " + e.Message }

// Java classes of exceptions.
const (
	ioException           = "java.io.IOException"
	fileNotFound          = "java.io.FileNotFoundException"
	illegalArgument       = "org.apache.hadoop.HadoopIllegalArgumentException"
	invalidPath           = "org.apache.hadoop.fs.InvalidPathException"
	accessControl         = "org.apache.hadoop.security.AccessControlException"
	fileAlreadyExists     = "org.apache.hadoop.fs.FileAlreadyExistsException"
	parentNotDirectory    = "org.apache.hadoop.fs.ParentNotDirectoryException"
	notEmptyDirectory     = "org.apache.hadoop.fs.PathIsNotEmptyDirectoryException"
	alreadyBeingCreated   = "org.apache.hadoop.hdfs.protocol.AlreadyBeingCreatedException"
	leaseExpired          = "org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException"
	componentTooLong      = "org.apache.hadoop.hdfs.protocol.FSLimitException$PathComponentTooLongException"
	tooManyDirectoryItems = "org.apache.hadoop.hdfs.protocol.FSLimitException$MaxDirectoryItemsExceededException"
)

func exception(class, format string, args ...any) *Error {
	return &Error{Class: class, Message: fmt.Sprintf(format, args...)}
}
