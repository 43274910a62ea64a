package cluster

import (
	"errors"
	"fmt"
	"strings"

	"github.com/verbena-data/verbena"
)

// Code tells errors apart that the other side acts on. A failed call carries it
// above [verbena.CodeApplication].
type Code uint32

const (
	// CodeFailed is any failure; the text tells.
	CodeFailed Code = 0
	// CodeNotRegistered: the NameNode does not know the DataNode, or not its
	// session; register.
	CodeNotRegistered Code = 1
	// CodeForeign: the DataNode belongs to another file system. Trying again
	// does not help.
	CodeForeign Code = 2
	// CodeStale: a newer recovery, or a newer generation of the block, has
	// overtaken this request.
	CodeStale Code = 4
	// CodeUnproven: the caller has not proved that it knows the cluster's secret, or
	// not to this process: begin with Hello.
	CodeUnproven Code = 5
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
	ErrUnproven      = &Error{CodeUnproven, "only nodes that have proved that they know this cluster's secret are answered (--cluster-secret)"}
)

// maxErrorText is the longest text of an error that is sent, in bytes.
const maxErrorText = 4 << 10

// failure is an error as an answer to a call has it.
func failure(err error) (code uint32, text string) {
	var typed *Error
	if errors.As(err, &typed) {
		code = uint32(typed.Code)
	}
	text = err.Error()
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "")
	}
	return verbena.CodeApplication + code, text
}

// told makes of an answer that says no the error that the other side meant.
func told(err error) error {
	var e *verbena.CallError
	switch {
	case !errors.As(err, &e):
		return err
	case e.Code >= verbena.CodeApplication:
		return &Error{Code(e.Code - verbena.CodeApplication), e.Text}
	case e.Code == verbena.CodeUnknownMethod:
		return fmt.Errorf("%w: run the same release on all nodes", err)
	}
	return err
}
