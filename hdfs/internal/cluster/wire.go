package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MaxMessage is the longest message in bytes, header included. A block report
// that would be longer is sent in parts.
const MaxMessage = 16 << 20

const (
	headerSize = 12
	version    = 1
)

type kind uint8

const (
	kindRequest kind = iota
	kindResponse
	kindError
)

type method uint8

const (
	methodRegister method = 1 + iota
	methodHeartbeat
	methodBlockReport
	methodBlocksChanged
	methodCommitRecovery
	methodInitRecovery
	methodUpdateRecovery
)

var methodNames = [...]string{
	"?", "Register", "Heartbeat", "BlockReport", "BlocksChanged", "CommitRecovery", "InitRecovery", "UpdateRecovery",
}

func (m method) String() string {
	if int(m) < len(methodNames) {
		return methodNames[m]
	}
	return fmt.Sprintf("method %d", uint8(m))
}

// header is what stands before the body: version, kind, method, a zero byte,
// and the request's number, big-endian, which its answer repeats.
type header struct {
	kind   kind
	method method
	id     uint64
}

var errProtocol = errors.New("peer broke the cluster protocol")

func (h header) append(b []byte) []byte {
	b = append(b, version, byte(h.kind), byte(h.method), 0)
	return binary.BigEndian.AppendUint64(b, h.id)
}

func parseHeader(b []byte) (h header, body []byte, err error) {
	if len(b) < headerSize {
		return h, nil, fmt.Errorf("%w: a message of %d bytes, at least %d", errProtocol, len(b), headerSize)
	}
	if len(b) > MaxMessage {
		return h, nil, fmt.Errorf("%w: a message of %d bytes, at most %d", errProtocol, len(b), MaxMessage)
	}
	if b[0] != version {
		return h, nil, fmt.Errorf("%w: version %d, this side speaks %d: run the same release on all nodes", errProtocol, b[0], version)
	}
	h = header{kind(b[1]), method(b[2]), binary.BigEndian.Uint64(b[4:])}
	if h.kind > kindError || b[3] != 0 {
		return h, nil, fmt.Errorf("%w: unknown kind %d or flags %#x", errProtocol, b[1], b[3])
	}
	return h, b[headerSize:], nil
}

// Code tells errors apart that the other side acts on.
type Code uint16

const (
	// CodeFailed is any failure; the text tells.
	CodeFailed Code = 0
	// CodeNotRegistered: the NameNode does not know the DataNode; register.
	CodeNotRegistered Code = 1
	// CodeForeign: the DataNode belongs to another file system. Trying again
	// does not help.
	CodeForeign Code = 2
	// CodeUnknownMethod: the other side is of another release.
	CodeUnknownMethod Code = 3
	// CodeStale: a newer recovery, or a newer generation of the block, has
	// overtaken this request.
	CodeStale Code = 4
)

// Error is a failure that the other side reports.
type Error struct {
	Code    Code
	Message string
}

func (e *Error) Error() string { return e.Message }

// Is makes errors of the same code equal to errors.Is.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Errors to compare with by errors.Is.
var (
	ErrNotRegistered = &Error{CodeNotRegistered, "DataNode is not registered"}
	ErrForeign       = &Error{CodeForeign, "DataNode belongs to another file system"}
	ErrStale         = &Error{CodeStale, "overtaken by a newer recovery"}
)

const maxErrorText = 4 << 10

// appendError appends an error's body: the code, big-endian, and the text.
func appendError(b []byte, err error) []byte {
	e := &Error{CodeFailed, err.Error()}
	var typed *Error
	if errors.As(err, &typed) {
		e.Code = typed.Code
	}
	b = binary.BigEndian.AppendUint16(b, uint16(e.Code))
	return append(b, e.Message[:min(len(e.Message), maxErrorText)]...)
}

func parseError(b []byte) (*Error, error) {
	if len(b) < 2 {
		return nil, fmt.Errorf("%w: an error without a code", errProtocol)
	}
	return &Error{Code(binary.BigEndian.Uint16(b)), string(b[2:])}, nil
}
