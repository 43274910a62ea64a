//go:build !linux

package namenode

import "errors"

// newPulse fails where threads can't be bound to processors.
func newPulse() (*pulse, error) { return nil, errors.ErrUnsupported }
