package rpc

import (
	"errors"

	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

// Java class names of what the engine itself answers.
const (
	classIOException      = "java.io.IOException"
	classRPCException     = "org.apache.hadoop.ipc.RpcServerException"
	classNoSuchMethod     = "org.apache.hadoop.ipc.RpcNoSuchMethodException"
	classNoSuchProtocol   = "org.apache.hadoop.ipc.RpcNoSuchProtocolException"
	classVersionMismatch  = "org.apache.hadoop.ipc.RPC$VersionMismatch"
	classAccessControl    = "org.apache.hadoop.security.AccessControlException"
	statusSuccess         = rpcpb.RpcResponseHeaderProto_SUCCESS
	statusError           = rpcpb.RpcResponseHeaderProto_ERROR
	statusFatal           = rpcpb.RpcResponseHeaderProto_FATAL
	codeApplication       = rpcpb.RpcResponseHeaderProto_ERROR_APPLICATION
	codeNoSuchMethod      = rpcpb.RpcResponseHeaderProto_ERROR_NO_SUCH_METHOD
	codeNoSuchProtocol    = rpcpb.RpcResponseHeaderProto_ERROR_NO_SUCH_PROTOCOL
	codeServer            = rpcpb.RpcResponseHeaderProto_ERROR_RPC_SERVER
	codeProtocolVersion   = rpcpb.RpcResponseHeaderProto_ERROR_RPC_VERSION_MISMATCH
	codeSerializing       = rpcpb.RpcResponseHeaderProto_ERROR_SERIALIZING_RESPONSE
	codeFatalHeader       = rpcpb.RpcResponseHeaderProto_FATAL_INVALID_RPC_HEADER
	codeFatalRequest      = rpcpb.RpcResponseHeaderProto_FATAL_DESERIALIZING_REQUEST
	codeFatalVersion      = rpcpb.RpcResponseHeaderProto_FATAL_VERSION_MISMATCH
	codeFatalUnauthorized = rpcpb.RpcResponseHeaderProto_FATAL_UNAUTHORIZED
	codeFatalSerializing  = rpcpb.RpcResponseHeaderProto_FATAL_UNSUPPORTED_SERIALIZATION
)

// Error is an error that crosses the wire: the class name of a Java exception,
// which clients act on, and its message.
type Error struct {
	Class   string
	Message string
	// Fatal says that the connection ends with it.
	Fatal bool

	code rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto
}

func (e *Error) Error() string { return e.Class + ": " + e.Message }

// ErrClosed is what calls on a closed client or server return.
var ErrClosed = errors.New("rpc: closed")

func fatal(code rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto, class, message string) *Error {
	return &Error{Class: class, Message: message, Fatal: true, code: code}
}

func refuse(code rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto, class, message string) *Error {
	return &Error{Class: class, Message: message, code: code}
}

// onTheWire is err as the client gets it.
func onTheWire(err error) *Error {
	var e *Error
	if !errors.As(err, &e) {
		return refuse(codeApplication, classIOException, err.Error())
	}
	if e.code == 0 {
		copied := *e
		copied.code = codeApplication
		if e.Class == "" {
			copied.Class = classIOException
		}
		return &copied
	}
	return e
}
