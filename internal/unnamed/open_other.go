//go:build !linux

package unnamed

import (
	"errors"
	"os"
)

func open(string) (*os.File, error) { return nil, errors.ErrUnsupported }
