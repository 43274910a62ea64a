package rpc

import (
	"errors"

	"github.com/verbena-data/verbena/hadoop/exception"
	"github.com/verbena-data/verbena/hadoop/rpc/internal/rpcpb"
)

const (
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

// failure is a refusal as it stands in a response.
type failure struct {
	*refusal
	fatal bool // the connection ends with it
	code  rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto
}

// refusal is named anew because a field named Error would hide the method.
type refusal = exception.Error

func (f *failure) Unwrap() error { return f.refusal }

func fatal(code rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto, class exception.Class, message string) *failure {
	return &failure{refusal: &exception.Error{Class: class, Message: message}, fatal: true, code: code}
}

func refuse(code rpcpb.RpcResponseHeaderProto_RpcErrorCodeProto, class exception.Class, message string) *failure {
	return &failure{refusal: &exception.Error{Class: class, Message: message}, code: code}
}

// onTheWire is err as the client gets it.
func onTheWire(err error) *failure {
	var own *failure
	if errors.As(err, &own) {
		return own
	}
	var refused *exception.Error
	if errors.As(err, &refused) {
		return &failure{refusal: refused, code: codeApplication}
	}
	var encode *encodeError
	if errors.As(err, &encode) {
		return refuse(codeSerializing, exception.IO, encode.Error())
	}
	return refuse(codeApplication, exception.IO, err.Error())
}
