//go:build !unix

package perf

import (
	"errors"
	"time"
)

func processorTime() (time.Duration, error) {
	return 0, errors.New("perf: this system does not tell processor time")
}
