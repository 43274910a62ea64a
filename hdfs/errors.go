package hdfs

import (
	"errors"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/verbena-data/verbena/hadoop/exception"
)

// ServerError is a server's refusal. It matches, by [errors.Is], the error of Go that
// means the same: [fs.ErrNotExist], [fs.ErrExist], [fs.ErrPermission], [fs.ErrInvalid],
// [errors.ErrUnsupported], [syscall.ENOTDIR], [syscall.ENOTEMPTY] or [syscall.EDQUOT]; that
// another client has the lease matches [ErrLeaseLost], and that a NameNode stands by or is
// starting [ErrNoNameNode].
type ServerError struct {
	Class   exception.Class // of Java
	Message string
}

// Error is the first line of the message: a server may send a stack trace below.
func (e *ServerError) Error() string {
	said, _, _ := strings.Cut(e.Message, "\n")
	class := string(e.Class)
	class = class[strings.LastIndexByte(class, '.')+1:]
	if said == "" {
		return class
	}
	return said + " (" + class + ")"
}

// Is tells whether the refusal means the same as an error of Go.
func (e *ServerError) Is(target error) bool { return meanings[e.Class] == target }

// Unwrap is the refusal as the RPC has it.
func (e *ServerError) Unwrap() error { return &exception.Error{Class: e.Class, Message: e.Message} }

var meanings = map[exception.Class]error{
	exception.FileNotFound:               fs.ErrNotExist,
	exception.FileAlreadyExists:          fs.ErrExist,
	exception.AccessControl:              fs.ErrPermission,
	exception.SnapshotAccessControl:      fs.ErrPermission,
	exception.Authorization:              fs.ErrPermission,
	exception.InvalidPath:                fs.ErrInvalid,
	exception.IllegalArgument:            fs.ErrInvalid,
	exception.JavaIllegalArgument:        fs.ErrInvalid,
	exception.UnsupportedOperation:       errors.ErrUnsupported,
	exception.NoSuchMethod:               errors.ErrUnsupported,
	exception.ParentNotDirectory:         syscall.ENOTDIR,
	exception.PathIsNotDirectory:         syscall.ENOTDIR,
	exception.PathIsNotEmptyDirectory:    syscall.ENOTEMPTY,
	exception.NSQuotaExceeded:            syscall.EDQUOT,
	exception.DSQuotaExceeded:            syscall.EDQUOT,
	exception.QuotaByStorageTypeExceeded: syscall.EDQUOT,
	exception.LeaseExpired:               ErrLeaseLost,
	exception.Standby:                    ErrNoNameNode,
	exception.Retriable:                  ErrNoNameNode,
}

// fail is an error of an operation as callers get it. io.EOF stays what it is.
func (c *Client) fail(op, name string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return err
	}
	var told *ServerError
	var refused *exception.Error
	if !errors.As(err, &told) && errors.As(err, &refused) {
		err = &ServerError{refused.Class, refused.Message}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}
